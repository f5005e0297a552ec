"""Lower bounds on the time of a step: what no strategy of a space can beat under the simulator's model.

Two arguments. *Work*: all processors together must run every operator's forward and backward tasks, so a step takes at least
their least total divided by the number of processors. *Path*: a task that reads something waits for a task that wrote it, so
a step takes at least the longest chain of operators, each with its cheapest piece. Transfers, sums and updates are left out,
and a task's cost must not fall when it touches more bytes; then both hold whatever the order of tasks is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from taskflow.graph import Node
from taskflow.operators.tensor import Tensor
from taskflow.optimizer.evaluator import Evaluator
from taskflow.optimizer.pieces import Pieces, classes
from taskflow.optimizer.space import Space, SpaceOptions
from taskflow.regions import covers

MOST_PIECES = 60_000  # kinds of pieces to look at (some seconds); a larger space gets no bound


@dataclass(frozen=True, slots=True)
class Least:
    """Of one operator, over all cuts of its space: the least total seconds of all its tasks, and those of its cheapest
    forward and backward task. ``always``: by input, whether every piece of every cut reads some of it."""

    total: float
    forward: float
    backward: float
    always: tuple[bool, ...]


def lower_bound(evaluator: Evaluator, options: SpaceOptions | None = None) -> float:
    """Seconds that no strategy of the space takes less than (pieces evenly cut; any placement and synchronisation).
    0 if the space is too large to look through or the costs are only known for whole tasks."""
    graph, machine = evaluator.graph, evaluator.machine
    space = Space(graph, len(machine.processors), options)
    pieces = Pieces(graph, evaluator.costs, evaluator.rule is not None)
    least: dict[object, Least] = {}
    table: list[Least] = []
    left = MOST_PIECES
    for node in graph:
        key = (node.operator, node.specs, node.number in pieces.active,
               tuple((t.node, t.index) in pieces.needs_gradient for t in (*node.inputs, *node.outputs)))
        if key not in least:
            left -= sum(_kinds(degrees) for degrees in space[node].tuples)
            if left < 0:
                return 0.0
            try:
                least[key] = least_of(pieces, node, space[node].tuples, representatives(evaluator))
            except TypeError:  # costs of whole tasks only
                return 0.0
        table.append(least[key])
    longest = Paths(pieces, [item.always for item in table]).longest(
        [item.forward for item in table], [item.backward for item in table]
    )
    return max(sum(item.total for item in table) / len(machine.processors), longest)


def _kinds(degrees: Sequence[int]) -> int:
    count = 1
    for degree in degrees:
        count *= min(degree, 4)
    return count


def representatives(evaluator: Evaluator) -> list[int]:
    """One processor of each class of equal ones."""
    found: dict[int, int] = {}
    for processor in range(len(evaluator.machine.processors)):
        found.setdefault(evaluator.costs.processor_class(processor), processor)
    return list(found.values())


def least_of(pieces: Pieces, node: Node, tuples: Sequence[Sequence[int]], processors: Sequence[int]) -> Least:
    """Over the even cuts into ``tuples`` of degrees; ``processors``: one of each kind."""
    total = forward = backward = inf
    always = [True] * len(node.inputs)
    for degrees in tuples:
        sum_ = 0.0
        for piece, count in classes(node, degrees):
            costs = [pieces.seconds(node, piece, p) for p in processors]
            forward = min(forward, min(a for a, _ in costs))
            backward = min(backward, min(b for _, b in costs))
            sum_ += count * min(a + b for a, b in costs)
            for i, rect in enumerate(node.reads(piece).inputs):
                always[i] &= not rect.empty
        total = min(total, sum_)
    return Least(total, forward, backward, tuple(always))


class Paths:
    """The chains of operators in which each waits for the one before, whatever the cuts are: forward, then back."""

    def __init__(self, pieces: Pieces, always: Sequence[Sequence[bool]]) -> None:
        graph = pieces.graph
        self._ahead = [
            sorted({t.node for t, sure in zip(node.inputs, certain) if sure}) for node, certain in zip(graph, always)
        ]
        self._back: list[tuple[int, list[int], list[int]]] = []  # node, forward tasks and backward tasks that it waits for
        for node in reversed(graph.nodes):
            if node.number not in pieces.active:
                continue
            keeps = node.operator.keeps(node.specs)
            before = [node.number] if keeps.outputs or node.operator.saves(node.specs, node.space) else []
            if keeps.inputs:
                before += self._ahead[node.number]
            readers = [r.number for r in graph if r.number in pieces.active and len(node.outputs) == 1
                       and reads_all_of(r, node.outputs[0])]
            self._back.append((node.number, before, readers))

    def longest(self, forward: Sequence[float], backward: Sequence[float]) -> float:
        """Seconds of the longest chain, given the least seconds of any forward and backward task of each node."""
        ahead: list[float] = []
        for own, before in zip(forward, self._ahead):
            ahead.append(own + max((ahead[b] for b in before), default=0.0))
        back: dict[int, float] = {}
        for number, before, readers in self._back:
            start = max([0.0, *(ahead[b] for b in before), *(back[r] for r in readers)])
            back[number] = start + backward[number]
        return max([*ahead, *back.values()], default=0.0)


def reads_all_of(reader: Node, tensor: Tensor) -> bool:
    """True if every element of ``tensor`` is read by ``reader``: then the backward task of each piece that writes some of it
    waits for one of the reader's."""
    rects = [rect for other, rect in zip(reader.inputs, reader.reads(reader.space).inputs) if other is tensor]
    return bool(rects) and covers(rects, tensor.spec.rect)
