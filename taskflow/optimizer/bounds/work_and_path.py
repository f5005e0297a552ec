"""Lower bounds on the time of a step: what no strategy of a space can beat under the simulator's model.

There are two arguments. *Work*: all processors together must run every operator's forward and backward tasks and update every
weight, so a step takes at least the least total of these divided by the number of processors. *Path*: a task that reads
something waits for a task that wrote it, so a step takes at least the longest chain of operators, each with its cheapest piece,
and an update. Transfers and sums are left out. Both arguments hold for any order of tasks, provided that a task's cost does not
fall when it touches more bytes.

Costs may have a lower bound of what all tasks of an operator take together, however it is cut (`Costs.least`). If they do not
and an operator has too many cuts to look at each, cuts are grouped by their degrees, rounded up to powers of two (of eight, if
there are very many). A piece of any cut in a group contains one of the finest cut, which must not cost more wherever it lies
(`rounded`). `bounds/partial_plan.py` has a far stronger bound for small spaces.

Nothing is measured for a bound. With measured costs (`Costs.measures`), operators and layers with a cost that is not known yet
count as if they took no time. So do operators whose cuts would be grouped, since a smaller piece may have been measured to take
longer. The assumption that more bytes do not take less time then holds up to the measurements' noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import inf, prod

from taskflow.graph import Node
from taskflow.operators.tensor import Tensor
from taskflow.optimizer.bounds.updates import LeastUpdates
from taskflow.optimizer.cost import Pieces, classes
from taskflow.optimizer.cost.measured import NotMeasured, before_measuring, nothing_new
from taskflow.optimizer.evaluate import Evaluator
from taskflow.optimizer.space import SearchSpace, SpaceOptions
from taskflow.regions import Rect, covers

MOST_KINDS = 1500  # kinds of pieces of one operator that are looked at one by one
LOOKS = 5_000  # pieces in all, a few seconds; the rest is looked at in the roughest way


@dataclass(frozen=True, slots=True)
class LeastTimes:
    """Lower bounds of one operator over all cuts of its space: the total seconds of all its tasks, and the seconds of its
    cheapest forward and backward task. ``always``: by input, whether every piece of every cut reads some of it."""

    total: float
    forward: float
    backward: float
    always: tuple[bool, ...]


def lower_bound(
    evaluator: Evaluator, options: SpaceOptions | None = None, over: Callable[[], bool] = lambda: False, *,
    uneven: bool = False,
) -> float:
    """Return a lower bound of the seconds of any strategy of the space, with any placement and synchronisation. ``uneven``:
    pieces may have any sizes. A task may then be as short as one of a single element, and for all tasks of an operator together
    only `Costs.least` is known. Otherwise pieces are cut evenly. 0 if the costs are only known for whole tasks. Operators that
    have not been looked at when ``over`` returns true count as if they took no time, so the bound still holds. Nothing is
    measured."""
    with before_measuring(nothing_new):
        return _lower_bound(evaluator, options, over, uneven)


def _lower_bound(evaluator: Evaluator, options: SpaceOptions | None, over: Callable[[], bool], uneven: bool) -> float:
    graph, machine = evaluator.graph, evaluator.machine
    pieces = Pieces(graph, evaluator.costs, evaluator.rule is not None)
    processors = representatives(evaluator)
    try:
        table = _table(pieces, SearchSpace(graph, len(machine.processors), options), processors, over, uneven)
    except TypeError:  # costs of whole tasks only
        return 0.0
    layers = dict.fromkeys(p.layer for node in graph if node.number in pieces.active for p in node.parameters)
    least = LeastUpdates(evaluator, processors)
    updates = [] if evaluator.rule is None else [(0.0, 0.0) if over() else _known_update(least, layer) for layer in layers]
    longest = 0.0 if over() else Paths(pieces, [item.always for item in table]).longest(
        [item.forward for item in table], [item.backward for item in table],
        min((shortest for _, shortest in updates), default=0.0),
    )
    work = sum(item.total for item in table) + sum(total for total, _ in updates)
    return max(work / len(machine.processors), longest)


def _table(
    pieces: Pieces, space: SearchSpace, processors: Sequence[int], over: Callable[[], bool], uneven: bool
) -> list[LeastTimes]:
    """Bounds by operator. Equal operators are computed once, and those with the most arithmetic in the finest way."""
    graph = pieces.graph
    alike: dict[object, list[Node]] = {}
    for node in graph:
        key = (node.operator, node.specs, id(space[node]), node.number in pieces.active,
               tuple((t.node, t.index) in pieces.needs_gradient for t in (*node.inputs, *node.outputs)))
        alike.setdefault(key, []).append(node)
    found: dict[int, LeastTimes] = {}
    left = LOOKS

    def in_time() -> None:
        if over():
            raise TimeoutError

    ranked = sorted(alike.values(), key=lambda nodes: -len(nodes) * nodes[0].operator.flops(nodes[0].specs, nodes[0].space))
    # First what is said at once, so that a bound that is cut short is not much worse.
    stated = [0.0 if over() else _together(pieces, nodes[0], processors) for nodes in ranked]
    for nodes, together in zip(ranked, stated):
        node, tuples = nodes[0], space[nodes[0]].tuples
        try:
            in_time()
            if uneven:
                least = _of_any_size(pieces, node, tuples, processors)
            elif (each := sum(_kinds(node, degrees) for degrees in tuples)) <= min(MOST_KINDS, left):
                least, left = least_of(pieces, node, tuples, processors, in_time), left - each
            elif not node.operator.uniform:  # a smaller piece may have more arithmetic for its size, and cost more
                least = _nothing(node)
            elif pieces.costs.measures:
                raise NotMeasured
            elif not together and (rough := len({_round(d, 1) for d in tuples}) * 2 ** _windows(node)) <= left:
                least, left = rounded(pieces, node, tuples, processors, 1, in_time), left - rough
            else:
                least = rounded(pieces, node, tuples, processors, 3, in_time)
        except TimeoutError:
            least = _nothing(node)
        for other in nodes:
            found[other.number] = replace(least, total=max(least.total, together))
    return [found[node.number] for node in graph]


def _of_any_size(pieces: Pieces, node: Node, tuples: Sequence[Sequence[int]], processors: Sequence[int]) -> LeastTimes:
    """Least times for pieces of any sizes: a task takes no less than one of a single element along every dimension that may be
    cut."""
    if not node.operator.uniform or pieces.costs.measures:
        return _nothing(node)
    finest = tuple(max(1, dim.size) if any(t[i] > 1 for t in tuples) else 1 for i, dim in enumerate(node.dims))
    return replace(rounded(pieces, node, [finest], processors, exact=True), total=0.0)


def _nothing(node: Node) -> LeastTimes:
    """Bounds of an operator that has not been looked at."""
    return LeastTimes(0.0, 0.0, 0.0, (False,) * len(node.inputs))


def _together(pieces: Pieces, node: Node, processors: Sequence[int]) -> float:
    """Lower bound by the costs themselves of all tasks of an operator together; 0 if there is none."""
    if node.operator.kind == "state":
        return 0.0
    ways = (False, True) if node.number in pieces.active else (False,)
    return sum(min(pieces.costs.least(node, backward, p) for p in processors) for backward in ways)


def _windows(node: Node) -> int:
    """Dimensions along which places differ."""
    return sum(len(_places(node, i, max(1, dim.size // 4))) > 1 for i, dim in enumerate(node.dims))


def _round(degrees: Sequence[int], bits: int) -> tuple[int, ...]:
    return tuple(1 << -(-(degree - 1).bit_length() // bits) * bits for degree in degrees)


def _kinds(node: Node, degrees: Sequence[int]) -> int:
    return prod(min(degree, 4) for degree in degrees) if node.operator.uniform else prod(degrees)


def _known_update(updates: LeastUpdates, layer: str) -> tuple[float, float]:
    """`LeastUpdates.of`; nothing where its costs have not been measured."""
    try:
        return updates.of(layer)
    except NotMeasured:
        return 0.0, 0.0


def representatives(evaluator: Evaluator) -> list[int]:
    """Return one processor of each class of equal ones."""
    found: dict[int, int] = {}
    for processor in range(len(evaluator.machine.processors)):
        found.setdefault(evaluator.costs.processor_class(processor), processor)
    return list(found.values())


def least_of(
    pieces: Pieces, node: Node, tuples: Sequence[Sequence[int]], processors: Sequence[int],
    in_time: Callable[[], object] = lambda: None,
) -> LeastTimes:
    """Return the least times over the even cuts into ``tuples`` of degrees; ``processors``: one of each kind. ``in_time`` is called
    before each cut, and may raise."""
    total = forward = backward = inf
    always = [True] * len(node.inputs)
    for degrees in tuples:
        in_time()
        sum_ = 0.0
        for piece, count in classes(node, degrees):
            costs = [pieces.seconds(node, piece, p) for p in processors]
            forward = min(forward, min(a for a, _ in costs))
            backward = min(backward, min(b for _, b in costs))
            sum_ += count * min(a + b for a, b in costs)
            for i, rect in enumerate(node.reads(piece).inputs):
                always[i] &= not rect.empty
        total = min(total, sum_)
    return LeastTimes(total, forward, backward, tuple(always))


def rounded(
    pieces: Pieces, node: Node, tuples: Sequence[Sequence[int]], processors: Sequence[int], bits: int = 1,
    in_time: Callable[[], object] = lambda: None, *, exact: bool = False,
) -> LeastTimes:
    """Return `least_of` for many tuples, grouped. Those that round up to the same powers of 2**``bits`` have at least as many
    pieces as the one with the fewest, each at least as large as the smallest piece of the rounded cut. ``in_time`` is called
    before each group, and may raise. ``exact``: nothing is rounded."""
    fewest: dict[tuple[int, ...], int] = {}
    for degrees in tuples:
        finest = tuple(degrees) if exact else _round(degrees, bits)
        fewest[finest] = min(fewest.get(finest, prod(degrees)), prod(degrees))
    total = forward = backward = inf
    always = [True] * len(node.inputs)
    places: dict[tuple[int, int], list[int]] = {}
    for finest, count in fewest.items():
        in_time()
        lengths = [max(1, dim.size // degree) if dim.size else 0 for dim, degree in zip(node.dims, finest)]
        for i, length in enumerate(lengths):
            if (i, length) not in places:
                places[i, length] = _places(node, i, length)
        shortest = inf
        for lows in product(*(places[i, length] for i, length in enumerate(lengths))):
            piece = Rect(lows, tuple(low + length for low, length in zip(lows, lengths)))
            costs = [pieces.seconds(node, piece, p) for p in processors]
            forward, backward = min(forward, *(a for a, _ in costs)), min(backward, *(b for _, b in costs))
            shortest = min(shortest, *(a + b for a, b in costs))
        total = min(total, count * shortest)
        for rect in (_at(node, lengths, 0), _at(node, lengths, 1), _at(node, lengths, 2)):
            for i, read in enumerate(node.reads(rect).inputs):
                always[i] &= not read.empty
    return LeastTimes(total, forward, backward, tuple(always))


def _at(node: Node, lengths: Sequence[int], halves: int) -> Rect:
    """The piece of these lengths at the start of every dimension, in its middle or at its end."""
    lows = [(dim.size - length) * halves // 2 for dim, length in zip(node.dims, lengths)]
    return Rect(tuple(lows), tuple(low + length for low, length in zip(lows, lengths)))


def _places(node: Node, dim: int, length: int) -> list[int]:
    """Places where pieces of a length along one dimension may differ in arithmetic or in what they read: at the borders of
    images and inside."""
    whole = [d.size for d in node.dims]
    found: dict[object, int] = {}
    for halves in range(3):
        low = (node.dims[dim].size - length) * halves // 2
        lo, hi = [0] * len(whole), list(whole)
        lo[dim], hi[dim] = low, low + length
        piece = Rect(tuple(lo), tuple(hi))
        reads = node.reads(piece)
        sizes = tuple(rect.volume for rect in (*reads.inputs, *reads.weights))
        found.setdefault((node.operator.flops(node.specs, piece), sizes), low)
    return list(found.values())


class Paths:
    """Chains of operators in which each waits for the previous one, whatever the cuts: forward, then back."""

    def __init__(self, pieces: Pieces, always: Sequence[Sequence[bool]]) -> None:
        graph = self._graph = pieces.graph
        self._ahead = [
            sorted({t.node for t, sure in zip(node.inputs, certain) if sure}) for node, certain in zip(graph, always)
        ]
        reading: dict[int, list[Node]] = {node.number: [] for node in graph}
        for node in graph:
            for giver in {t.node for t in node.inputs}:
                reading[giver].append(node)
        self._back: list[tuple[int, list[int], list[int]]] = []  # node, forward tasks and backward tasks that it waits for
        for node in reversed(graph.nodes):
            if node.number not in pieces.active:
                continue
            keeps = node.operator.keeps(node.specs)
            before = [node.number] if keeps.outputs or node.operator.saves(node.specs, node.space) else []
            if keeps.inputs:
                before += self._ahead[node.number]
            readers = [r.number for r in reading[node.number] if r.number in pieces.active and len(node.outputs) == 1
                       and reads_all_of(r, node.outputs[0])]
            self._back.append((node.number, before, readers))

    def longest(self, forward: Sequence[float], backward: Sequence[float], update: float = 0.0) -> float:
        """Return the seconds of the longest chain. Given are the least seconds of any forward and backward task of each node,
        and of an update, which follows the backward tasks of nodes with parameters."""
        ahead: list[float] = []
        for own, before in zip(forward, self._ahead):
            ahead.append(own + max((ahead[b] for b in before), default=0.0))
        back: dict[int, float] = {}
        for number, before, readers in self._back:
            start = max([0.0, *(ahead[b] for b in before), *(back[r] for r in readers)])
            back[number] = start + backward[number]
        weights = [end + update for number, end in back.items() if self._graph.nodes[number].parameters]
        return max([*ahead, *back.values(), *weights], default=0.0)


def reads_all_of(reader: Node, tensor: Tensor) -> bool:
    """True if ``reader`` reads every element of ``tensor``. Then the backward task of each piece that writes some of it waits
    for one of the reader's."""
    rects = [rect for other, rect in zip(reader.inputs, reader.reads(reader.space).inputs) if other is tensor]
    return bool(rects) and covers(rects, tensor.spec.rect)
