"""Annealing over layers: moves that place whole layers (`taskflow.optimizer.space.layers`) on device groups
(`taskflow.optimizer.space.device_groups`).

A network has far fewer layers than operators, and few placements suit the machine's hierarchy, so this finds good regions
quickly. Afterwards the operators of a layer are searched separately (`taskflow.optimizer.algorithms.guided`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import inf, isinf, prod
from random import Random
from time import perf_counter

import numpy as np

from taskflow.graph import Node, OperatorGraph
from taskflow.machine import Machine
from taskflow.mapper import OpConfig, Strategy, Sync
from taskflow.operators.operator import Soap
from taskflow.optimizer.algorithms.initial import with_syncs
from taskflow.optimizer.algorithms.moves import SYNCS
from taskflow.optimizer.algorithms.splitmix import acceptance_limit
from taskflow.optimizer.budget import BudgetPart
from taskflow.optimizer.session import SearchSession
from taskflow.optimizer.space import (
    DeviceGroup,
    Layer,
    OperatorSpace,
    SearchSpace,
    Spreads,
    on_team,
    orders,
    repaired,
    teams,
)
from taskflow.optimizer.traffic import Loads, Vector

# Hybrids: sample-parallel plans in which layers with many weights are cut in other dimensions too, as their loads suggest.
# On a hierarchical machine it matters which processors are neighbours in the samples' order. Take a layer that is cut into
# groups of pieces: those of a group read the same samples, and each holds another part of the weights. Groups within a node
# exchange samples cheaply, but hold whole weights on every node. Groups spread over the nodes synchronise only half or a
# quarter of the weights on every node, and have a part of what they read. So every order of the machine's processors gives a
# different plan.
MOST_ORDERS = 8  # of a machine's processors
PASSES = 2  # over the layers: what one takes may change what is best for another


def hybrids(
    graph: OperatorGraph, machine: Machine, space: SearchSpace, layers: Sequence[Layer], loads: Loads, over: Callable[[], bool]
) -> Iterator[Strategy]:
    """Return a plan for each order of all processors, with the best cuts by `Loads`; nothing is simulated. Layers with weights
    are decided one after another, those with the most weights first. When ``over`` returns true, the plan is returned as far as
    it is."""
    count = len(machine.processors)
    # Those dealt around the largest groups first: the natural order is the known strategies'.
    orders = [team for team in reversed(teams(machine)) if len(team) == count][:MOST_ORDERS]
    heaviest = sorted((layer for layer in layers if layer.weights), key=lambda layer: layer.weight_bytes, reverse=True)
    for number, team in enumerate(orders):
        if over():
            return
        spreads = Spreads()
        configs: dict[str, OpConfig] = {}
        for layer in layers:
            leader = layer.leaders[0]
            samples = max(_cuts(space[leader], count), key=lambda degrees: _samples(leader, degrees))
            configs.update(spreads(layer, on_team(samples, team[: prod(samples)])))
        before: Vector | None = None  # the loads of these configurations
        for layer in heaviest * PASSES:
            if over():
                break
            if before is None:
                before = loads.of(configs)
            if changes := _best(layer, configs, before, team, space, loads, spreads, over):
                configs |= changes
                before = None
        yield with_syncs(Strategy(count, configs, {}, f"hybrid {number}"), graph, machine)


def _best(
    layer: Layer, configs: dict[str, OpConfig], before: Vector, team: Sequence[int], space: SearchSpace, loads: Loads,
    spreads: Spreads, over: Callable[[], bool],
) -> dict[str, OpConfig]:
    """The configurations of a layer with which the busiest processor and the busiest link together do least, of those that
    there is time to look at; none if those it has do. ``before``: the loads of ``configs``."""
    count, leader = len(team), layer.leaders[0]
    best: dict[str, OpConfig] = {}
    least = before[:count].max() + before[count:].max(initial=0.0)
    for degrees in _cuts(space[leader], count):
        if over():
            break
        changes = spreads(layer, on_team(degrees, team[: prod(degrees)]))
        after = loads.after(before, configs, changes)
        busy = after[:count].max() + after[count:].max(initial=0.0)
        if busy < least:
            best, least = changes, busy
    return best


def _cuts(space: OperatorSpace, pieces: int) -> Sequence[tuple[int, ...]]:
    """Those that a hybrid is made of: samples, and outputs, rows or columns beside them."""
    return space.cuts(pieces, dimensions=2, contracted=False, nearest=True)


def _samples(node: Node, degrees: Sequence[int]) -> int:
    return prod(d for d, dim in zip(degrees, node.dims) if dim.soap is Soap.SAMPLE)


MANY_PROCESSORS = 8  # from here on orders of devices differ enough to be compared
MANY_TASKS = 3000  # of a step that takes longer to simulate than its loads to add up
DRAWN = (1, 2, 4, 8, 16)  # from so many moves the one with the lowest loads is simulated
ENOUGH = 4  # loads and simulations, to compare how long they take
SURE = 0.95  # loads are at most this much too high
TARGETS = ("one", "alike", "stretch", "all", "split")
ACTIONS = ("team", "shift", "recut", "copy", "deal", "sync")
SIMPLE = 4  # times as often simple cuts are drawn besides all cuts
MOST_PER_LAYER = 200  # proposals of one annealing
MOST_NOTHING = 1000  # moves one after another that change nothing: then there is nothing to change


class LayerAnnealing:
    """Random moves of layers; kinds of moves that helped are drawn more often. ``shapes``: the device groups to draw from, in
    lists as for `taskflow.optimizer.algorithms.layer_descent.LayerDescent`."""

    def __init__(
        self, run: SearchSession, space: SearchSpace, layers: Sequence[Layer], shapes: Sequence[Sequence[DeviceGroup]],
        random: Random,
    ) -> None:
        self.run, self.space, self.layers, self.random = run, space, layers, random
        self.teams: dict[int, list[DeviceGroup]] = {}
        for team in (team for shape in shapes for team in shape):
            self.teams.setdefault(len(team), []).append(team)
        self._sizes = sorted(self.teams)
        self._spread = Spreads()
        self._alike: dict[object, list[Layer]] = {}
        for layer in self.layers:
            self._alike.setdefault(self._kind(layer), []).append(layer)
        self._made: list[Loads | None] = []
        self._adding, self._simulating = [0.0, 0.0], [0.0, 0.0]  # seconds, and how often
        self._measured: tuple[object, np.ndarray] = (None, np.zeros(0))  # type: ignore[type-arg]
        few = space.processors < MANY_PROCESSORS  # whose orders differ little
        self._actions = tuple(action for action in ACTIONS if action != "deal" or not few)
        kinds = len(TARGETS) * len(self._actions)
        self._wins, self._tries = [1.0] * kinds, [1.0] * kinds

    @property
    def _loads(self) -> Loads | None:
        """Worked out when they are first needed."""
        if not self._made:
            self._made.append(_loads(self.run))
        return self._made[0]

    def hybrids(self, part: BudgetPart) -> None:
        """Try `hybrids` while its share of the budget lasts."""
        if self._loads is not None:
            self.run.enter("hybrids")
            evaluator = self.run.evaluator
            for plan in hybrids(evaluator.graph, evaluator.machine, self.space, self.layers, self._loads, lambda: part.expired):
                self.run.try_set(plan)

    def anneal(self, part: BudgetPart, temperature: float) -> None:
        """Anneal from the current strategy until the share of the budget is spent. ``temperature``: at the start, as a fraction
        of the best time."""
        self.run.enter("layers")
        nothing = 0
        last = self.run.proposals + MOST_PER_LAYER * len(self.layers)
        while not part.expired and nothing < MOST_NOTHING and self.run.proposals < last:
            scale = self.run.best_seconds * temperature * (1 - part.used) ** 2
            limit, before = acceptance_limit(self.run.seconds, scale, self.random), self.run.seconds
            kind, changes, syncs = self._promising(limit)
            if not changes and not syncs:
                nothing += 1
                continue
            nothing = 0
            begin = perf_counter()
            accepted = self.run.propose(changes, limit, syncs)
            self._simulating = [self._simulating[0] + perf_counter() - begin, self._simulating[1] + 1]
            self._tries[kind] = self._tries[kind] * 0.99 + 1
            self._wins[kind] = self._wins[kind] * 0.99 + (accepted and self.run.seconds < before)

    def _promising(self, limit: float) -> tuple[int, dict[str, OpConfig], dict[str, Sync]]:
        """A move; where simulating takes longer than adding up loads, of several the one with the lowest, if any can be below
        the limit."""
        if self.run.evaluator.tasks < MANY_TASKS or self._loads is None or not self._worth():
            return self._move()
        current = self.run.strategy
        if self._measured[0] is not current:
            self._measured = (current, self._loads.of(current.configs))
        best, found = inf, (0, dict[str, OpConfig](), dict[str, Sync]())
        for _ in range(self.random.choice(DRAWN)):
            kind, changes, syncs = self._move()
            if syncs:
                return kind, changes, syncs
            if changes:
                begin = perf_counter()
                loads = self._loads.after(self._measured[1], current.configs, changes)
                self._adding = [self._adding[0] + perf_counter() - begin, self._adding[1] + 1]
                processors, links = loads[: self.space.processors].max(), loads[self.space.processors :].max(initial=0.0)
                if max(processors, links) * SURE <= limit and processors + links < best:
                    best, found = processors + links, (kind, changes, syncs)
        return found

    def _worth(self) -> bool:
        """Return whether loads have been quicker to add up than plans to simulate, by what both took so far. With a budget of
        proposals, that must not depend on a time: then they always are."""
        if isinf(self.run.options.budget.seconds):
            return True
        (adding, loads), (simulating, plans) = self._adding, self._simulating
        return min(loads, plans) < ENOUGH or adding / loads < simulating / plans

    def _move(self) -> tuple[int, dict[str, OpConfig], dict[str, Sync]]:
        """The number of its kind, and what it changes."""
        weights = [0.05 + w / t for w, t in zip(self._wins, self._tries)]
        kind = self.random.choices(range(len(weights)), weights)[0]
        drawn, syncs = self._draw(*divmod(kind, len(self._actions)))
        changes = repaired(self.run.permitted, drawn, self.run.row) if self.run.permitted or self.run.row else drawn
        current = self.run.strategy
        return (
            kind, {name: c for name, c in changes.items() if current[name] != c},
            {name: s for name, s in syncs.items() if current.sync(name) != s},
        )

    @staticmethod
    def _kind(layer: Layer) -> object:
        return (layer.leaders[0].operator, layer.leaders[0].specs)

    # ---- what a move changes -------------------------------------------------------------------------------------
    def _draw(self, target: int, action: int) -> tuple[dict[str, OpConfig], dict[str, Sync]]:
        at = self.random.randrange(len(self.layers))
        chosen = self._targets(TARGETS[target], at)
        if self._actions[action] == "sync":
            sync = SYNCS[self.random.randrange(len(SYNCS))]
            return {}, {name: sync for layer in chosen for name in layer.weights}
        if self._actions[action] == "deal":
            return self._dealt(self.layers[at], chosen), {}
        team, degrees = self._wanted(self.layers[at], self._actions[action])
        config = self._config(self.layers[at], team, degrees)
        changes: dict[str, OpConfig] = {}
        rest: Sequence[int] = ()
        if TARGETS[target] == "split":  # the others share the processors that this leaves
            taken = set(team)
            rest = [p for p in range(self.space.processors) if p not in taken]
        for layer in self.layers if rest else ():
            if layer not in chosen:
                changes.update(self._spread(layer, self._config(layer, rest, self._samples(layer, len(rest)))))
        for layer in chosen:
            own = config
            if layer is not self.layers[at]:
                own = self._config(layer, team, layer.like(self.layers[at], config.degrees))
            changes.update(self._spread(layer, own))
        return changes, {}

    def _dealt(self, layer: Layer, chosen: Sequence[Layer]) -> dict[str, OpConfig]:
        """Layers on as many processors as this one keep their cuts, and all take the processors of one team in its order."""
        count = len(set(self.run.strategy[layer.leaders[0].name].processors))
        team = self._some(self.teams[count]) if count in self.teams else ()
        changes: dict[str, OpConfig] = {}
        for other in chosen if team else ():
            current = self.run.strategy[other.leaders[0].name]
            if len(set(current.processors)) == len(current.processors) == count:
                changes.update(self._spread(other, on_team(current.degrees, team)))
        return changes

    def _targets(self, target: str, at: int) -> Sequence[Layer]:
        if target == "all":
            return self.layers
        if target == "alike":
            return self._alike[self._kind(self.layers[at])]
        if target == "stretch" or (target == "split" and self.random.random() < 0.5):
            length = self.random.randint(2, max(2, len(self.layers) // 2))
            start = max(0, at - self.random.randrange(length))
            return self.layers[start : start + length]
        return self.layers[at : at + 1]

    def _wanted(self, layer: Layer, action: str) -> tuple[Sequence[int], tuple[int, ...]]:
        """A team, and the cut over it (empty: any)."""
        current = self.run.strategy[layer.leaders[0].name]
        same = tuple(dict.fromkeys(current.processors))
        if action == "recut":
            return same, ()
        if action == "shift" and len(same) in self.teams:
            return self._some(self.teams[len(same)]), current.degrees
        if action == "copy":
            other = self.layers[self.random.randrange(len(self.layers))].leaders[0]
            return tuple(dict.fromkeys(self.run.strategy[other.name].processors)), ()
        return self._some(self.teams[self._sizes[self.random.randrange(len(self._sizes))]]), ()

    def _some(self, among: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        return among[self.random.randrange(len(among))]

    @staticmethod
    def _samples(layer: Layer, pieces: int) -> tuple[int, ...]:
        """A cut of the samples alone."""
        return tuple(pieces if dim.soap is Soap.SAMPLE else 1 for dim in layer.leaders[0].dims)

    def _config(self, layer: Layer, team: Sequence[int], degrees: tuple[int, ...]) -> OpConfig:
        """A configuration on a team with this cut, or with any one if the layer cannot have this one."""
        found = self.space[layer.leaders[0]].cuts(len(team), nearest=True)
        if degrees not in found:
            degrees = self._drawn(layer, found)
        return on_team(degrees, team[: prod(degrees)], self.random.randrange(orders(degrees)))

    def _drawn(self, layer: Layer, found: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        """Any of the cuts; those of one or two dimensions, none of them contracted, some `SIMPLE` times as often as all others."""
        few = self.space[layer.leaders[0]].cuts(prod(found[0]), dimensions=2, contracted=False)
        again = len(few) * (SIMPLE * len(found) // max(1, len(few)))  # of them, each as often, behind all
        number = self.random.randrange(len(found) + again) - len(found)
        return found[number] if number < 0 else few[number % len(few)]


def _loads(run: SearchSession) -> Loads | None:
    """None where loads are not to be had or take longer than they save."""
    if not 8 <= len(run.evaluator.machine.processors) <= 256 or run.evaluator.repetition is not None:
        return None
    try:
        return Loads(run.evaluator, run.go_on, run.strategy.sums)
    except TypeError:  # costs of whole tasks only
        return None
