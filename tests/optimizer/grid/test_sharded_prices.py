"""Prices under ZeRO's stages 2 and 3: a gather hides only behind the operator that it runs beside, as in the simulated step."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

import pytest

from taskflow.graph import OperatorGraph
from taskflow.machine import load_machine
from taskflow.mapper import BLOCK, HybridParallel, HybridPlan, map_graph, parse_plan, samples
from taskflow.models import build, with_places
from taskflow.models.llama import LlamaConfig, llama
from taskflow.models.moe import MoEConfig, moe
from taskflow.optimizer import make_evaluator
from taskflow.optimizer.grid import PlanGrid, bytes_in_program, kendall
from taskflow.optimizer.grid.price import begun_sooner
from taskflow.optimizer.grid.shortened import KEPT, shortened
from taskflow.programs import load_program
from taskflow.rules import Adam

RULE = Adam()
DEVICES = 16  # two nodes


@cache
def network(layers: int = 4, batch: int = 32) -> OperatorGraph:
    """Layers of some milliseconds, so that devices and links count, not hosts."""
    sizes = LlamaConfig(batch=batch, layers=layers, steps=2048, hidden=4096, inner=11264, vocabulary=8192, heads=32, key_heads=8)
    return llama(sizes, "bfloat16")


@cache
def grid(layers: int = 4) -> PlanGrid:
    return PlanGrid(network(layers), load_machine("h100", DEVICES), RULE)


def passes_of(of: PlanGrid, plan: HybridPlan, micro_batches: int) -> tuple[Any, ...]:
    """What `PlanPrices` has of a plan's passes."""
    return of.prices._passes(plan, *of.prices.replicas(plan), micro_batches)


PLANS = [
    HybridPlan(data=16, micro_batch=1, zero=3), HybridPlan(data=16, micro_batch=1, zero=3, recompute="full"),
    HybridPlan(tensor=4, data=4, micro_batch=1, zero=3), HybridPlan(tensor=8, data=2, micro_batch=2, zero=3),
    HybridPlan(context=4, data=4, micro_batch=1, zero=3), HybridPlan(tensor=2, pipeline=2, data=4, micro_batch=1, zero=3),
    HybridPlan(tensor=4, data=4, micro_batch=1, zero=2), HybridPlan(data=16, micro_batch=1, zero=3, prefetch=3),
    HybridPlan(data=16, micro_batch=1, zero=3, prefetch=1, recompute="full"),
    HybridPlan(data=16, micro_batch=1, zero=3, recompute="whole"),
]


def prices() -> list[tuple[float, float]]:
    """Price and simulated seconds of each plan."""
    one, evaluator = grid(), make_evaluator(network(), grid().machine, rule=RULE)
    pairs = []
    for plan in PLANS:
        price = one.prices(plan, samples(one.graph) // plan.samples_a_pass)
        pairs.append((price, evaluator.set(map_graph(HybridParallel(plan), one.graph, one.machine))))
    return pairs


def test_prices_of_sharded_plans_are_near_simulated_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskflow.optimizer.evaluate.ordered.MOST_WHOLE", 0)  # folded: a tenth of the time
    pairs = prices()
    assert [price for price, _ in pairs] == pytest.approx([seconds for _, seconds in pairs], rel=0.1)
    assert kendall(pairs) > 0.8


@pytest.mark.parametrize("text", ["d64 e8 mb1 zero3", "t2 d32 e4 mb1 zero3"])
def test_weights_of_experts_that_are_dealt_within_a_node_travel_beside_their_tokens(text: str) -> None:
    """Those between nodes, these within one; weights that all hold use the links of both."""
    sizes = replace(MoEConfig.small(), batch=256, steps=2048, vocabulary=512, hidden=2048, inner=8192, head_size=64, heads=32,
                    experts=32, layers=4, factor=2.0)  # fmt: skip
    graph, machine, plan = moe(sizes, "bfloat16"), load_machine("h100", 64), parse_plan(text)
    seconds = make_evaluator(graph, machine, rule=RULE).set(map_graph(HybridParallel(plan), graph, machine))
    assert PlanGrid(graph, machine, RULE).prices(plan, 256 // plan.samples_a_pass) == pytest.approx(seconds, rel=0.08)


@pytest.mark.parametrize("text", ["d16 e4 mb1 zero3 recompute=full", "d16 e8 mb1 zero3", "d16 e2 mb1 zero2", "t2 d8 e4 mb1 zero3"])
def test_gradients_of_experts_that_are_dealt_are_reduced_beside_the_attention(text: str) -> None:
    """They are complete before it, and other devices hold them."""
    graph = with_places(build("Mixtral-8x7B", batch=64, dtype="bfloat16", layers=4), 1.0)
    machine, plan = grid().machine, parse_plan(text)
    seconds = make_evaluator(graph, machine, rule=RULE).set(map_graph(HybridParallel(plan), graph, machine))
    assert PlanGrid(graph, machine, RULE).prices(plan, 64 // plan.samples_a_pass) == pytest.approx(seconds, rel=0.03)


@pytest.mark.parametrize("text", ["d64 e16 mb1 zero1", "d64 e32 mb1 zero1", "p2 d32 e16 mb1 zero1"])
def test_sums_of_gradients_and_tokens_that_go_between_nodes_wait_for_each_other(text: str) -> None:
    """Priced as if all of a backward pass hid the sums, the first two take 12 and 9 % longer than their prices."""
    sizes = dict(hidden=3072, heads=24, key_heads=8, experts=64, expert_inner=4096, layers=24, vocabulary=32000)
    graph = with_places(build("Mixtral-8x7B", batch=64, dtype="bfloat16", **sizes), 1.0)
    machine, plan = load_machine("h100", 64), parse_plan(text)
    seconds = make_evaluator(graph, machine, rule=RULE).set(map_graph(HybridParallel(plan), graph, machine))
    assert PlanGrid(graph, machine, RULE).prices(plan, 64 // plan.samples_a_pass) == pytest.approx(seconds, rel=0.05)


PIPELINED = {  # networks of short kernels, whose hosts also start collectives of each pass, and of long ones
    512: ("t2 p2 d4 mb1 zero2", "t4 p2 d2 mb1 zero2", "t4 p2 d2 mb1 zero3"),
    2048: ("p4 d4 mb1 zero2", "p4 d4 mb1 v2 zero2", "t2 p2 d4 mb1 zero2", "d16 mb2 zero2"),
}


@pytest.mark.parametrize("steps", PIPELINED)
def test_prices_of_shares_in_a_pipeline_are_near_simulated_steps(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """A message waits for the reductions that its stage has just begun, hosts start what a tensor group exchanges, and what is left
    of reductions and new weights comes at the end."""
    monkeypatch.setattr("taskflow.optimizer.evaluate.ordered.MOST_WHOLE", 0)
    hidden = 4096 if steps == 2048 else 2048
    sizes = LlamaConfig(batch=64, layers=8, steps=steps, hidden=hidden, inner=5632, vocabulary=8192, heads=16, key_heads=4)
    graph, machine = llama(sizes, "bfloat16"), load_machine("a100", DEVICES)
    one, evaluator = PlanGrid(graph, machine, RULE), make_evaluator(graph, machine, rule=RULE)
    for text in PIPELINED[steps]:
        plan = parse_plan(text)
        price = one.prices(plan, samples(graph) // plan.samples_a_pass)
        assert price == pytest.approx(evaluator.seconds_of(map_graph(HybridParallel(plan), graph, machine)), rel=0.03), text


EXACT = [
    "d16 mb1 zero2", "d16 mb2 zero2", "d16 mb1 zero3", "d16 mb1 zero3 prefetch=3", "d16 mb1 zero2 recompute=full",
    "d16 mb1 zero3 recompute=full",
]  # fmt: skip


@pytest.mark.parametrize("text", EXACT)
def test_one_more_micro_batch_takes_as_long_as_in_the_simulated_step(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Where nothing but weights is sent the walk has the tasks that the step has, in the same order, so its passes take as long: to
    0.2 %, since the seconds of a stage's operators are not theirs, but all scaled alike (`ShardedPasses.stage`)."""
    monkeypatch.setattr("taskflow.optimizer.evaluate.ordered.MOST_WHOLE", 0)
    plan, seconds = parse_plan(text), []
    for micro_batches in (4, 5):
        graph = network(batch=micro_batches * plan.samples_a_pass)
        strategy = map_graph(HybridParallel(plan), graph, grid().machine)
        seconds.append(make_evaluator(graph, grid().machine, rule=RULE).set(strategy))
    ahead, back, *_ = passes_of(grid(), plan, 5)
    assert ahead[0] + back[0] == pytest.approx(seconds[1] - seconds[0], rel=2e-3)


def test_a_price_does_not_depend_on_what_was_priced_before() -> None:
    plans = [
        HybridPlan(tensor=4, data=4, micro_batch=1, zero=zero, sequence_parallel=along, regather=again)
        for zero in (2, 3) for along in (True, False) for again in (False, True) if along or not again
    ]
    together = grid().prices.price([(plan, 8) for plan in plans])
    alone = [PlanGrid(network(), grid().machine, RULE).prices(plan, 8) for plan in plans]
    assert together == alone and len(set(alone)) > 3


def test_gathers_that_take_as_long_as_the_computation_are_not_hidden_by_the_whole_pass() -> None:
    one, plan = grid(), HybridPlan(tensor=4, data=4, micro_batch=1, zero=3, prefetch=1)
    whole = replace(plan, zero=1, prefetch=BLOCK)
    ahead, back, *_ = passes_of(one, plan, 8)
    without, backward, *_ = passes_of(one, whole, 8)
    assert ahead[0] > 1.2 * without[0] and back[0] > 1.2 * backward[0]
    early = replace(plan, prefetch=4)
    assert passes_of(one, early, 8)[0][0] < ahead[0]  # more of them is beside more


def test_layers_that_are_left_out_take_as_long_as_those_that_are_walked_through() -> None:
    """The pass of 12 layers is that of 8 and four more, whether they are walked through or not."""
    plan = HybridPlan(data=16, micro_batch=1, zero=3)
    passes = [passes_of(grid(layers), plan, 2) for layers in (4, 8, 12)]
    for which in (0, 1):
        few, some, many = (float(one[which][0]) for one in passes)
        assert many - some == pytest.approx(some - few, rel=0.01)


@pytest.mark.parametrize("seed", range(30))
def test_runs_of_layers_stand_for_all(seed: int) -> None:
    random = Random(seed)
    kinds: list[int] = []
    for _ in range(random.randint(1, 4)):
        kinds += random.choices(range(3), k=random.randint(1, 4)) * random.choice([1, 1, 2, 5, 9])
    kept, runs = shortened(kinds)
    assert kept == sorted(set(kept)) and len(kept) + sum(run.more * (run.end - run.first[-1]) for run in runs) == len(kinds)
    found, at = [], 0
    for run in runs:  # each run's last block as often as it is left out
        assert len(run.first) == KEPT
        block = [kinds[kept[i]] for i in range(run.first[-1], run.end)]
        assert all([kinds[kept[i + first]] for i in range(len(block))] == block for first in run.first)
        found += [kinds[kept[i]] for i in range(at, run.end)] + block * run.more
        at = run.end
    assert found + [kinds[kept[i]] for i in range(at, len(kept))] == kinds


def test_a_backward_step_waits_for_the_sum_of_the_gradients_two_before() -> None:
    one = grid()
    plan = HybridPlan(data=16, micro_batch=1, zero=2)
    one.prices(plan, 2)
    walk, _ = next(iter(one.prices._kind.sharded._walks.values()))
    reductions = [number for step in walk.steps for number in step.reduces]
    waiting = list(dict.fromkeys(number for step in walk.steps for number in step.waits if number in reductions))
    assert waiting == reductions[: len(waiting)] and len(waiting) >= len(reductions) - 2


@pytest.mark.parametrize("text", ["d16", "d16 mb1", "d16 zero1", "d16 mb1 zero1"])
def test_the_first_micro_batch_writes_gradients_and_adds_to_none(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Layers so short that starting kernels takes most of a step, as under many replicas of a small network: kernels that add
    gradients are not started in the first micro-batch, and so never where there is but one."""
    monkeypatch.setattr("taskflow.optimizer.evaluate.ordered.MOST_WHOLE", 0)
    sizes = LlamaConfig(batch=32, layers=4, steps=128, hidden=512, inner=1024, vocabulary=1024, heads=8, key_heads=8)
    graph, machine = llama(sizes, "bfloat16"), load_machine("h100", DEVICES)
    strategy = map_graph(HybridParallel(text), graph, machine)
    assert strategy.plan is not None
    seconds = make_evaluator(graph, machine, rule=RULE).set(strategy)
    price = PlanGrid(graph, machine, RULE).prices(strategy.plan, samples(graph) // strategy.plan.samples_a_pass)
    assert price == pytest.approx(seconds, rel=0.03)


@pytest.mark.parametrize("text", ["d16", "d16 mb1", "d16 mb1 zero1", "p2 d8 mb1"])
def test_a_program_may_add_the_first_gradients_to_zeros(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """The first pass then takes as long as later ones: by price and in the simulated step, which grow alike."""
    monkeypatch.setattr("taskflow.optimizer.evaluate.ordered.MOST_WHOLE", 0)
    sizes = LlamaConfig(batch=32, layers=4, steps=128, hidden=512, inner=1024, vocabulary=1024, heads=8, key_heads=8)
    graph, megatron = llama(sizes, "bfloat16"), load_machine("h100", DEVICES)
    (kind,) = megatron.kinds
    assert kind.program is not None and not kind.program.adds_to_zeros and load_program("nanotron").adds_to_zeros
    plain, adding = (
        replace(megatron, kinds=(replace(kind, program=replace(kind.program, passes=(), adds_to_zeros=adds)),))
        for adds in (False, True)
    )  # whose sums are no part of products
    took = []
    for machine in (plain, adding):
        strategy = map_graph(HybridParallel(text), graph, machine)
        assert strategy.plan is not None
        seconds = make_evaluator(graph, machine, rule=RULE).set(strategy)
        prices = PlanGrid(graph, machine, RULE).prices
        price = prices(strategy.plan, samples(graph) // strategy.plan.samples_a_pass)
        assert price == pytest.approx(seconds, rel=0.05 if strategy.plan.pipeline > 1 else 0.03)
        took.append((price, seconds))
        if machine is adding:
            assert begun_sooner(prices.sums, strategy.plan, 2) == 0.0
    (price, seconds), (more_price, more_seconds) = took
    assert more_seconds > 1.02 * seconds and more_price > 1.02 * price
    assert more_price - price == pytest.approx(more_seconds - seconds, rel=0.1)


def test_a_step_that_nearly_fills_the_memory_counts_as_longer() -> None:
    """Of plans with as good a price a program like nanotron so prefers the one that leaves memory."""
    graph, plain = network(), load_machine("h100", DEVICES)
    (kind,) = plain.kinds
    assert kind.program is not None and load_program("nanotron").full_times > kind.program.full_times == 1
    full = replace(kind.program, full_times=1.5)
    plan = HybridPlan(data=16, micro_batch=1, zero=1)
    prices = PlanGrid(graph, plain, RULE).prices
    needs, price = bytes_in_program(prices.sums, plan, 2), prices(plan, 2)
    for filled, times in ((0.5, 1.0), (0.9, 1.0), (0.95, 1.25), (1.0, 1.5), (1.2, 1.5)):
        machine = replace(plain, kinds=(replace(kind, program=full, memory_bytes=int(needs / filled)),))
        assert PlanGrid(graph, machine, RULE).prices(plan, 2) == pytest.approx(times * price, rel=1e-6), filled
