"""Followers: which operators a random walk changes in one move, if some do not choose but follow another operator.

A follower is cut like the operator that it follows, and each piece runs where the matching piece does. So a walk needs no table
of all choices with the nearest configuration for each, as `decisions.decisions` makes for an exact search.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from weakref import WeakKeyDictionary

from taskflow.graph import Node, OperatorGraph
from taskflow.mapper import Cut, Match, OpConfig, by_name_or_size, cut_like
from taskflow.operators.operator import Dim
from taskflow.optimizer.space.space import SearchSpace
from taskflow.regions import Rect


@dataclass(frozen=True, slots=True)
class Following:
    """Relation of leaders and followers in a graph. ``leaders``: numbers of the nodes that choose. ``followers``: for each
    leader, those that follow it directly or not, each after the one that it follows, as (name, name of that one, index into
    ``kinds``). ``kinds``: how they follow."""

    leaders: tuple[int, ...]
    followers: tuple[tuple[tuple[str, str, int], ...], ...]
    kinds: tuple[tuple[tuple[Dim, ...], Match], ...]


class CoupledMoves:
    """Moves of a random walk over a space; `draw` returns one. ``leaders``: the operators that choose, in the order of the
    graph. With ``space.options.follow`` "none" these are all but those that are made of weights alone, which stay where they are.
    ``spaces``: theirs."""

    def __init__(self, graph: OperatorGraph, space: SearchSpace) -> None:
        following = _following(graph, space.options.follow)
        self.leaders = [graph.nodes[number] for number in following.leaders]
        self.spaces = [space[node] for node in self.leaders]
        self._followers, self._kinds = following.followers, following.kinds
        self._names = [node.name for node in self.leaders]
        self._cuts: dict[tuple[int, tuple[int, ...]], Cut] = {}

    def __len__(self) -> int:
        return len(self.leaders)

    def draw(self, random: Random) -> dict[str, OpConfig]:
        """Return a random configuration for one operator that chooses, all equally likely, with its followers' configurations."""
        number = random.randrange(len(self._names))
        return self._changes(number, self.spaces[number].draw(random))

    def everything(self, random: Random) -> dict[str, OpConfig]:
        """Return a configuration for every operator, uniform over the choices of those that choose."""
        configs: dict[str, OpConfig] = {}
        for number, space in enumerate(self.spaces):
            configs |= self._changes(number, space.draw(random))
        return configs

    def _changes(self, number: int, config: OpConfig) -> dict[str, OpConfig]:
        changes = {self._names[number]: config}
        for name, towards, kind in self._followers[number]:
            chosen = changes[towards]
            degrees, places = self._cut(kind, chosen.degrees)
            changes[name] = OpConfig(degrees, tuple([chosen.processors[k] for k in places]))
        return changes

    def _cut(self, kind: int, chosen: tuple[int, ...]) -> Cut:
        found = self._cuts.get((kind, chosen))
        if found is None:
            found = self._cuts[kind, chosen] = cut_like(*self._kinds[kind], chosen)
        return found


_FOLLOWING: WeakKeyDictionary[OperatorGraph, dict[tuple[object, ...], Following]] = WeakKeyDictionary()


def _following(graph: OperatorGraph, which: str) -> Following:
    """Worked out once for a graph as it is."""
    known, key = _FOLLOWING.setdefault(graph, {}), (which, len(graph.nodes), tuple(loss.node for loss in graph.losses))
    if key not in known:
        still = {node.number for node in graph if node.of_weights}
        if len(still) == len(graph):  # a graph without samples has nothing else to move
            still = set()
        towards = {number: leader for number, leader in followed(graph, which).items() if still.isdisjoint((number, leader))}
        behind: dict[int, list[int]] = {}
        for number, leader in towards.items():
            behind.setdefault(leader, []).append(number)
        leaders = tuple(node.number for node in graph if node.number not in towards and node.number not in still)
        kinds: dict[tuple[tuple[Dim, ...], Match], int] = {}
        followers = tuple(tuple(_followers(graph, number, behind, kinds)) for number in leaders)
        known[key] = Following(leaders, followers, tuple(kinds))
    return known[key]


def _followers(
    graph: OperatorGraph, leader: int, behind: dict[int, list[int]], kinds: dict[tuple[tuple[Dim, ...], Match], int]
) -> Iterator[tuple[str, str, int]]:
    """Return all that follow an operator, directly or not, each after the one that it follows."""
    group = [leader]
    for member in group:
        of = graph.nodes[member]
        for number in behind.get(member, ()):
            node = graph.nodes[number]
            kind = (node.dims, by_name_or_size(node.dims, of.dims))
            yield node.name, of.name, kinds.setdefault(kind, len(kinds))
            group.append(number)


def followed(graph: OperatorGraph, which: str) -> dict[int, int]:
    """Return whom each operator follows, by number; operators that choose are left out. ``which``: one of `space.FOLLOW`.

    ``passive``: inputs, states and views (no arithmetic) follow the operator that reads them first, and scalars follow their
    producer. ``weightless``: in addition, all operators without parameters follow their producer. ``elementwise``: in addition
    to the passive ones, `elementwise` operators except losses follow their producer. If some would follow each other in a
    circle, the first of them chooses.
    """
    if which == "none":
        return {}
    readers: dict[int, list[int]] = {}
    for node in graph:
        for tensor in node.inputs:
            readers.setdefault(tensor.node, []).append(node.number)
    losses = {loss.node for loss in graph.losses}
    found: dict[int, int] = {}
    for node in graph:
        large = [k for k in readers.get(node.number, ()) if graph.nodes[k].space.volume > 1]
        first = node.inputs[0].node if node.inputs else None
        leader = None
        if first is None or node.space.volume == 1:
            leader = large[0] if first is None and large else first
        elif not node.parameters and node.operator.flops(node.specs, node.space) == 0:
            # A view goes with its reader, unless that goes with the view.
            mutual = not large or (which == "elementwise" and elementwise(graph.nodes[large[0]]))
            leader = first if mutual else large[0]
        elif which == "weightless":
            leader = None if node.parameters else first
        elif which == "elementwise" and node.number not in losses:
            # What is only carried on to the next step (running statistics) goes with what it is made of.
            leader = first if elementwise(node) or (not node.parameters and not readers.get(node.number)) else None
        if leader is not None:
            found[node.number] = leader
    return {number: leader for number, leader in found.items() if not _circle(found, number)}


def _circle(found: dict[int, int], number: int) -> bool:
    """True if following leaders from an operator leads back to it; then the first in the circle chooses."""
    seen, at = [], number
    while at in found and at not in seen:
        seen.append(at)
        at = found[at]
    return at in found and number == min(seen[seen.index(at):])


def elementwise(node: Node) -> bool:
    """True if every piece reads exactly its own Rect of its first input: element by element, as far as that input extends."""
    if not node.inputs:
        return False
    lows, highs = [0] * len(node.dims), [dim.size for dim in node.dims]
    tests = [Rect(tuple(lows), tuple(highs))]
    for i, dim in enumerate(node.dims):
        if dim.divisible and dim.size > 1:
            half = list(highs)
            half[i] = dim.size // 2
            tests.append(Rect(tuple(lows), tuple(half)))
    return all(node.reads(test).inputs[0] == test for test in tests)
