"""The grid: its plans all divide, its closed forms hold against planned memory and simulated steps, and its best is the best."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache
from math import isnan
from random import Random

import pytest

from taskflow.graph import OperatorGraph
from taskflow.machine import Cluster, load_machine
from taskflow.mapper import HybridParallel, HybridPlan, PipelineSchedule, Strategy, map_graph, parse_plan, samples
from taskflow.models import build
from taskflow.models.gpt import GPTConfig, gpt
from taskflow.models.llama import LlamaConfig, llama
from taskflow.models.moe import MoEConfig, moe
from taskflow.optimizer import Deadline, MemoryCheck, make_evaluator
from taskflow.optimizer.grid import (
    MARGIN,
    Pace,
    PlanAxes,
    PlanGrid,
    best_of_grid,
    has_no_order,
    kendall,
    memory_of_plan,
    no_grid,
    passes_seconds,
)
from taskflow.optimizer.grid.grid import PlanTrial, soon_first
from taskflow.optimizer.grid.neighbours import neighbours, quick_neighbours
from taskflow.optimizer.grid.price import begun_sooner
from taskflow.optimizer.memory import memory_use
from taskflow.rules import Adam

RULE = Adam()


def network(name: str = "gpt", batch: int = 8) -> OperatorGraph:
    """Wide enough for activations and weights to count, and of few tasks."""
    if name == "llama":
        sizes = replace(LlamaConfig.small(), batch=batch, layers=4, steps=64, hidden=64, inner=160, vocabulary=512)
        return llama(sizes, "bfloat16")
    if name == "moe":
        return moe(replace(MoEConfig.small(), batch=batch), "bfloat16")
    return gpt(replace(GPTConfig.small(), batch=batch, layers=4, steps=64, hidden=64, vocabulary=512), "bfloat16")


@cache
def machine(devices: int = 4) -> Cluster:
    return load_machine("h100", devices)


@cache
def grid(name: str = "gpt", batch: int = 8, devices: int = 4) -> PlanGrid:
    return PlanGrid(network(name, batch), machine(devices), RULE)


def filled(graph: OperatorGraph, plan: HybridPlan, devices: int) -> tuple[HybridPlan, int]:
    """A plan with all that it leaves open, and its micro-batches."""
    data = plan.data or devices // (plan.tensor * plan.context * plan.pipeline)
    each = samples(graph) // data
    micro_batch = plan.micro_batch or each
    return replace(plan, data=data, micro_batch=micro_batch), each // micro_batch


@pytest.mark.parametrize("name", ["gpt", "moe"])
def test_all_plans_divide_and_map(name: str) -> None:
    graph = network(name)
    plans = list(PlanAxes(graph, machine()).plans())
    assert len(plans) == len(set(plans)) > 100
    assert max(Counter(plan for plan, _ in plans).values()) == 1
    for plan, count in plans:
        assert plan.tensor * plan.context * plan.pipeline * (plan.data or 1) == 4
        assert count * (plan.micro_batch or 1) * (plan.data or 1) == samples(graph)
    for plan, count in Random(1).sample(plans, 12):
        strategy = map_graph(HybridParallel(plan), graph, machine())
        assert (strategy.pipeline.micro_batches if strategy.pipeline else 1) == count
    axes = {field: {getattr(plan, field) for plan, _ in plans} for field in (
        "tensor", "pipeline", "data", "micro_batch", "virtual", "zero", "recompute", "context", "experts")}  # fmt: skip
    assert axes["tensor"] == axes["data"] == {1, 2, 4}
    assert axes["pipeline"] == ({1, 2} if name == "moe" else {1, 2, 4})  # of two layers
    assert axes["zero"] == {0, 1, 2, 3} and axes["recompute"] >= {"none", "full"}
    assert axes["experts"] == ({1, 2, 4} if name == "moe" else {1})
    assert axes["virtual"] >= {1, 2} or name == "moe"


def test_networks_that_take_no_micro_batches_have_plans_without() -> None:
    plans = list(PlanAxes(build("ResNet-101", batch=8, preset="small"), machine()).plans())
    assert plans and {plan.pipeline for plan, _ in plans} == {1} and {count for _, count in plans} == {1}


@pytest.mark.parametrize(("name", "plan"), [
    ("gpt", HybridPlan(tensor=2, pipeline=2, micro_batch=1)),
    ("gpt", HybridPlan(pipeline=4, micro_batch=1, recompute="full")),
    ("gpt", HybridPlan(pipeline=2, micro_batch=1, virtual=2, recompute="selective")),
    ("gpt", HybridPlan(pipeline=2, micro_batch=2, schedule=PipelineSchedule.GPIPE)),
    ("llama", HybridPlan(tensor=2, micro_batch=2, zero=1)),
    ("llama", HybridPlan(tensor=2, pipeline=2, micro_batch=1, recompute="light")),
    ("llama", HybridPlan(pipeline=4, micro_batch=1, recompute="whole")),
    ("gpt", HybridPlan(tensor=2, pipeline=2, micro_batch=1, recompute="whole")),
    ("llama", HybridPlan(micro_batch=1, zero=2)),
    ("llama", HybridPlan(micro_batch=1, zero=3)),
    ("llama", HybridPlan(context=2, pipeline=2, micro_batch=1)),
    ("moe", HybridPlan(experts=2, micro_batch=1)),
])  # fmt: skip
def test_the_closed_form_of_memory_is_near_the_planned_memory_and_never_far_above(name: str, plan: HybridPlan) -> None:
    one = grid(name)
    plan, count = filled(one.graph, plan, 4)
    evaluator = make_evaluator(one.graph, machine(), rule=RULE)
    strategy = map_graph(HybridParallel(plan), one.graph, machine())
    evaluator.set(strategy)
    peaks, planned = MemoryCheck(evaluator).peaks(strategy)
    assert planned
    estimate = memory_of_plan(one.sums, plan, count).nbytes
    assert estimate <= (1 + MARGIN) * max(peaks)
    assert estimate >= 0.6 * max(peaks)


@pytest.mark.parametrize("words", ["", "zero1", "zero2", "zero3", "recompute=full"])
def test_with_one_micro_batch_no_gradients_live_where_most_does(words: str) -> None:
    """Each is summed, used and freed while what the forward pass has kept goes."""
    graph = llama(replace(LlamaConfig.small(), batch=8, layers=8, steps=256, hidden=64, inner=128, vocabulary=64), "bfloat16")
    own, evaluator = PlanGrid(graph, machine(), RULE), make_evaluator(graph, machine(), rule=RULE)
    for text, held in ((f"d4 mb2 {words}", False), (f"d4 mb1 {words}", True)):
        plan, count = filled(graph, parse_plan(text), 4)
        need = memory_of_plan(own.sums, plan, count)
        assert (need.gradients > 0) == held
        peaks, planned = MemoryCheck(evaluator).peaks(map_graph(HybridParallel(plan), graph, machine()))
        assert planned and need.nbytes == pytest.approx(max(peaks), rel=0.2)


@pytest.mark.parametrize("words", ["d8 mb1 zero3 recompute=full", "d8 mb1 zero2", "p2 d4 mb1 v2 zero3 recompute=full"])
def test_gradients_of_many_experts_are_whole_until_they_are_summed_by_shares(words: str) -> None:
    graph = moe(replace(MoEConfig.small(), batch=16, layers=4, experts=64, hidden=64, inner=256), "bfloat16")
    own, evaluator = PlanGrid(graph, machine(8), RULE), make_evaluator(graph, machine(8), rule=RULE)
    plan, count = filled(graph, parse_plan(words), 8)
    peaks, planned = MemoryCheck(evaluator).peaks(map_graph(HybridParallel(plan), graph, machine(8)))
    need, whole = memory_of_plan(own.sums, plan, count).nbytes, float(own.sums.weights(plan).reduced.max())
    assert planned and 0.6 * max(peaks) <= need <= (1 + MARGIN) * max(peaks)
    assert whole > 0.1 * max(peaks)


@pytest.mark.parametrize("words", ["", "zero1"])
def test_closed_forms_know_what_is_gathered_again(words: str) -> None:
    """What is not kept, and what it costs to bring it a second time, as in the planned and simulated step."""
    graph = llama(replace(LlamaConfig.small(), batch=8, layers=8, steps=2048, hidden=64, inner=128, vocabulary=64), "bfloat16")
    own, evaluator = PlanGrid(graph, machine(), RULE), make_evaluator(graph, machine(), rule=RULE)
    memory, seconds, planned, simulated = [], [], [], []
    for text in (f"t2 d2 mb1 {words}", f"t2 d2 mb1 regather {words}"):
        plan, count = filled(graph, parse_plan(text), 4)
        strategy = map_graph(HybridParallel(plan), graph, machine())
        memory.append(memory_of_plan(own.sums, plan, count).nbytes)
        seconds.append(own.prices(plan, count))
        simulated.append(evaluator.set(strategy))
        tasks, timeline = evaluator.evaluated(strategy)  # the whole step: a folded one may be said to need 3 % more
        planned.append(max(use.nbytes for use in memory_use(tasks, timeline.begun(tasks))))
    saved, really = memory[0] - memory[1], planned[0] - planned[1]
    assert 0.5 * saved <= really <= 1.1 * saved  # of two layers there are both when the most lives
    assert saved > 0
    assert seconds[1] - seconds[0] >= 0 and simulated[1] - simulated[0] <= 1.2 * (seconds[1] - seconds[0]) + 1e-2 * seconds[0]


def test_searches_may_gather_again() -> None:
    for plan in ("t2 p2 d1 mb1", "t2 p1 d2 mb2 zero1"):
        plan, _ = filled(network(), parse_plan(plan), 4)
        for found in (neighbours(plan, grid().sums, 8, 4), quick_neighbours(plan, grid().sums, 8)):
            again = [one for one in found if one.regather]
            assert again and all(one.tensor > 1 for one in again)
        (other,) = [one for one in quick_neighbours(again[0], grid().sums, 8) if one == plan]
        assert other == plan


def test_weights_gradients_and_state_are_counted_exactly() -> None:
    """With two bytes a weight, four a gradient, and 12 of Adam's state and the copy of the weight."""
    one = grid("llama", devices=4)
    weights = sum(p.spec.rect.volume for p in one.graph.parameters)
    for zero, held, gradients, state in ((0, 2, 4, 12), (1, 2, 4, 3), (2, 2, 1, 3), (3, 0.5, 1, 3)):
        memory = memory_of_plan(one.sums, *filled(one.graph, HybridPlan(micro_batch=1, zero=zero), 4))
        assert memory.gradients == pytest.approx(gradients * weights)
        assert memory.state == pytest.approx(state * weights)
        assert held * weights <= memory.weights <= 2 * weights


@pytest.mark.parametrize("plan", [
    HybridPlan(tensor=2, pipeline=2, micro_batch=1), HybridPlan(pipeline=2, micro_batch=1, virtual=2),
    HybridPlan(micro_batch=2, recompute="full"), HybridPlan(), HybridPlan(micro_batch=2, zero=1),
])
def test_the_quick_price_is_near_the_simulated_step(plan: HybridPlan) -> None:
    one = grid("llama")
    plan, count = filled(one.graph, plan, 4)
    seconds = make_evaluator(one.graph, machine(), rule=RULE).set(map_graph(HybridParallel(plan), one.graph, machine()))
    assert one.prices(plan, count) == pytest.approx(seconds, rel=0.2)


def test_passes_of_equal_stages_have_the_textbook_bubble() -> None:
    for ranks, count in ((2, 4), (4, 8)):
        assert passes_seconds([1.0] * ranks, [2.0] * ranks, count, 0.0, ranks=ranks) == pytest.approx(3.0 * (count + ranks - 1))
    interleaved = passes_seconds([0.5] * 4, [1.0] * 4, 8, 0.0, ranks=2)
    assert interleaved == pytest.approx(3.0 * 8 + 1.5)  # half of the bubble
    zero_bubble = passes_seconds([1.0] * 4, [2.0] * 4, 8, 0.0, ranks=4, schedule=PipelineSchedule.ZERO_BUBBLE)
    assert 24.0 < zero_bubble < 3.0 * (8 + 3)


def test_many_micro_batches_are_reckoned_as_they_would_be() -> None:
    one = grid("llama", batch=64)
    plan, count = filled(one.graph, HybridPlan(pipeline=4, micro_batch=1), 4)
    ahead, back, message, _ = one.prices._passes(plan, *one.prices.replicas(plan), count)
    whole = passes_seconds(list(ahead), list(back), count, message, ranks=4)
    rest = one.prices._after(plan, *one.prices.replicas(plan), ahead, back) - begun_sooner(one.prices.sums, plan, count)
    assert one.prices(plan, count) == pytest.approx(whole + rest, rel=1e-9)


def test_the_best_of_the_grid_is_the_best_of_all_that_were_simulated() -> None:
    one = grid("llama", batch=4, devices=2)
    evaluator = make_evaluator(one.graph, machine(2), rule=RULE)
    found = best_of_grid(evaluator, MemoryCheck(evaluator), most=5, grid=one)
    assert found.best is not None and found.strategy is not None
    assert len(found.simulated) == 5 <= found.fitting <= found.plans
    assert found.seconds == min(seconds for _, seconds in found.simulated) == evaluator.set(found.strategy)
    assert -1 <= found.tau <= 1
    assert found.as_json()["simulated"] == 5
    again = best_of_grid(make_evaluator(one.graph, machine(2), rule=RULE), most=5, grid=one)
    assert (again.best, again.seconds) == (found.best, found.seconds)


def test_plans_that_do_not_fit_are_not_simulated() -> None:
    graph = network("llama")
    small = tiny(machine(), 2_000_000)
    one = PlanGrid(graph, small, RULE)
    plans, count = one.plans()
    assert 0 < len(plans) < count and len(plans) + len(one.refused) == count
    assert all(plan.memory.nbytes > (1 + MARGIN) * 2_000_000 for plan in one.refused)
    evaluator = make_evaluator(graph, small, rule=RULE)
    found = best_of_grid(evaluator, room := MemoryCheck(evaluator), most=3, grid=one)
    assert found.strategy is None or not room(found.strategy)


def tiny(machine: Cluster, nbytes: int) -> Cluster:
    """The machine with so little memory on each device."""
    return replace(machine, kinds=tuple(replace(kind, memory_bytes=nbytes) for kind in machine.kinds))


def test_the_time_that_there_is_ends_simulations() -> None:
    one = grid("llama")
    one.plans()
    deadline = Deadline(0.0)
    evaluator = make_evaluator(one.graph, machine(), rule=RULE)
    assert best_of_grid(evaluator, deadline=deadline, grid=one, must=False).simulated == ()
    assert best_of_grid(evaluator, deadline=deadline, grid=one, until=0.0).simulated == ()
    assert len(best_of_grid(evaluator, deadline=deadline, grid=one).simulated) == 1  # a plan must be, and prices are known


def test_until_a_plan_fits_those_come_first_for_which_there_is_time() -> None:
    """The others follow the first that fits; where none fits, those come first that take least."""
    one = grid("llama")
    plans = one.plans()[0][:6]
    evaluator = make_evaluator(one.graph, machine(), rule=RULE)

    def order(fits: int, left: float) -> list[int]:
        trial, found = PlanTrial(evaluator, lambda strategy: "", lambda: False), []
        monkeypatch = pytest.MonkeyPatch()
        monkeypatch.setattr(trial, "work", lambda plan, _: [9, 2, 8, 1, 7, 3][[p.plan for p in plans].index(plan)])
        trial.pace = Pace(1.0, 1.0)
        for plan in soon_first(iter(plans), trial, lambda: left):
            found.append(plans.index(plan))
            if found[-1] == fits:
                trial.best = plan.plan
        return found

    assert order(fits=3, left=5.0) == [1, 3, 0, 2, 4, 5]
    assert order(fits=-1, left=5.0) == [1, 3, 5, 4, 2, 0]
    assert order(fits=-1, left=10.0) == [0, 1, 2, 3, 4, 5]


def test_plans_are_priced_in_half_of_the_time_that_the_first_plan_leaves() -> None:
    """It takes 60 s of 100, which is what was meant for prices."""
    one, clock = grid("llama"), [0.0]
    every = len(one.plans()[0])
    evaluator = make_evaluator(one.graph, machine(), rule=RULE)

    def lacks(strategy: Strategy) -> str:
        clock[0] += 0.0 if clock[0] else 60.0
        return ""

    found = best_of_grid(evaluator, lacks, deadline=Deadline(100.0, lambda: clock[0]), grid=one)
    assert found.fitting == every and found.simulated


def test_plans_without_an_order_are_known_beforehand() -> None:
    graph = network("llama")
    plans = [(replace(plan, bucket=0) if plan.zero < 2 else plan, count) for plan, count in PlanAxes(graph, machine()).plans()]
    alone = [(plan, count) for plan, count in plans if has_no_order(plan, count)]
    assert not any(has_no_order(replace(plan, bucket=None), count) for plan, count in alone)
    assert {plan.zero for plan, _ in alone} == {0, 1} and {plan.data for plan, _ in alone} == {4}
    for plan, count in [*alone, *Random(2).sample(plans, 8)]:
        strategy = map_graph(HybridParallel(plan), graph, machine())
        assert strategy.ordered is not has_no_order(plan, count)


def test_kendalls_tau() -> None:
    assert kendall([(1, 1), (2, 2), (3, 3)]) == 1 and kendall([(1, 3), (2, 2), (3, 1)]) == -1
    assert isnan(kendall([(1, 1), (2, 2)]))


def test_searches_look_at_the_grid_of_large_networks_of_layers_only() -> None:
    assert not no_grid(build("GPT-2", batch=8), machine(), RULE)
    assert no_grid(build("GPT-2", preset="small"), machine(), RULE)  # nothing to gain by stages of microseconds
    assert no_grid(build("GPT-2", batch=8), machine(), None)
    assert not no_grid(build("GPT-2", batch=8), load_machine("h100", 1), RULE)  # micro-batches are a choice there, too
    assert no_grid(build("GPT-2", batch=8), load_machine("b300", 1), RULE)
    assert not no_grid(build("GPT-2", batch=512), load_machine("b300", 1), RULE)  # one micro-batch has no room
    for name in ("ResNet-101", "NMT", "RNNLM", "AlexNet"):
        assert no_grid(build(name, batch=8), load_machine("p100", 4), RULE)


def test_stages_of_a_rank_are_as_long_as_each_other_where_layers_divide() -> None:
    """Megatron-LM's plans of 80 and 96 layers have 5, 6, 10 and 12 stages a rank."""
    def of(layers: int, p: int) -> list[int]:
        axes = PlanAxes(gpt(replace(GPTConfig.small(), batch=64, layers=layers)), machine(8))
        return sorted({plan.virtual for plan, _ in axes.plans() if plan.pipeline == p})

    assert (of(80, 8), of(96, 8), of(24, 2)) == ([1, 2, 5, 10], [1, 2, 3, 4, 6, 12], [1, 2, 3, 4, 6, 12])
    assert of(61, 4) == [1, 2, 4, 8]
