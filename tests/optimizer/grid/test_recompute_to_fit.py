"""Recomputation that fits: as much as memory requires on each rank, and no more; held against enumeration and planned peaks."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from taskflow.machine import Cluster, load_machine
from taskflow.mapper import HybridParallel, HybridPlan, PipelineSchedule, map_graph
from taskflow.models.llama import LlamaConfig, llama
from taskflow.optimizer import MemoryCheck, make_evaluator
from taskflow.optimizer.grid import PlanGrid, fit, fitted, layers_of_stages, memory_of_plan, rank_memories
from taskflow.rules import Adam

RULE = Adam()


def grid(batch: int = 16, layers: int = 8, devices: int = 4, memory: int | None = None) -> PlanGrid:
    """Of a network of which a layer takes milliseconds."""
    sizes = replace(LlamaConfig.small(), batch=batch, layers=layers, steps=2048, hidden=2048, inner=5632, vocabulary=32_000)
    return PlanGrid(llama(replace(sizes, heads=16, key_heads=4), "bfloat16"), machine(devices, memory), RULE)


def machine(devices: int, memory: int | None) -> Cluster:
    made = load_machine("h100", devices)
    if memory is None:
        return made
    return replace(made, kinds=tuple(replace(kind, memory_bytes=memory) for kind in made.kinds))


def slowest(one: PlanGrid, plan: HybridPlan) -> float:
    """Seconds of both passes of the slowest rank, of one micro-batch."""
    found = one.sums.sums(plan)
    seconds = found.seconds[:, 0] + found.seconds[:, 2] + found.sums.sum(axis=1)
    own = (plan.schedule.stages(rank, plan.pipeline, plan.virtual) for rank in range(plan.pipeline))
    return max(float(seconds[stages].sum()) for stages in own)


@pytest.mark.parametrize("plan", [HybridPlan(data=4, micro_batch=2, zero=1), HybridPlan(data=4, micro_batch=1, zero=3)])
def test_of_one_stage_no_mixture_that_fits_is_faster(plan: HybridPlan) -> None:
    one = grid(layers=5)
    count = 16 // plan.samples_a_pass
    whole = [memory_of_plan(one.sums, replace(plan, recompute=level), count).nbytes for level in ("full", "none")]
    for share in (0.1, 0.35, 0.6, 0.85):
        limit = whole[0] + share * (whole[1] - whole[0])
        found = fit(one, plan, count, [limit])
        assert found is not None and found.memory.nbytes <= limit
        other = [
            slowest(one, replace(plan, recompute_layers=tuple(sorted(levels)))) for levels in product(one.sums.masks, repeat=5)
            if list(levels) == sorted(levels)
            and memory_of_plan(one.sums, replace(plan, recompute_layers=levels), count).nbytes <= limit
        ]  # fmt: skip
        all_alike = [slowest(one, replace(plan, recompute=level)) for level in one.sums.masks]
        step = max(all_alike) - min(all_alike)
        assert slowest(one, found.plan) <= min(other) + step / 5  # whole layers: less than one layer from the best
    assert fit(one, plan, count, [0.98 * whole[0]]) is None
    everything = fit(one, plan, count, [1.01 * whole[1]])
    assert everything is not None and everything.plan.recompute == "none" and not everything.plan.recompute_layers


@pytest.mark.parametrize("plan", [
    HybridPlan(pipeline=4, data=1, micro_batch=1), HybridPlan(pipeline=2, data=2, micro_batch=1, zero=1),
    HybridPlan(pipeline=2, data=2, micro_batch=1, virtual=2),
    HybridPlan(pipeline=2, data=2, micro_batch=1, virtual=2, schedule=PipelineSchedule.ZERO_BUBBLE_V),
])  # fmt: skip
def test_each_rank_of_a_pipeline_fits_and_the_slowest_is_no_slower_than_with_the_same_for_all(plan: HybridPlan) -> None:
    one, count = grid(layers=24), 16 // plan.samples_a_pass
    of_level = {
        level: memory_of_plan(one.sums, replace(plan, recompute=level), count).nbytes for level in one.sums.masks
    }
    limit = 0.6 * of_level["full"] + 0.4 * of_level["none"]
    found = fit(one, plan, count, [limit] * plan.pipeline)
    assert found is not None
    assert all(memory.nbytes <= limit for memory in rank_memories(one.sums, found.plan, count))
    same = [slowest(one, replace(plan, recompute=level)) for level, nbytes in of_level.items() if nbytes <= limit]
    assert slowest(one, found.plan) < min(same)
    assert found.seconds == one.prices(found.plan, count)
    levels, counts = found.plan.levels_of(24), layers_of_stages(found.plan, one.sums)
    assert sum(counts) == 24 and len(levels) == 24
    if plan.virtual == 1:  # the last rank keeps the fewest micro-batches
        first, last = levels[: counts[0]], levels[-counts[-1] :]
        assert sum(level == "full" for level in first) / len(first) >= sum(level == "full" for level in last) / len(last)


def test_fitted_plans_fit_and_are_quicker_than_the_grids() -> None:
    scarce = grid(memory=4_000_000_000)
    plans, _ = scarce.plans()
    found = fitted(scarce, lambda: False)
    assert found == sorted(found, key=lambda one: one.seconds)
    assert all(one.memory.nbytes <= 0.9 * scarce.memory_bytes for one in found)
    assert found[0].seconds < min(one.seconds for one in plans if one.memory.nbytes <= 0.9 * scarce.memory_bytes)
    assert fitted(scarce, lambda: True) == []


@pytest.mark.parametrize("plan", [
    HybridPlan(data=4, micro_batch=1, zero=1), HybridPlan(pipeline=2, data=2, micro_batch=1, virtual=2),
    HybridPlan(pipeline=2, data=2, micro_batch=1, stages=(3, 5)),
])  # fmt: skip
def test_where_only_first_layers_of_stages_recompute_as_few_do_as_memory_requires(plan: HybridPlan) -> None:
    """As in Megatron-LM (`first_again`); a framework that knows all or none is offered no plan."""
    free, count = grid(), 16 // plan.samples_a_pass
    dealt = layers_of_stages(plan, free.sums)

    def first(many: int) -> HybridPlan:
        levels = tuple("full" if i < many else "none" for layers in dealt for i in range(layers))
        return replace(plan, recompute_layers=levels) if len(set(levels)) > 1 else replace(plan, recompute=levels[0])

    known = [first(many) for many in range(max(dealt) + 1)]
    one = PlanGrid(free.graph, free.machine, RULE, lambda plan: not plan.recompute_layers or plan in known)
    needs = [memory_of_plan(one.sums, of, count).nbytes for of in known]
    assert needs == sorted(needs, reverse=True)
    for many, nbytes in enumerate(needs):
        found = fit(one, plan, count, [nbytes] * plan.pipeline)
        assert found is not None and found.plan == known[many] and found.memory.nbytes == nbytes
    assert fit(one, plan, count, [0.99 * needs[-1]] * plan.pipeline) is None
    def all_or_none(plan: HybridPlan) -> bool:
        return not plan.recompute_layers and plan.recompute in ("none", "full")

    alike = PlanGrid(free.graph, machine(4, 4_000_000_000), RULE, all_or_none)
    alike.plans()
    assert fit(alike, plan, count, [needs[0]] * plan.pipeline) is None and fitted(alike, lambda: False) == []


def test_where_all_layers_recompute_the_same_words_count_that_the_grid_does_not_have() -> None:
    """As in torchtitan, which has none, every other product, and whole layers; without the second nothing is left."""
    known = ("none", "alternate", "full")

    def of(levels: tuple[str, ...]) -> PlanGrid:
        return PlanGrid(grid().graph, machine(4, None), RULE, lambda plan: not plan.recompute_layers and plan.recompute in levels)

    free, plan = of(known), HybridPlan(data=4, micro_batch=2, zero=3)
    needed = {level: memory_of_plan(free.sums, replace(plan, recompute=level), 2).nbytes for level in known}
    assert needed["none"] > needed["alternate"] > needed["full"]
    for level, nbytes in needed.items():
        found = fit(free, plan, 2, [nbytes])
        assert found is not None and found.plan == replace(plan, recompute=level) and found.seconds == free.prices(found.plan, 2)
    assert fit(free, plan, 2, [0.99 * needed["full"]]) is None and fit(of(("none", "full")), plan, 2) is None


def test_what_is_fitted_in_closed_form_is_near_what_is_planned() -> None:
    """So that one or two simulations fill the memory; and `spare` says what is left of it."""
    one = grid(batch=8, layers=6)
    plan, count = HybridPlan(pipeline=2, data=2, micro_batch=1), 4
    whole = [memory_of_plan(one.sums, replace(plan, recompute=w), count).nbytes for w in ("full", "none")]
    found = fit(one, plan, count, [sum(whole) / 2] * 2)
    assert found is not None and len(set(found.plan.levels_of(6))) > 1
    evaluator = make_evaluator(one.graph, one.machine, rule=RULE)
    check, strategy = MemoryCheck(evaluator), map_graph(HybridParallel(found.plan), one.graph, one.machine)
    evaluator.set(strategy)
    peaks, planned = check.peaks(strategy)
    assert planned and found.memory.nbytes == pytest.approx(max(peaks), rel=0.2)
    assert check.spare(strategy) == [one.memory_bytes - nbytes for nbytes in peaks]
