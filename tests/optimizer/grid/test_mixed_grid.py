"""The grid of unequal devices: how layers and samples are dealt, which devices stand where, what it finds, what is said."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product
from math import inf
from random import Random

import pytest
from unequal_machines import two_kinds

from taskflow.graph import OperatorGraph
from taskflow.machine import Cluster, load_machine
from taskflow.mapper import HybridParallel, HybridPlan, map_graph, parse_plan
from taskflow.models.gpt import GPTConfig, gpt
from taskflow.optimizer import MemoryCheck, make_evaluator, search
from taskflow.optimizer.evaluate.evaluator import PythonEvaluator
from taskflow.optimizer.explain import uneven_pieces
from taskflow.optimizer.grid import (
    GraphTables,
    MixedGrid,
    PlanGrid,
    PlanPrices,
    PlanSums,
    PricedPlan,
    best_of_grid,
    descend,
    kendall,
    make_grid,
)
from taskflow.optimizer.grid.dealing import deal_layers, deal_samples, in_stages
from taskflow.optimizer.grid.mixed_price import MixedPrices
from taskflow.optimizer.grid.places import PlacesOf
from taskflow.optimizer.space import kinds_of
from taskflow.rules import Adam

RULE = Adam()


def decoder(layers: int = 6, batch: int = 16) -> OperatorGraph:
    sizes = replace(GPTConfig.small(), batch=batch, layers=layers, steps=256, hidden=512, heads=4, vocabulary=512)
    return gpt(sizes, "float16")


@cache
def two_kinds_of_devices() -> tuple[OperatorGraph, Cluster, MixedGrid]:
    """Six layers on two kinds of devices, and their grid, which looks at all its plans once for all tests that ask for them."""
    graph, machine = decoder(), two_kinds()
    grid = make_grid(graph, machine, RULE)
    assert isinstance(grid, MixedGrid)
    return graph, machine, grid


@cache
def every_plan() -> tuple[list[PricedPlan], int]:
    """What the grid of `two_kinds_of_devices` finds."""
    return two_kinds_of_devices()[2].plans()


# ---- dealing ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("seed", range(40))
def test_layers_are_dealt_so_that_the_slowest_rank_is_as_fast_as_can_be(seed: int) -> None:
    random = Random(seed)
    ranks, virtual = random.randint(1, 3), random.randint(1, 2)
    layers = random.randint(ranks * virtual, 9)
    each = [random.uniform(0.5, 3.0) for _ in range(ranks)]
    ends = random.uniform(0, 3), random.uniform(0, 3)
    most = [random.choice((layers, random.randint(1, layers))) for _ in range(ranks)]

    def slowest(counts: tuple[int, ...]) -> float:
        besides = [ends[0] * (r == 0) + ends[1] * (r == ranks - 1) for r in range(ranks)]
        return max(b + n * s for b, n, s in zip(besides, counts, each))

    every = [
        counts for counts in product(range(virtual, layers + 1), repeat=ranks)
        if sum(counts) == layers and all(n <= m for n, m in zip(counts, most))
    ]
    found = deal_layers(layers, each, ends, virtual, most)
    assert (found is None) == (not every)
    if found is not None:
        assert tuple(found) in every and slowest(tuple(found)) == pytest.approx(min(map(slowest, every)))
        stages = in_stages(found, virtual)
        assert [sum(stages[r::ranks]) for r in range(ranks)] == found and min(stages) > 0


@pytest.mark.parametrize("seed", range(60))
def test_samples_are_dealt_by_speed_within_bounds(seed: int) -> None:
    random = Random(seed)
    kinds = [(random.uniform(0.3, 3.0), random.randint(1, 20)) for _ in range(random.randint(1, 2))]
    of = [random.choice(kinds) for _ in range(random.randint(1, 5))]
    speeds, most = [s for s, _ in of], [m for _, m in of]
    total = random.randint(1, 24)
    found = deal_samples(total, speeds, most)
    assert (found is None) == (total < len(of) or sum(most) < total)
    if found is None:
        return
    assert sum(found) == total and all(1 <= n <= m for n, m in zip(found, most))
    if len(of) <= 3:
        every = [n for n in product(*(range(1, m + 1) for m in most)) if sum(n) == total]
        least = min(max(n / s for n, s in zip(one, speeds)) for one in every)
        assert max(n / s for n, s in zip(found, speeds)) <= least + 1 / min(speeds)  # largest remainders: within a sample


# ---- places ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("size", "ranks"), [(1, 1), (1, 2), (2, 2), (1, 4), (4, 2), (2, 4), (1, 8)])
def test_every_device_has_one_place_and_groups_lie_in_a_node(size: int, ranks: int) -> None:
    machine = load_machine("a100-v100")
    places = PlacesOf(machine, kinds_of(machine))
    found = list(places.layouts(size, ranks))
    assert found
    for one in found:
        devices = [p for rank in one.groups for group in rank for p in group]
        assert len(set(devices)) == len(devices) and len(one.groups) == ranks
        assert all(len(group) == size and len({machine.processors[p].node for p in group}) == 1 for r in one.groups for group in r)
        plan = HybridPlan(tensor=size, pipeline=ranks, data=len(one.groups[0]), devices=places.named(one))
        assert places.of(plan) == one
    whole = [one for one in found if len(one.groups[0]) * size * ranks == 8]
    by_rank = [one for one in whole if all(len(set(kinds)) == 1 for kinds in one.kinds)]
    assert ranks == 1 or by_rank  # stages on one kind each
    if ranks * size <= 4:
        assert any(all(len(set(kinds)) == 1 for kinds in zip(*one.kinds)) for one in whole)  # replicas of one kind each
    if ranks == 2:
        assert {one.kinds[0][0] for one in by_rank} >= {0, 1}  # either kind may come first


# ---- plans -----------------------------------------------------------------------------------------------------------
def test_plans_are_valid_and_the_price_ranks_them() -> None:
    graph, machine, _ = two_kinds_of_devices()
    assert isinstance(make_grid(graph, load_machine("a100", 2), RULE), PlanGrid)
    plans, count = every_plan()
    assert count >= len(plans) > 100
    evaluator = make_evaluator(graph, machine, rule=RULE)
    random, pairs = Random(1), []
    for one in [plans[0], *random.sample(plans, 8)]:
        plan = one.plan
        assert one.micro_batches * plan.samples_a_pass == 16
        pairs.append((one.seconds, evaluator.set(map_graph(HybridParallel(one.plan), graph, machine))))
    assert kendall(pairs) > 0.5
    assert sum(bool(one.plan.shares) for one in plans) > 10
    stages = [one.plan for one in plans if one.plan.pipeline == 2 and one.plan.data == 2]
    by_kind = next(plan for plan in stages if plan.stages and not plan.shares and plan.virtual == 1)
    assert max(by_kind.stages) >= 4  # of six layers, on devices three times as fast


def test_the_price_of_equal_devices_is_the_grids() -> None:
    """Where a second kind is as fast and large as the first, plans whose ranks are a node each have the prices of `PlanGrid`."""
    graph, machine = decoder(), two_kinds(compute=1.0)
    mixed, plain = MixedGrid(graph, machine, RULE), PlanGrid(graph, machine, RULE)
    for text in ((1, 1, 4, 4, 0), (1, 2, 2, 4, 0), (2, 2, 1, 4, 0), (2, 1, 2, 2, 1), (1, 2, 2, 2, 3)):
        t, p, d, mb, zero = text
        plan = HybridPlan(tensor=t, pipeline=p, data=d, micro_batch=mb, zero=zero)
        count = 16 // (d * mb)
        assert mixed.prices(plan, count) == pytest.approx(plain.prices(plan, count), rel=1e-6)
        assert mixed.memory(plan, count).nbytes == pytest.approx(plain.memory(plan, count).nbytes)


def test_neighbours_keep_the_devices_and_divide() -> None:
    graph, machine, grid = two_kinds_of_devices()
    for plan in (HybridPlan(data=4, shares=(6, 6, 2, 2)), HybridPlan(pipeline=2, data=2, micro_batch=2, stages=(4, 2))):
        found = list(grid.neighbours(plan))
        assert len(found) > 5
        assert all(one.devices == plan.devices and 16 % one.samples_a_pass == 0 for one in found)
        assert all(not one.pipeline > 1 or one.stages for one in found)
        for one in found[::3]:
            map_graph(HybridParallel(one), graph, machine)
    shares = {one.shares for one in grid.neighbours(HybridPlan(data=4, shares=(6, 6, 2, 2)))}
    assert {(3, 3, 1, 1), (5, 6, 3, 2), (7, 7, 1, 1)} <= shares


def fitting(machine: Cluster, graph: OperatorGraph, grid: MixedGrid | PlanGrid) -> tuple[HybridPlan | None, float]:
    evaluator = make_evaluator(graph, machine, rule=RULE)
    found = best_of_grid(evaluator, MemoryCheck(evaluator), grid=grid, most=6)
    return found.best, found.seconds


def test_devices_with_half_of_the_memory_get_less() -> None:
    """What fits whole devices does not fit halves in even pieces."""
    graph, _, need = two_kinds_of_devices()
    whole = need.memory(HybridPlan(pipeline=4, data=1, micro_batch=1, stages=(2, 1, 2, 1)), 16).nbytes
    machine = two_kinds(compute=1.0, memory=0.5, nbytes=int(1.15 * whole))
    grid = MixedGrid(graph, machine, RULE)
    evaluator = make_evaluator(graph, machine, rule=RULE)
    check = MemoryCheck(evaluator)
    best, seconds = fitting(machine, graph, grid)
    assert best is not None and seconds < inf
    assert check(map_graph(HybridParallel(best), graph, machine)) == ""
    even = replace(best, stages=(), shares=(), micro_batch=best.micro_batch or 1)
    layers = dict(zip(("quick", "slow"), (0, 0)))
    for rank, kinds in enumerate(grid.places.of(best).memory):
        layers["quick" if kinds[0] == int(1.15 * whole) else "slow"] += (best.stages or (0,) * 4)[rank]
    assert best.pipeline == 1 or layers["slow"] <= layers["quick"]
    assert check(map_graph(HybridParallel(even), graph, machine)) or best.shares or best.zero or even == best


@pytest.mark.parametrize("machine", [
    two_kinds(), pytest.param(two_kinds(3, 1, compute=2.0), marks=pytest.mark.slow),
    pytest.param(two_kinds(link=20.0), marks=pytest.mark.slow),
    pytest.param(two_kinds(compute=1.0, memory=0.5), marks=pytest.mark.slow),
])
def test_the_search_is_never_worse_than_the_grid_or_plans_without_an_order(
    machine: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = decoder(layers=4, batch=12)
    monkeypatch.setattr("taskflow.optimizer.grid.plans.MEMORY_SHARE", 10.0)
    without = search(graph, machine, rule=RULE, budget="60p", seed=1)
    monkeypatch.setattr("taskflow.optimizer.grid.plans.MEMORY_SHARE", 0.0)
    found = search(graph, machine, rule=RULE, budget="120p", seed=1)
    assert "grid" in found.starts and "data by speed" in without.starts
    assert found.seconds <= min(found.starts.values()) and found.seconds <= without.seconds * 1.02
    evaluator = make_evaluator(graph, machine, rule=RULE)
    evaluator.set(found.strategy)
    said = uneven_pieces(evaluator)
    assert said is not None or not found.strategy.ordered


# ---- what is said ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("plan", "words"), [
    ("p2 d2 mb2 stages=5,1", ("5 of 6 layers", "1 of 6 layers", "with even stages and shares of samples a step takes")),
    ("d4 shares=3,3,1,1", ("3 samples of a micro-batch a replica", "1 samples of a micro-batch a replica")),
    ("p2 d2 mb2 stages=3,3", ("stages and shares of samples are even",)),
    ("d2 mb2 devices=0-1", ("2 x slow 0% (idle)", "are even")),
])
def test_what_even_stages_and_shares_cost_is_said(plan: str, words: tuple[str, ...]) -> None:
    graph, machine = decoder(), two_kinds()
    evaluator = make_evaluator(graph, machine, rule=RULE)
    plan = parse_plan(plan)
    seconds = evaluator.set(map_graph(HybridParallel(plan), graph, machine))
    gain = uneven_pieces(evaluator)
    assert gain is not None and all(word in str(gain) for word in words), str(gain)
    assert evaluator.seconds == seconds and sum(kind.share for kind in gain.kinds) == pytest.approx(1)
    if gain.now:
        even = replace(plan, stages=(), shares=(), micro_batch=2)
        reference = PythonEvaluator(graph, machine, evaluator.costs, RULE, None)
        assert gain.even_seconds == pytest.approx(reference.set(map_graph(HybridParallel(even), graph, machine)))
        assert gain.gain > 1 and gain.as_json()["gain"] == gain.gain
        short = uneven_pieces(evaluator, long=False)
        assert short is not None and "taskflow explain says" in str(short) and short.as_json()["gain"] is None


def test_descents_by_price_keep_the_devices() -> None:
    graph, machine, grid = two_kinds_of_devices()
    plans, _ = every_plan()
    assert grid.fitting == plans
    ends = descend(grid, plans, lambda: False)
    assert ends and ends == sorted(ends, key=lambda one: one.seconds)
    assert ends[0].seconds <= plans[0].seconds
    layouts = {(one.plan.devices, one.plan.tensor, one.plan.pipeline) for one in plans}
    for one in ends:
        plan = one.plan
        assert (plan.devices, plan.tensor, plan.pipeline) in layouts and 16 % plan.samples_a_pass == 0
        assert one.seconds == grid.prices(one.plan, one.micro_batches)
    best = min(ends, key=lambda one: one.seconds)
    assert make_evaluator(graph, machine, rule=RULE).set(map_graph(HybridParallel(best.plan), graph, machine)) > 0


def test_prices_of_shares_that_do_not_divide_the_batch_are_near_simulated_steps() -> None:
    """Of 64 samples 6 and 2 in two micro-batches, 12 and 4 in one, on GPUs that computing keeps busy."""
    graph = gpt(replace(GPTConfig.small(), batch=64, layers=4, steps=1024, hidden=2048, heads=16, vocabulary=512), "float16")
    machine = load_machine("a100-v100")
    grid, evaluator = make_grid(graph, machine, RULE), make_evaluator(graph, machine, rule=RULE)
    for text in ("d8 zero1 shares=6,6,6,6,2,2,2,2", "d8 zero3 shares=12,12,12,12,4,4,4,4"):
        plan = parse_plan(text)
        seconds = evaluator.set(map_graph(HybridParallel(plan), graph, machine))
        assert grid.prices(plan, 64 // plan.samples_a_pass) == pytest.approx(seconds, rel=0.05)


def test_the_grid_of_people_has_even_pieces_in_the_order_of_the_devices() -> None:
    graph, machine, _ = two_kinds_of_devices()
    even, uneven = MixedGrid(graph, machine, RULE, even=True).plans()[0], every_plan()[0]
    assert {1, 2} <= {one.plan.pipeline for one in even}
    assert not any(one.plan.shares or one.plan.stages or one.plan.devices for one in even)
    assert any(one.plan.stages for one in uneven)
    assert uneven[0].seconds < even[0].seconds


@pytest.mark.parametrize("text", ["d8 mb2", "t2 d4 mb2 zero1", "t2 d4 mb4 split=2", "t4 d2 mb4 zero3 recompute=full"])
def test_devices_that_are_equal_after_all_have_the_prices_of_equal_ones(text: str) -> None:
    machine = load_machine("h100", 8)
    sums, plan = PlanSums(GraphTables(decoder(), machine), RULE), parse_plan(text)
    mixed = MixedPrices([sums], PlacesOf(machine, [range(8)]), machine)
    count = 16 // plan.samples_a_pass
    assert mixed(plan, count) == PlanPrices(sums)(plan, count)


def test_a_framework_that_needs_whole_scores_has_tensor_groups_on_unequal_devices_too() -> None:
    graph, machine, _ = two_kinds_of_devices()
    grid = make_grid(graph, machine, RULE, lambda plan: plan.tensor == 1 or not plan.loss_parallel)
    plans = [one.plan for one in grid.usual()]
    assert any(plan.tensor == 2 for plan in plans) and all(plan.tensor == 1 or not plan.loss_parallel for plan in plans)
