"""Costs of single pieces: the seconds of the forward and backward tasks of one piece, without any task graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from taskflow.graph import Node, OperatorGraph
from taskflow.mapper import OpConfig
from taskflow.optimizer.cost.task_costs import Costs
from taskflow.partition import even_cuts
from taskflow.regions import Rect
from taskflow.tasks.lower import gradient_flow


@dataclass(frozen=True, slots=True)
class PieceWork:
    """Flops and bytes of a piece's two tasks, as `taskflow.tasks.lower.lower` states them. Backward is taken to fill all
    gradients rather than add to them, so its bytes are the fewest possible."""

    forward_flops: int
    forward_bytes: int
    backward_flops: int
    backward_bytes: int
    backward: bool


class Pieces:
    """Costs of pieces of a graph's operators. ``training``: whether backward runs at all."""

    def __init__(self, graph: OperatorGraph, costs: Costs, training: bool) -> None:
        self.graph, self.costs = graph, costs
        self.active, self.needs_gradient, _ = gradient_flow(graph) if training else (set(), set(), set())
        self._work: dict[tuple[int, Rect], PieceWork] = {}

    def work(self, node: Node, piece: Rect) -> PieceWork:
        """Return the flops and bytes of the piece's tasks."""
        key = (node.number, piece)
        if key not in self._work:
            self._work[key] = self._derive(node, piece)
        return self._work[key]

    def seconds(self, node: Node, piece: Rect, processor: int) -> tuple[float, float]:
        """Return the seconds of the forward and of the backward task; 0 for a task that does not exist."""
        if node.operator.kind == "state":
            return (0.0, 0.0)
        work = self.work(node, piece)
        ahead = self.costs.piece(node, piece, False, processor, work.forward_flops, work.forward_bytes)
        back = 0.0
        if work.backward:
            back = self.costs.piece(node, piece, True, processor, work.backward_flops, work.backward_bytes)
        return (ahead, back)

    def busy(self, node: Node, config: OpConfig) -> dict[int, float]:
        """Return each processor's seconds for all forward and backward tasks of an operator. Those of even cuts are computed
        once for each kind of piece (see `classes`) and class of processors."""
        alike: dict[object, float] = {}
        busy: dict[int, float] = {}
        for rect, processor in config.pieces(node):
            key: object = (self.costs.processor_class(processor), rect if config.weights else _kind(node, rect))
            if key not in alike:
                alike[key] = sum(self.seconds(node, rect, processor))
            busy[processor] = busy.get(processor, 0.0) + alike[key]
        return busy

    def _derive(self, node: Node, piece: Rect) -> PieceWork:
        operator, specs = node.operator, node.specs
        reads, writes = node.reads(piece), node.writes(piece)
        inputs = [r.volume * t.dtype.itemsize for t, r in zip(node.inputs, reads.inputs)]
        weights = [r.volume * p.spec.dtype.itemsize for p, r in zip(node.parameters, reads.weights)]
        outputs = [r.volume * t.dtype.itemsize for t, r in zip(node.outputs, writes)]
        saved = sum(s.nbytes for s in operator.saves(specs, piece))
        ahead = sum(inputs) + sum(weights) + sum(outputs) + saved
        if node.number not in self.active:
            return PieceWork(operator.flops(specs, piece), ahead, 0, 0, False)
        keeps = operator.keeps(specs)
        grads = [n for t, n in zip(node.outputs, outputs) if (t.node, t.index) in self.needs_gradient]
        targets = [n for t, n in zip(node.inputs, inputs) if (t.node, t.index) in self.needs_gradient]
        kept = sum(inputs) * keeps.inputs + sum(weights) * keeps.weights + sum(outputs) * keeps.outputs + saved
        # An output that nobody's gradient reaches is not counted by lower; the smallest count is a single one.
        back = kept + (min(grads) if grads else 0) + sum(targets)
        return PieceWork(operator.flops(specs, piece), ahead, operator.backward_flops(specs, piece), back, True)


def _kind(node: Node, rect: Rect) -> object:
    """Key that pieces of one kind share, as in `classes`."""
    if not node.operator.uniform:
        return rect
    return tuple((b - a, a == 0, b == dim.size) for a, b, dim in zip(rect.lo, rect.hi, node.dims))


def classes(node: Node, degrees: Sequence[int]) -> Iterator[tuple[Rect, int]]:
    """Return one piece of each kind of an even cut, and the number of pieces of that kind. Pieces are of one kind if in every
    dimension they are equally long and both inside, or both at the same border. For operators that are not `Operator.uniform`,
    each piece is a kind of its own."""
    sides: list[list[tuple[int, int, int]]] = []
    for dim, degree in zip(node.dims, degrees):
        cuts = even_cuts(dim.size, degree)
        found: dict[tuple[int, ...], tuple[int, int, int]] = {}
        for low, high in zip(cuts, cuts[1:]):
            key = (high - low, low == 0, high == dim.size) if node.operator.uniform else (low, high)
            first = found.get(key)
            found[key] = (first[0], first[1], first[2] + 1) if first else (low, high, 1)
        sides.append(list(found.values()))
    for combination in product(*sides):
        lows, highs, counts = tuple(zip(*combination)) if combination else ((), (), ())
        yield Rect(tuple(lows), tuple(highs)), prod(counts)
