"""Moves: changes to a strategy that are more likely to help than one random operator's random configuration.

A move changes a *target* by an *action*. The target is one operator, the operators of one layer, operators that are alike,
those of one depth, or some consecutive ones. The action is a random configuration, a small change of the current one, or the
configuration of a neighbour. Targets are drawn from the critical path half of the time. Pairs of target and action that
improved more often are drawn more often.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from random import Random

from taskflow.graph import Node, OperatorGraph
from taskflow.mapper import (
    CollectiveSync,
    Cut,
    MessageSync,
    OpConfig,
    Strategy,
    Sync,
    SyncAlgorithm,
    UpdatePlacement,
    by_name,
    cut_like,
    depths,
)
from taskflow.optimizer.space import SearchSpace, orders, place

FINEST = 1 << 20  # chunks: as many as there are holders
SYNCS = (
    MessageSync(SyncAlgorithm.OWNER, UpdatePlacement.SHARDED),
    MessageSync(SyncAlgorithm.RING, UpdatePlacement.SHARDED),
    MessageSync(SyncAlgorithm.TREE, UpdatePlacement.SHARDED),
    MessageSync(SyncAlgorithm.OWNER, UpdatePlacement.OWNER),
    MessageSync(SyncAlgorithm.TREE, UpdatePlacement.OWNER),
    MessageSync(SyncAlgorithm.TREE, UpdatePlacement.REPLICATED),
    MessageSync(SyncAlgorithm.RING, UpdatePlacement.REPLICATED),
    MessageSync(SyncAlgorithm.OWNER, UpdatePlacement.REPLICATED),
    MessageSync(SyncAlgorithm.OWNER, UpdatePlacement.SHARDED, FINEST),
    MessageSync(SyncAlgorithm.RING, UpdatePlacement.SHARDED, FINEST),
    CollectiveSync(UpdatePlacement.REPLICATED),
    CollectiveSync(UpdatePlacement.SHARDED),
)


class OperatorGroups:
    """Groups of operators that belong together. What is made of weights alone belongs to none: it is where it is read."""

    def __init__(self, graph: OperatorGraph) -> None:
        self.nodes = {node.name: node for node in graph}
        chosen = [node for node in graph if not node.of_weights]
        self.layer = self._grouped(chosen, lambda n: n.parameters[0].name if n.parameters else n.name)
        self.alike = self._grouped(chosen, lambda n: (n.operator, n.specs, len(n.parameters)))
        depth = depths(graph)
        self.depth = self._grouped(chosen, lambda n: depth[n.name])
        self._cuts: dict[tuple[str, tuple[int, ...], str], Cut | None] = {}
        self.neighbours: dict[str, list[str]] = {node.name: [] for node in chosen}
        for node in chosen:
            for tensor in node.inputs:
                other = graph.producer(tensor).name
                if not graph.producer(tensor).of_weights and other not in self.neighbours[node.name]:
                    self.neighbours[node.name].append(other)
                    self.neighbours[other].append(node.name)

    @staticmethod
    def _grouped(graph: Sequence[Node], key: Callable[[Node], object]) -> dict[str, tuple[str, ...]]:
        """Operator -> the operators with the same key, itself included."""
        groups: dict[object, list[str]] = {}
        for node in graph:
            groups.setdefault(key(node), []).append(node.name)
        return {name: tuple(groups[key(node)]) for node in graph for name in (node.name,)}

    def spread(self, name: str, config: OpConfig, to: Sequence[str]) -> dict[str, OpConfig]:
        """Return ``name``'s configuration for other operators, as far as their dimensions allow."""
        return {other: self.follow(name, config, other) for other in to}

    def follow(self, name: str, config: OpConfig, other: str) -> OpConfig:
        """Return the same as the function of this name, with degrees cached."""
        key = (name, config.degrees, other)
        if key not in self._cuts:
            source, target = self.nodes[name].dims, self.nodes[other].dims
            self._cuts[key] = cut_like(target, by_name(target, source), config.degrees) if source != target else None
        found = self._cuts[key]
        return OpConfig(found[0], tuple([config.processors[k] for k in found[1]])) if found else config

    def distinct(self, table: Mapping[str, tuple[str, ...]]) -> list[tuple[str, ...]]:
        """Yield each group once, in program order of its first operator."""
        return list(dict.fromkeys(table.values()))


@dataclass(slots=True)
class Move:
    """Proposal. ``kind``: index of the pair of target and action that made it."""

    kind: int
    changes: dict[str, OpConfig]
    syncs: dict[str, Sync] = field(default_factory=dict)


class Moves:
    """Generator of moves for the current strategy."""

    TARGETS = ("one", "layer", "alike", "depth", "stretch")
    ACTIONS = ("random", "tweak", "neighbour")

    def __init__(self, graph: OperatorGraph, space: SearchSpace, random: Random) -> None:
        self.space, self.random = space, random
        self.groups = OperatorGroups(graph)
        self._tables = {"layer": self.groups.layer, "alike": self.groups.alike, "depth": self.groups.depth}
        self.names = [node.name for node in graph if not node.of_weights]
        self._place = {name: i for i, name in enumerate(self.names)}
        self.layers = sorted({p.layer for p in graph.parameters})
        self.critical: Sequence[str] = ()
        kinds = len(self.TARGETS) * len(self.ACTIONS) + 1
        self._wins, self._tries = [1.0] * kinds, [1.0] * kinds
        self._weights = [0.02 + 1.0] * (kinds - 1) + [0.02 + 1.0 if self.layers else 0.0]
        self._kinds = range(kinds)

    def draw(self, strategy: Strategy) -> Move:
        """Return a move from ``strategy``; it may change nothing."""
        kind = self._kind()
        target, action = divmod(kind, len(self.ACTIONS))
        if target == len(self.TARGETS):
            return self._sync(kind)
        name = self._operator()
        config = self._act(self.ACTIONS[action], name, strategy)
        if self.TARGETS[target] == "one":
            return Move(kind, {name: config})
        if self.TARGETS[target] == "stretch":
            return Move(kind, self.groups.spread(name, config, self._stretch(name)))
        return Move(kind, self.groups.spread(name, config, self._tables[self.TARGETS[target]][name]))

    def _stretch(self, name: str) -> list[str]:
        """The operator and some that come just before or after it in program order."""
        at, length = self._place[name], 1 << self.random.randrange(1, 6)
        start = max(0, at - self.random.randrange(length))
        return self.names[start : start + length]

    def learn(self, move: Move, better: bool) -> None:
        """Record whether a move made the strategy faster; older experience counts less."""
        self._tries[move.kind] = self._tries[move.kind] * 0.99 + 1
        self._wins[move.kind] = self._wins[move.kind] * 0.99 + better
        self._weights[move.kind] = 0.02 + self._wins[move.kind] / self._tries[move.kind]

    def _kind(self) -> int:
        return self.random.choices(self._kinds, self._weights)[0]

    def _operator(self) -> str:
        if self.critical and self.random.random() < 0.5:
            return self.critical[self.random.randrange(len(self.critical))]
        return self.names[self.random.randrange(len(self.names))]

    def _sync(self, kind: int) -> Move:
        layer = self.layers[self.random.randrange(len(self.layers))]
        return Move(kind, {}, {layer: SYNCS[self.random.randrange(len(SYNCS))]})

    def _act(self, action: str, name: str, strategy: Strategy) -> OpConfig:
        neighbours = self.groups.neighbours[name]
        if action == "neighbour" and neighbours:
            other = neighbours[self.random.randrange(len(neighbours))]
            return self.groups.follow(other, strategy[other], name)
        if action == "tweak":
            return self._tweak(name, strategy[name])
        return self.space[name].draw(self.random)

    def _tweak(self, name: str, config: OpConfig) -> OpConfig:
        """Another degree in one dimension, a factor moved between dimensions, or other processors."""
        random, n = self.random, self.space.processors
        choice = random.randrange(4)
        if choice == 0:  # the same pieces elsewhere
            shift = random.randrange(n)
            return OpConfig(config.degrees, tuple((p + shift) % n for p in config.processors))
        if choice == 1:  # two pieces, or a piece and an idle processor, swapped
            places = list(config.processors)
            i, other = random.randrange(len(places)), random.randrange(n)
            if other in places:
                places[places.index(other)] = places[i]
            places[i] = other
            return OpConfig(config.degrees, tuple(places))
        tuples = self.space[name].tuples
        near = _near(config.degrees, tuples, choice == 2)
        degrees = near[random.randrange(len(near))] if near else tuples[random.randrange(len(tuples))]
        strides = self.space[name].strides(prod(degrees))
        return place(
            degrees, n, config.processors[0], strides[random.randrange(len(strides))], random.randrange(orders(degrees))
        )


def _near(degrees: Sequence[int], tuples: Sequence[tuple[int, ...]], same_pieces: bool) -> list[tuple[int, ...]]:
    """Tuples that differ in one degree, or in two with the same number of pieces."""
    if same_pieces:
        pieces = prod(degrees)
        return [t for t in tuples if prod(t) == pieces and sum(a != b for a, b in zip(t, degrees)) == 2]
    return [t for t in tuples if sum(a != b for a, b in zip(t, degrees)) == 1]
