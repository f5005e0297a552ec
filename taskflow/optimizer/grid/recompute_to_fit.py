"""Recomputation that fits: how many layers of each stage compute how much again, and how many layers each stage has, such that
the slowest rank is as fast as memory permits. Some frameworks compute the same number of first layers of each stage again, or
the same of all layers.

Layers are alike. So each level of recomputation saves the same bytes in every layer, for the same seconds. A rank takes the
levels with the most seconds for their bytes first, until its memory is full. A later rank keeps fewer micro-batches, so it
recomputes less, and gets more layers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from itertools import cycle, islice
from math import inf

import numpy as np

from taskflow.mapper import HybridPlan
from taskflow.optimizer.grid.dealing import in_stages
from taskflow.optimizer.grid.memory import kept_at_once, memory_of_plan, rank_memories
from taskflow.optimizer.grid.neighbours import layers_of_stages
from taskflow.optimizer.grid.node_table import Array
from taskflow.optimizer.grid.priced import AnyGrid, PricedPlan
from taskflow.optimizer.grid.stages import PlanSums, StageSums

LIMIT = 0.9  # of the memory; closed forms leave out most short-lived arrays
Counts = tuple[tuple[int, ...], ...]  # by stage of a rank, how many layers have each level


@dataclass(frozen=True, slots=True)
class _Level:
    """A level of recomputation: what a layer takes of a micro-batch, and keeps."""

    name: str
    seconds: float
    nbytes: float


@dataclass(frozen=True, slots=True)
class _Rank:
    """A rank, without its layers. ``alive`` (moments, stages): micro-batches that each of its stages keeps; ``fixed``: bytes
    besides layers; ``ends``: of each stage, bytes that a micro-batch keeps besides layers; ``seconds``: of a micro-batch."""

    alive: Array
    fixed: float
    ends: Array
    seconds: float


def fitted(
    grid: AnyGrid, over: Callable[[], bool], known: float = inf, most: int = 200
) -> list[PricedPlan]:
    """Return plans with as much recomputed as memory requires, the cheapest first. Looks at all degrees of the grid, whether they
    fit or not, the quickest without recomputation first, until none can be faster than the plans found or ``known`` seconds, or
    ``most`` were looked at. ``over``: whether to end. Nothing if a framework recomputes only as plans of the grid do."""
    found: list[PricedPlan] = []
    best: dict[int, float] = {}  # by stage of ZeRO: prices of one stage are off alike, those of two are not
    looked = Counter[int]()
    for shape in _shapes(grid):
        if over():
            break
        kind = shape.plan.zero
        if looked[kind] >= most or shape.seconds >= min(known, best.get(kind, inf)):
            continue
        if not looked[kind] and _form(grid, shape.plan) is None:
            break
        looked[kind] += 1
        one = fit(grid, shape.plan, shape.micro_batches)
        if one is not None and grid.takes(one.plan):
            found.append(one)
            best[kind] = min(best.get(kind, inf), one.seconds)
    return sorted(found, key=lambda one: (one.seconds, str(one.plan)))


def _shapes(grid: AnyGrid) -> list[PricedPlan]:
    """The plans of the grid without recomputation, whether they fit or not, by price."""
    plain = [one for one in (*grid.fitting, *grid.refused) if one.plan.recompute == "none"]
    prices = grid.prices.price([(one.plan, one.micro_batches) for one in plain])
    return sorted((replace(one, seconds=price) for one, price in zip(plain, prices)), key=lambda one: one.seconds)


def fit(
    grid: AnyGrid, plan: HybridPlan, micro_batches: int, limits: Sequence[float] = ()
) -> PricedPlan | None:
    """Return the plan with these degrees whose slowest rank is as fast as can be, of those that fit and that the grid takes.
    ``limits``: by rank, the bytes that it may need in closed form; if not given, `LIMIT` of the memory. None if none fits."""
    sums, plan = grid.sums, replace(plan, recompute_layers=(), recompute="none")
    if not sums.layers or (form := _form(grid, plan)) is None:
        return None
    return form(grid, plan, micro_batches, limits or (LIMIT * grid.memory_bytes,) * plan.pipeline)


_Form = Callable[[AnyGrid, HybridPlan, int, Sequence[float]], PricedPlan | None]


def _form(grid: AnyGrid, plan: HybridPlan) -> _Form | None:
    """How layers of a plan may recompute: each as it likes, the same number of first ones of each stage, or all alike. None: all
    alike, and only as plans of the grid do."""
    if grid.takes(replace(plan, recompute_layers=tuple(islice(cycle(grid.sums.levels), grid.sums.layers)))):
        return _each_layer
    if grid.takes(_first_again(grid.sums, plan, 1)):
        return _first_layers
    others = set(grid.sums.levels).difference(grid.sums.axes.recompute)
    return _all_alike if any(grid.takes(replace(plan, recompute=level)) for level in others) else None


def _first_again(sums: PlanSums, plan: HybridPlan, many: int) -> HybridPlan:
    """The plan in which so many first layers of each stage compute all of a layer again."""
    whole = sums.all_of_a_layer
    levels = tuple(whole if i < many else "none" for count in layers_of_stages(plan, sums) for i in range(count))
    if len(set(levels)) == 1:
        return replace(plan, recompute=levels[0], recompute_layers=())
    return replace(plan, recompute_layers=levels)


def _first_layers(grid: AnyGrid, plan: HybridPlan, micro_batches: int, limits: Sequence[float]) -> PricedPlan | None:
    """`fit` where a framework computes the same number of first layers of each stage again."""

    def lacks(many: int) -> bool:
        memories = rank_memories(grid.sums, _first_again(grid.sums, plan, many), micro_batches)
        return any(memory.nbytes > limit for memory, limit in zip(memories, limits))

    most = max(layers_of_stages(plan, grid.sums))
    if (many := bisect_left(range(most + 1), True, key=lambda many: not lacks(many))) > most:
        return None
    return _priced(grid, _first_again(grid.sums, plan, many), micro_batches)


def _all_alike(grid: AnyGrid, plan: HybridPlan, micro_batches: int, limits: Sequence[float]) -> PricedPlan | None:
    """`fit` where a framework recomputes the same of all layers."""
    taken = filter(grid.takes, (replace(plan, recompute=level) for level in grid.sums.levels))
    fitting = [
        _priced(grid, one, micro_batches) for one in taken
        if all(of.nbytes <= limit for of, limit in zip(rank_memories(grid.sums, one, micro_batches), limits))
    ]
    return min(fitting, key=lambda one: one.seconds, default=None)


def _each_layer(grid: AnyGrid, plan: HybridPlan, micro_batches: int, limits: Sequence[float]) -> PricedPlan | None:
    """`fit` where each layer may compute another part again."""
    sums = grid.sums
    counts = layers_of_stages(plan, sums)
    each = _levels(plan, sums, counts)
    ranks = _ranks(plan, sums, counts, micro_batches, each)
    dealt = _dealt(plan, sums, counts, ranks, limits, each)
    if dealt is None:
        return None
    stages: list[tuple[int, ...]] = [()] * len(counts)
    for rank, some in enumerate(dealt):
        for stage, of in zip(plan.schedule.stages(rank, plan.pipeline, plan.virtual), some):
            stages[stage] = of
    levels = tuple(each.levels[i].name for of in stages for i, many in enumerate(of) for _ in range(many))
    new = tuple(sum(of) for of in stages)
    even = new == layers_of_stages(replace(plan, stages=()), sums)
    found = replace(plan, recompute_layers=levels, stages=() if even else new)
    if len(set(levels)) == 1:
        found = replace(found, recompute_layers=(), recompute=levels[0])
    return _priced(grid, found, micro_batches)


def _priced(grid: AnyGrid, plan: HybridPlan, micro_batches: int) -> PricedPlan:
    return PricedPlan(plan, micro_batches, grid.prices(plan, micro_batches), memory_of_plan(grid.sums, plan, micro_batches))


def refitted(grid: AnyGrid, one: PricedPlan, spare: Sequence[float]) -> PricedPlan | None:
    """Return the plan that differs from one in that each rank uses all of its memory, as far as is known from what was planned for
    that one: ``spare`` bytes by processor are left, negative if they lack. None if that is the same, or no better."""
    of_rank = len(spare) // one.plan.pipeline
    limits = [
        memory.nbytes + min(spare[rank * of_rank : (rank + 1) * of_rank])
        for rank, memory in enumerate(rank_memories(grid.sums, one.plan, one.micro_batches))
    ]
    found = fit(grid, one.plan, one.micro_batches, limits)
    if found is None or found.plan == one.plan or not grid.takes(found.plan):
        return None
    return found if min(spare) < 0 or found.seconds < one.seconds else None


@dataclass(frozen=True, slots=True)
class _Each:
    """Figures of one layer: its levels, those with the fewest bytes first, and bytes of weights, gradients and state.
    ``passing``: bytes that live within a pass, by stage."""

    levels: tuple[_Level, ...]
    weights: float
    passing: Array


def _seconds(found: StageSums) -> Array:
    """Seconds of both passes of each stage."""
    ahead = np.maximum(found.seconds[:, 0] + found.sums[:, 0], found.seconds[:, 1])
    return ahead + np.maximum(found.seconds[:, 2] + found.sums[:, 1], found.seconds[:, 3])  # type: ignore[no-any-return]


def _held(plan: HybridPlan, sums: PlanSums) -> Array:
    weights = sums.weights(plan)
    return weights.held + weights.gradients + weights.state  # type: ignore[no-any-return]


def _at(plan: HybridPlan, level: str) -> HybridPlan:
    return replace(plan, recompute=level)


def _levels(plan: HybridPlan, sums: PlanSums, counts: Sequence[int]) -> _Each:
    """What a layer takes and keeps at each level: without recomputation, the difference that one more layer makes to a stage;
    of the others, the difference to that."""
    at = max(range(len(counts)), key=counts.__getitem__)
    uniform = {level: sums.sums(_at(plan, level)) for level in sums.levels}
    plain, many = uniform["none"], counts[at]
    seconds, nbytes, weights = 0.0, 0.0, 0.0
    if len(counts) > 1 and many > 1:
        stages = list(counts)
        stages[at] -= 1
        stages[at - 1 if at else 1] += 1
        other = replace(plan, stages=tuple(stages))
        moved = sums.sums(other)
        seconds = float(_seconds(plain)[at] - _seconds(moved)[at])
        nbytes = float(plain.kept[at] - moved.kept[at])
        weights = float(_held(plan, sums)[at] - _held(other, sums)[at])
    levels = [
        _Level(
            name, seconds + float(_seconds(one)[at] - _seconds(plain)[at]) / many,
            nbytes + float(one.kept[at] - plain.kept[at]) / many,
        )
        for name, one in uniform.items()
    ]  # fmt: skip
    return _Each(_hull(levels), weights, np.max([one.passing for one in uniform.values()], axis=0))


def _hull(levels: Sequence[_Level]) -> tuple[_Level, ...]:
    """The levels that are worth their bytes: each saves more seconds for its bytes beyond the one before than the next."""
    found: list[_Level] = []
    for one in sorted(levels, key=lambda one: (one.nbytes, one.seconds)):
        if found and one.seconds >= found[-1].seconds:
            continue
        while len(found) > 1 and _worth(found[-1], one) >= _worth(found[-2], found[-1]):
            found.pop()
        found.append(one)
    return tuple(found)


def _worth(one: _Level, other: _Level) -> float:
    return (one.seconds - other.seconds) / max(1.0, other.nbytes - one.nbytes)


def _ranks(
    plan: HybridPlan, sums: PlanSums, counts: Sequence[int], micro_batches: int, each: _Each
) -> list[_Rank]:
    plain = next(one for one in each.levels if one.name == "none")
    passes, weights = sums.sums(plan), sums.weights(plan)
    held, seconds, passing = _held(plan, sums), _seconds(passes), weights.gathered + weights.reduced
    found: list[_Rank] = []
    for rank in range(plan.pipeline):
        own = plan.schedule.stages(rank, plan.pipeline, plan.virtual)
        many = np.array([counts[stage] for stage in own])
        found.append(_Rank(
            kept_at_once(plan, micro_batches, rank),
            float(held[own].sum() - many.sum() * each.weights + passing[own].max() + each.passing[own].max()),
            passes.kept[own] - many * plain.nbytes, float(seconds[own].sum() - many.sum() * plain.seconds),
        ))  # fmt: skip
    return found


def _mix(rank: _Rank, many: Sequence[int], limit: float, each: _Each) -> tuple[float, Counts] | None:
    """Return seconds of a micro-batch on a rank with so many layers in each stage, and the levels of these; None if they do not
    fit."""
    least, *more = each.levels
    room = limit - rank.fixed - sum(many) * each.weights - rank.alive @ (rank.ends + np.array(many) * least.nbytes)
    if room.min() < 0:
        return None
    counts = [[count, *[0] * len(more)] for count in many]
    seconds = rank.seconds + sum(many) * least.seconds
    order = sorted(range(len(many)), key=lambda stage: (rank.alive[:, stage].max(), -stage))
    for i, (worse, better) in enumerate(zip(each.levels, more)):
        every = True
        for stage in order:
            step = rank.alive[:, stage] * (better.nbytes - worse.nbytes)
            there = counts[stage][i]
            takes = min(there, int(np.min(room[step > 0] / step[step > 0], initial=there)))
            counts[stage][i] -= takes
            counts[stage][i + 1] += takes
            room = room - takes * step
            seconds += takes * (better.seconds - worse.seconds)
            every = every and takes == there
        if not every:
            break
    return seconds, tuple(map(tuple, counts))


def _dealt(
    plan: HybridPlan, sums: PlanSums, counts: Sequence[int], ranks: Sequence[_Rank], limits: Sequence[float], each: _Each
) -> list[Counts] | None:
    """Deal layers to ranks, each to the one that then takes the least time. None if they do not fit."""
    if plan.pipeline == 1 or sums.layers < plan.pipeline * plan.virtual or not each.weights:
        some = [
            _mix(rank, [counts[s] for s in plan.schedule.stages(r, plan.pipeline, plan.virtual)], limits[r], each)
            for r, rank in enumerate(ranks)
        ]
        return None if None in some else [one[1] for one in some if one is not None]

    def at(rank: int, many: int) -> tuple[float, Counts] | None:
        split = [many // plan.virtual + (chunk < many % plan.virtual) for chunk in range(plan.virtual)]
        return _mix(ranks[rank], split, limits[rank], each)

    now = [at(rank, plan.virtual) for rank in range(plan.pipeline)]
    have = [plan.virtual] * plan.pipeline
    queue = []
    for rank in range(plan.pipeline):
        if (more := at(rank, have[rank] + 1)) is not None:
            queue.append((more[0], rank, more[1]))
    heapify(queue)
    for _ in range(sums.layers - sum(have)):
        if not queue:
            return None
        seconds, rank, levels = heappop(queue)
        now[rank], have[rank] = (seconds, levels), have[rank] + 1
        if (more := at(rank, have[rank] + 1)) is not None:
            heappush(queue, (more[0], rank, more[1]))
    if None in now or len(in_stages(have, plan.virtual)) != len(counts):
        return None
    return [one[1] for one in now if one is not None]
