"""MixedGrid: the grid of a machine of unequal devices. Stages and shares of samples are in proportion to the devices' speeds.

Devices of one kind form ranks of the pipeline, or replicas (`PlacesOf.layouts`). Layers are distributed over stages, and
samples of a micro-batch over replicas, in proportion to speed and within the memory (`dealing`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from math import inf

import numpy as np

from taskflow.graph import OperatorGraph
from taskflow.machine import Cluster, Machine, PartOfMachine
from taskflow.mapper import HybridPlan
from taskflow.optimizer.grid.dealing import deal_layers, deal_samples, in_stages
from taskflow.optimizer.grid.grid import PlanGrid
from taskflow.optimizer.grid.memory import PlanMemory
from taskflow.optimizer.grid.mixed_price import MixedPrices, of_replica
from taskflow.optimizer.grid.neighbours import neighbours, quick_neighbours
from taskflow.optimizer.grid.node_table import Array
from taskflow.optimizer.grid.places import Places, PlacesOf
from taskflow.optimizer.grid.plans import PlanAxes, powers
from taskflow.optimizer.grid.priced import AnyGrid, PricedPlan, priced_plans
from taskflow.optimizer.grid.stages import PlanSums
from taskflow.optimizer.grid.tables import GraphTables
from taskflow.optimizer.space import kinds_of, unequal
from taskflow.rules import UpdateRule

FILLED = 0.9  # of a device's memory that layers and samples are dealt to fill by the closed form
VIRTUAL = (1, 2)  # stages of a rank
ROUNDS = 4  # in which a rank gets fewer layers, or a replica fewer samples, because they do not fit


class MixedGrid(AnyGrid):
    """The grid of a machine with several kinds of device. ``even``: only plans as people lay them out for equal devices, with even
    stages and shares and the devices in their order. A search does not go on with those that it had no time for."""

    machine: Cluster
    prices: MixedPrices

    def __init__(
        self, graph: OperatorGraph, machine: Machine, rule: UpdateRule | None, takes: Callable[[HybridPlan], bool] | None = None,
        all_of_a_layer: str = "full", *, even: bool = False,
    ) -> None:
        if not isinstance(machine, Cluster):
            raise ValueError("grid: plans are priced for described machines (taskflow.machine.Cluster)")
        super().__init__(graph, machine, rule, takes)
        self.even, self.all_of_a_layer = even, all_of_a_layer
        self.axes = PlanAxes(graph, machine, all_of_a_layer)
        found = [(of, self._sums_of(of)) for of in kinds_of(machine)]
        found.sort(key=lambda one: _network_seconds(one[1]))
        self.kinds = [sums for _, sums in found]
        self.sums = self.kinds[0]
        self.places = PlacesOf(machine, [of for of, _ in found])
        self.prices = MixedPrices(self.kinds, self.places, machine)
        self._layers: dict[object, Array] = {}

    def _sums_of(self, kind: Sequence[int]) -> PlanSums:
        """Sums for a machine whose first devices are of this kind."""
        others = [processor.number for processor in self.machine.processors if processor.number not in set(kind)]
        tables = GraphTables(self.graph, PartOfMachine(self.machine, (*kind, *others)))
        return PlanSums(tables, self.rule, self.all_of_a_layer)

    # ---- plans -------------------------------------------------------------------------------------------------------
    def plans(self, over: Callable[[], bool] = lambda: False) -> tuple[list[PricedPlan], int]:
        seen: set[HybridPlan] = set()
        self.fitting, self.refused = priced_plans(self, self._every(over, seen), over)
        return self.fitting, len(seen)

    def usual(self, over: Callable[[], bool] = lambda: False) -> list[PricedPlan]:
        """Return those of these plans that fit and that people often use (`PlanAxes.unusual`)."""
        return priced_plans(self, self._every(over, set(), most=0), over)[0]

    def fitted(self, over: Callable[[], bool], known: float) -> list[PricedPlan]:
        return []  # recomputation is not chosen by memory for ranks of unequal devices

    def refitted(self, one: PricedPlan, spare: Callable[[], Sequence[float]]) -> PricedPlan | None:
        return None

    def least(self, over: Callable[[], bool] = lambda: False) -> float:
        return 0.0  # of unequal devices it is not known

    @property
    def may_fit_unordered(self) -> bool:
        return True

    def _every(
        self, over: Callable[[], bool], seen: set[HybridPlan], most: float = inf
    ) -> Iterator[tuple[HybridPlan, int]]:
        """Yield each plan once that has at most so many unusual features, with its number of micro-batches, until ``over``
        answers true. ``seen`` receives them."""
        shapes = [one for one in self._shapes() if self.axes.unusual(one[0]) <= most]
        for shape, places in sorted(shapes, key=lambda one: self.axes.unusual(one[0])):
            if over():
                return
            with suppress(ValueError):  # the network cannot be cut so
                for dealt, count in self._plans_of(shape, places):
                    if (plan := self.taken(dealt)) is not None and plan not in seen:
                        seen.add(plan)
                        yield plan, count

    def _shapes(self) -> Iterator[tuple[HybridPlan, Places]]:
        """Degrees, recomputation, sharding and devices, with stages and shares of samples left open; ``micro_batch`` is the
        mean."""
        axes = self.axes
        node = min(axes.node, *(len([p for p in self.machine.processors if p.node == n]) for n in range(self.machine.node_count)))
        for t in axes.tensor:
            for c in axes.contexts(t):
                if t * c > node:
                    continue
                for p in range(1, min(len(self.machine.processors) // (t * c), axes.layers) + 1):
                    for places in self.places.layouts(t * c, p) if p == 1 or axes.divided else ():
                        yield from self._shapes_of(t, c, p, places)

    def _shapes_of(self, t: int, c: int, p: int, places: Places) -> Iterator[tuple[HybridPlan, Places]]:
        d, devices, axes = len(places.groups[0]), self.places.named(places), self.axes
        if d > self.batch:
            return
        means = powers(self.batch // d) if axes.divided else []
        for mb in dict.fromkeys((*means, *([max(1, self.batch // d)] if p == 1 else []))):
            for v in VIRTUAL if p > 1 and 2 * p <= axes.layers else (1,):
                shape = HybridPlan(tensor=t, pipeline=p, data=d, micro_batch=mb, virtual=v, context=c, devices=devices)
                yield from ((plan, places) for plan in axes.variants(shape))

    def _plans_of(self, shape: HybridPlan, places: Places) -> Iterator[tuple[HybridPlan, int]]:
        """The plans of a shape, with samples and layers distributed."""
        d, mean = shape.data or 1, shape.micro_batch or 1
        if self.even and shape.devices:
            return
        uneven = not self.even and len(places.classes) > 1 and shape.experts == 1
        if not uneven and self.batch % (d * mean):
            return
        count = max(1, self.batch // (d * mean))
        if self.batch % count or (shape.virtual > 1 and count % shape.pipeline):
            return
        for shares in self._shares(shape, places, count) if uneven else [None]:
            plan = shape
            if shares is not None and len(set(shares)) > 1:
                plan = replace(shape, micro_batch=None, shares=shares)
            elif self.batch % (d * mean):
                continue
            dealt = plan if self.even else self.dealt(plan, count)
            if dealt is not None:
                yield dealt, count

    # ---- dealing -----------------------------------------------------------------------------------------------------
    def dealt(self, plan: HybridPlan, count: int) -> HybridPlan | None:
        """Return the plan with layers distributed over its stages by speed and within the memory; None if there are too few."""
        layers = self.sums.layers
        if plan.pipeline == 1 or layers < plan.pipeline * plan.virtual:
            return plan if plan.pipeline == 1 else None
        each, first, last = [0.0] * plan.pipeline, 0.0, 0.0
        for one in self.prices.replicas(plan):
            seconds = [self._layer_seconds(kind.sums, one.plan) for kind in one.kinds]
            middle = [float(np.median(own[1:-1])) if layers > 2 else float(own.min()) for own in seconds]
            each = [max(a, b) for a, b in zip(each, middle)]
            first = max(first, float(seconds[0][0]) - middle[0])
            last = max(last, float(seconds[-1][-1]) - middle[-1])
        most, best = [layers] * plan.pipeline, None
        for _ in range(ROUNDS):
            counts = deal_layers(layers, each, (max(0.0, first), max(0.0, last)), plan.virtual, most)
            if counts is None:
                return best
            found = replace(plan, stages=in_stages(counts, plan.virtual))
            best = best or found
            lacking = [
                (rank, need.nbytes / (FILLED * limit)) for _, rank, need, limit in self.prices.memories(found, count)
                if need.nbytes > FILLED * limit
            ]
            if not lacking:
                return found
            for rank, times in lacking:
                most[rank] = min(most[rank], max(plan.virtual, min(counts[rank] - 1, int(counts[rank] / times))))
        return best

    def _shares(self, plan: HybridPlan, places: Places, count: int) -> Iterator[tuple[int, ...]]:
        """Samples of a micro-batch by replica: in proportion to speed and, if that exceeds the memory, also within it."""
        data, total = len(places.groups[0]), self.batch // count
        mean = max(1, total // data)
        near = max(one for one in powers(mean) if one <= mean)  # a table for each size would take long
        one = of_replica(plan, near, data)
        whole = [float(self._layer_seconds(sums, one).sum()) for sums in self.kinds]
        speeds = [1 / sum(whole[kinds[j]] for kinds in places.kinds) for j in range(data)]
        most = [total] * data
        for _ in range(ROUNDS):
            shares = deal_samples(total, speeds, most)
            if shares is None:
                return
            yield shares
            plan = replace(plan, micro_batch=None, shares=shares)
            lacking: dict[int, float] = {}
            for j, _, need, limit in self.prices.memories(plan, count):
                lacking[j] = max(lacking.get(j, 0.0), need.nbytes / (FILLED * limit))
            lacking = {j: times for j, times in lacking.items() if times > 1}
            for same in places.classes:
                for j in lacking.keys() & set(same):
                    for k in same:
                        most[k] = min(most[k], max(0, min(shares[j] - 1, int(shares[j] / lacking[j]))))
            if not lacking or min(most) < 1:
                return

    def _layer_seconds(self, sums: PlanSums, plan: HybridPlan) -> Array:
        """Seconds of each layer's forward and backward passes for a micro-batch, and of the operators before the first or after
        the last."""
        level = plan.recompute_layers or plan.recompute
        key = sums, plan.tensor, plan.context, plan.experts, plan.micro_batch, level, plan.zero > 1
        if key not in self._layers:
            table, again, tables = sums.tables.of(plan), sums.again(plan), sums.tables
            each = tables.seconds(plan)
            device, host = (each[:, i] * (1 + again) + each[:, i + 2] for i in (0, 1))
            reads = table.read_seconds.sum(axis=1)
            by = sums.layer_of
            moved = np.bincount(by[tables.read_node], reads, sums.layers)
            self._layers[key] = np.maximum(
                np.bincount(by, device, sums.layers) + moved, np.bincount(by, host, sums.layers)
            )
        return self._layers[key]

    # ---- what the search asks ----------------------------------------------------------------------------------------
    def memory(self, plan: HybridPlan, count: int) -> PlanMemory:
        needs = self.prices.memories(plan, count)
        _, _, need, limit = max(needs, key=lambda one: one[2].nbytes / one[3])
        return need.times(self.memory_bytes / limit)

    def neighbours(self, plan: HybridPlan) -> Iterator[HybridPlan]:
        return self._on_the_same(plan, neighbours(plan, self.sums, self.batch, self.axes.node))

    def quick_neighbours(self, plan: HybridPlan) -> Iterator[HybridPlan]:
        return self._on_the_same(plan, quick_neighbours(plan, self.sums, self.batch))

    def _on_the_same(self, plan: HybridPlan, found: Iterable[HybridPlan]) -> Iterator[HybridPlan]:
        """Those that use the same devices, with layers distributed where their stages are open; then other shares of samples."""
        return self.all_taken(chain(self._dealt_anew(plan, found), self._other_shares(plan)), plan)

    def _dealt_anew(self, plan: HybridPlan, found: Iterable[HybridPlan]) -> Iterator[HybridPlan]:
        same = plan.tensor, plan.context, plan.pipeline, plan.data or len(plan.shares)
        for new in found:
            if (new.tensor, new.context, new.pipeline, new.data or len(new.shares)) != same:
                continue
            if new.pipeline > 1 and not new.stages:
                dealt = self.dealt(new, self.batch // new.samples_a_pass)
                if dealt is not None:
                    yield dealt
                continue
            yield new

    def _other_shares(self, plan: HybridPlan) -> Iterator[HybridPlan]:
        """Shares twice and half as large for every replica, and those with one sample moved between unlike replicas."""
        shares = plan.shares
        if not shares:
            return
        found = [tuple(2 * share for share in shares)]
        if not any(share % 2 for share in shares):
            found.append(tuple(share // 2 for share in shares))
        alike: dict[object, list[int]] = {}
        places = self.places.of(plan)
        for j, key in enumerate(zip(*places.kinds, *places.memory, shares)):
            alike.setdefault(key, []).append(j)
        for giver, givers in alike.items():
            for taker, takers in alike.items():
                if giver == taker:
                    continue
                for given, taken in ((givers[:1], takers[:1]), (givers, takers)):
                    other, rest = divmod(len(given), len(taken))
                    new = list(shares)
                    for j in given:
                        new[j] -= 1
                    for j in taken:
                        new[j] += other
                    if not rest and min(new) > 0:
                        found.append(tuple(new))
        for new_shares in dict.fromkeys(found):
            if self.batch % sum(new_shares) == 0:
                yield replace(plan, shares=new_shares)


def _network_seconds(sums: PlanSums) -> float:
    """Seconds of one sample on one device, as a measure of its kind's speed."""
    try:
        table = sums.tables.of(HybridPlan(micro_batch=1, data=1))
    except ValueError:
        return 0.0
    return float(np.maximum(table.seconds[:, 0] + table.seconds[:, 2], table.seconds[:, 1] + table.seconds[:, 3]).sum())


def make_grid(
    graph: OperatorGraph, machine: Machine, rule: UpdateRule | None, takes: Callable[[HybridPlan], bool] | None = None,
    all_of_a_layer: str = "full",
) -> AnyGrid:
    """Return a `PlanGrid`, or a `MixedGrid` if devices are of several kinds. ``takes``: which plans it has at all.
    ``all_of_a_layer``: how its plans compute all of a layer again, ``full``, or ``whole`` for a program that knows no early stop.
    Raises ValueError if the machine is not described."""
    if unequal(machine):
        return MixedGrid(graph, machine, rule, takes, all_of_a_layer)
    return PlanGrid(graph, machine, rule, takes, all_of_a_layer)
