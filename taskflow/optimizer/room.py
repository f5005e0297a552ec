"""Room: whether a strategy fits the memory, decided cheaply where that is possible."""

from __future__ import annotations

from taskflow.graph import Node, OperatorGraph
from taskflow.machine import Machine
from taskflow.mapper import OpConfig, Place, Strategy, Travel
from taskflow.optimizer.evaluator import Evaluator
from taskflow.optimizer.memory import explain, memory_use
from taskflow.regions import Rect
from taskflow.rules import UpdateRule
from taskflow.tasks.simulate import simulate


class Room:
    """Calling it with a strategy gives what memory it lacks, empty if it fits.

    First an upper bound: every array that any task of a step touches, as if all lived at once. Only if that exceeds a
    processor's memory the step is lowered and its memory planned, as the runtime does it.
    """

    def __init__(self, evaluator: Evaluator) -> None:
        self.graph: OperatorGraph = evaluator.graph
        self.machine: Machine = evaluator.machine
        self._evaluator = evaluator
        self._known: dict[tuple[str, OpConfig], dict[int, int]] = {}

    def __call__(self, strategy: Strategy) -> str:
        most = self.at_most(strategy)
        if all(n <= p.memory_bytes for n, p in zip(most, self.machine.processors)):
            return ""
        tasks = self._evaluator.lowered(strategy)
        order = simulate(tasks, self.machine, self._evaluator.costs.task).order
        return explain(self.machine, memory_use(tasks, order))

    def at_most(self, strategy: Strategy) -> list[int]:
        """Bytes by processor that a step cannot exceed."""
        total = [0] * len(self.machine.processors)
        for node in self.graph:
            for processor, nbytes in self._operator(node, strategy[node.name]).items():
                total[processor] += nbytes
        for processor, nbytes in enumerate(self._weights(strategy)):
            total[processor] += nbytes
        return total

    def _operator(self, node: Node, config: OpConfig) -> dict[int, int]:
        """Activations of an operator's pieces: outputs, saved values and copies of inputs, each with its gradient, the
        gradient's arriving parts, and packed messages of all of them."""
        key = (node.name, config)
        if key not in self._known:
            table: dict[int, int] = {}
            for rect, processor in config.pieces(node):
                reads = node.reads(rect)
                nbytes = sum(r.volume * t.dtype.itemsize for t, r in zip(node.inputs, reads.inputs))
                nbytes += sum(r.volume * t.dtype.itemsize for t, r in zip(node.outputs, node.writes(rect)))
                nbytes = 6 * nbytes + sum(s.nbytes for s in node.operator.saves(node.specs, rect))
                # Weights gathered from several cells, and their gradient.
                nbytes += 2 * sum(r.volume * p.spec.dtype.itemsize for p, r in zip(node.parameters, reads.weights))
                table[processor] = table.get(processor, 0) + nbytes
            self._known[key] = table
        return self._known[key]

    def _weights(self, strategy: Strategy) -> list[int]:
        """Weights, gradients, the update rule's arrays, and what arrives while gradients are summed."""
        rule: UpdateRule | None = self._evaluator.rule
        held: dict[tuple[str, int], set[tuple[str, Rect]]] = {}
        nbytes: dict[tuple[str, Rect], int] = {}
        for node in self.graph:
            for rect, processor in strategy[node.name].pieces(node) if node.parameters else ():
                for parameter, read in zip(node.parameters, node.reads(rect).weights):
                    held.setdefault((parameter.layer, processor), set()).add((parameter.name, read))
                    nbytes[parameter.name, read] = read.volume * parameter.spec.dtype.itemsize
        holders: dict[str, int] = {}
        for layer, _ in held:
            holders[layer] = holders.get(layer, 0) + 1
        total = [0] * len(self.machine.processors)
        for (layer, processor), rects in held.items():
            size = sum(nbytes[r] for r in rects)
            sync = strategy.sync(layer)
            gathers = sync.travel is Travel.OWNER and sync.place is not Place.SPREAD
            arriving = (holders[layer] if gathers else 2) * size
            total[processor] += size * (2 + (rule.buffers if rule else 0)) + arriving
        return total
