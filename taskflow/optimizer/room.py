"""Room: whether a strategy fits the memory, decided cheaply, since a search asks at every new best plan."""

from __future__ import annotations

from dataclasses import dataclass

from taskflow.graph import Node, OperatorGraph
from taskflow.machine import Machine
from taskflow.mapper import OpConfig, Place, Strategy, Travel
from taskflow.optimizer.evaluator import Evaluator
from taskflow.optimizer.memory import explain, memory_use
from taskflow.regions import Rect
from taskflow.tasks.simulate import simulate

MOST_TASKS = 2000  # of a step that is lowered and planned exactly (about a second)


@dataclass(frozen=True, slots=True)
class _Held:
    """What an operator's pieces hold: bytes of activations by processor, and Rects of weights: (layer, processor,
    parameter, Rect, bytes)."""

    activations: dict[int, int]
    weights: tuple[tuple[str, int, str, Rect, int], ...]


class Room:
    """Calling it with a strategy gives what memory it lacks, empty if it fits.

    First a cautious estimate: every array that the tasks of a step touch, as if all lived at once. If that exceeds a
    processor's memory and the step is small, it is lowered and its memory planned as the runtime does it; a larger step
    counts as not fitting, so a search on many devices may refuse plans that would just fit.
    """

    def __init__(self, evaluator: Evaluator) -> None:
        self.graph: OperatorGraph = evaluator.graph
        self.machine: Machine = evaluator.machine
        self._evaluator = evaluator
        self._known: dict[tuple[object, ...], _Held] = {}
        self._owned: dict[tuple[str, OpConfig], list[set[tuple[int, Rect]]]] = {}

    def __call__(self, strategy: Strategy) -> str:
        most = self.at_most(strategy)
        lacking = [(n, p) for n, p in zip(most, self.machine.processors) if n > p.memory_bytes]
        if not lacking:
            return ""
        if self._evaluator.tasks <= MOST_TASKS:
            tasks = self._evaluator.lowered(strategy)
            order = simulate(tasks, self.machine, self._evaluator.costs.task).order
            return explain(self.machine, memory_use(tasks, order))
        nbytes, worst = max(lacking, key=lambda pair: pair[0] - pair[1].memory_bytes)
        return (
            f"{len(lacking)} of {len(most)} processors may lack memory; processor {worst.number} ({worst.kind}) has "
            f"{worst.memory_bytes / 1e9:.3g} GB, its arrays together {nbytes / 1e9:.3g} GB"
        )

    def at_most(self, strategy: Strategy) -> list[int]:
        """The estimate: bytes by processor."""
        total = [0] * len(self.machine.processors)
        rects: dict[tuple[str, int], dict[tuple[str, Rect], int]] = {}
        for node in self.graph:
            held = self._held(node, strategy)
            for processor, nbytes in held.activations.items():
                total[processor] += nbytes
            for layer, processor, parameter, rect, nbytes in held.weights:
                rects.setdefault((layer, processor), {})[parameter, rect] = nbytes
        holders: dict[str, int] = {}
        for layer, _ in rects:
            holders[layer] = holders.get(layer, 0) + 1
        buffers = self._evaluator.rule.buffers if self._evaluator.rule else 0
        for (layer, processor), sizes in rects.items():
            size, sync = sum(sizes.values()), strategy.sync(layer)
            # One owner may receive everybody's gradient at once; a chunk's owner everybody's chunk.
            gathers = sync.travel is Travel.OWNER and sync.place is not Place.SPREAD
            total[processor] += size * (2 + buffers + (holders[layer] if gathers else 2))
        return total

    def _held(self, node: Node, strategy: Strategy) -> _Held:
        config = strategy[node.name]
        producers = [self.graph.producer(t) for t in node.inputs]
        key = (node.name, config, *(strategy[p.name] for p in producers))
        if key not in self._known:
            activations: dict[int, int] = {}
            weights: dict[tuple[str, int, str, Rect, int], None] = {}
            owned = [self._owns(p, strategy[p.name])[t.index] for p, t in zip(producers, node.inputs)]
            for rect, processor in config.pieces(node):
                reads = node.reads(rect)
                # What the processor owns anyway is read in place; else a copy, its gradient, and both packed to be sent.
                inputs = sum(
                    r.volume * t.dtype.itemsize
                    for t, r, own in zip(node.inputs, reads.inputs, owned) if (processor, r) not in own
                )
                outputs = sum(r.volume * t.dtype.itemsize for t, r in zip(node.outputs, node.writes(rect)))
                saved = sum(s.nbytes for s in node.operator.saves(node.specs, rect))
                # Outputs: value, gradient, a part of the gradient that arrives.
                nbytes = 3 * outputs + 4 * inputs + saved
                for parameter, read in zip(node.parameters, reads.weights):
                    size = read.volume * parameter.spec.dtype.itemsize
                    nbytes += 2 * size  # gathered from several cells, and its gradient
                    weights[parameter.layer, processor, parameter.name, read, size] = None
                activations[processor] = activations.get(processor, 0) + nbytes
            self._known[key] = _Held(activations, tuple(weights))
        return self._known[key]

    def _owns(self, node: Node, config: OpConfig) -> list[set[tuple[int, Rect]]]:
        """By output, which Rects lie on which processors."""
        key = (node.name, config)
        if key not in self._owned:
            found: list[set[tuple[int, Rect]]] = [set() for _ in node.outputs]
            for rect, processor in config.pieces(node):
                for table, written in zip(found, node.writes(rect)):
                    table.add((processor, written))
            self._owned[key] = found
        return self._owned[key]
