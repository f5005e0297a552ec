"""Buckets in prices, bounds and simulated steps: the same layers are in them, and rings around many devices become tolerable."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from fast_and_slow import fast_among

from taskflow.graph import OperatorGraph
from taskflow.machine import load_machine
from taskflow.mapper import HybridParallel, Strategy, map_graph, parse_plan, units_of
from taskflow.models import build
from taskflow.models.gpt import GPTConfig, gpt
from taskflow.models.llama import LlamaConfig, llama
from taskflow.models.moe import MoEConfig, moe
from taskflow.optimizer import make_evaluator
from taskflow.optimizer.grid import PlanGrid, PlanPrices
from taskflow.optimizer.grid.bound_work import LayerWorks
from taskflow.optimizer.grid.plan_bound import least_of
from taskflow.optimizer.grid.stages import PlanSums
from taskflow.optimizer.grid.tables import GraphTables
from taskflow.rules import Adam

RULE = Adam()
PLANS = (
    "d8 mb1", "d8 mb2 zero1", "t2 d4 mb1 zero1", "p2 d4 mb1", "t2 p2 d2 mb1 zero1", "p2 d4 mb1 v2 zero1", "t4 d2 mb2",
    "d8 mb1 zero=1*2,0*4", "p2 d4 mb1 zero=0*1,1*5",
)


def network(name: str) -> OperatorGraph:
    if name == "moe":
        return moe(replace(MoEConfig.small(), batch=16, layers=6))
    small = replace(LlamaConfig.small(), batch=16, layers=6) if name == "llama" else replace(GPTConfig.small(), batch=16, layers=6)
    return llama(small) if isinstance(small, LlamaConfig) else gpt(small)


@pytest.mark.parametrize("name", ["llama", "gpt", "moe"])
@pytest.mark.parametrize("plan", PLANS)
def test_prices_have_the_buckets_of_the_lowered_step(name: str, plan: str) -> None:
    graph, machine = network(name), load_machine("h100", 8)
    sums = PlanSums(GraphTables(graph, machine), RULE)
    layers = [parameter.layer for node in graph for parameter in node.parameters]
    for size in (0, 1, *(Random(f"{name} {plan}").randint(50, 4000) for _ in range(4)), 10**9):
        whole = replace(parse_plan(plan), bucket=size)
        strategy = map_graph(HybridParallel(whole), graph, machine)
        units = units_of(graph, strategy)
        zero = np.array([strategy.sync(layer).zero for layer in layers])
        numbers = sums._in_buckets(whole, sums.tables.of(whole), zero).tolist()
        named = [units.get(layer, layer) for layer in layers]
        assert len(set(zip(named, numbers))) == len(set(named)) == len(set(numbers))


def decoder(devices: int, layers: int = 32) -> OperatorGraph:
    """Of 2.5 billion parameters with 32 layers."""
    return build(
        "GPT-2", 8 * devices, layers=layers, hidden=2560, heads=20, vocabulary=50368, steps=2048, dropout=0.0, dtype="bfloat16"
    )


def seconds_of(graph: OperatorGraph, devices: int, *plans: str) -> list[tuple[float, float]]:
    """The price and the simulated seconds of plans."""
    machine = load_machine("h100", devices)
    evaluator, prices = make_evaluator(graph, machine, rule=RULE), PlanPrices(PlanSums(GraphTables(graph, machine), RULE))

    def strategy(text: str) -> Strategy:
        return map_graph(HybridParallel(text), graph, machine)

    return [(prices(parse_plan(text), 1), evaluator.set(strategy(text))) for text in plans]


@pytest.mark.parametrize("devices", [8, 512])
def test_state_by_shares_costs_no_more_than_whole_state_on_many_devices(devices: int) -> None:
    each = seconds_of(decoder(devices), devices, *(f"d{devices} mb8 zero{stage}" for stage in range(4)))
    whole = each[0]
    for price, simulated in each[1:]:
        assert price < 1.15 * whole[0] and simulated < 1.15 * whole[1]
    for price, simulated in each:
        assert price == pytest.approx(simulated, rel=0.03)


def test_late_gathers_are_priced() -> None:
    graph, devices = decoder(64, 8), 64
    for text in ("d64 mb8 zero1", "d64 mb8 zero2", "t2 d32 mb16 zero1", "p2 d32 mb16 zero1"):
        (_, simulated), (price, late) = seconds_of(graph, devices, text, f"{text} overlap=all")
        assert price == pytest.approx(late, rel=0.05)
        assert late == pytest.approx(simulated, rel=0.03)


def test_late_gathers_hide_behind_a_forward_pass_where_updates_wait_for_the_norm() -> None:
    graph, machine = decoder(64, 8), load_machine("h100", 64)
    evaluator = make_evaluator(graph, machine, rule=RULE, clip_norm=1.0)
    plans = ("d64 mb8 zero1", "d64 mb8 zero1 overlap=all")
    soon, late = (evaluator.set(map_graph(HybridParallel(plan), graph, machine)) for plan in plans)
    assert late < 0.98 * soon


@pytest.mark.slow
def test_single_layers_pay_the_latency_of_the_ring() -> None:
    (_, alone), (_, together), (_, fewer) = seconds_of(
        decoder(512), 512, "d512 mb8 zero1 bucket=layer", "d512 mb8 zero1", "d512 mb8 zero1 bucket=100M"
    )
    assert alone > 1.2 * together and fewer < 1.15 * together


@pytest.mark.parametrize("text", fast_among(
    ["d16 mb8", "d16 mb4", "t2 d8 mb4", "p2 d8 mb2", "d16 mb1"], ["d16 mb8", "t2 d8 mb4", "p2 d8 mb2"],
))
def test_the_bound_holds_for_buckets_of_any_size(text: str) -> None:
    graph, machine = decoder(16, 2), load_machine("h100", 16)
    works, evaluator = LayerWorks(PlanGrid(graph, machine, RULE).sums), make_evaluator(graph, machine, rule=RULE)
    bound = least_of(works, parse_plan(text), 10**12)
    for words in (
        "", "zero1", "bucket=10G", "zero1 bucket=10G", "zero1 bucket=10M", "zero1 bucket=300M", "zero2", "zero3",
        "zero1 overlap=all", "zero2 overlap=all",
    ):
        seconds = evaluator.set(map_graph(HybridParallel(f"{text} {words}"), graph, machine))
        assert 0 < bound <= seconds * (1 + 1e-9), words
