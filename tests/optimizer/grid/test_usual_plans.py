"""Usual plans of a grid come first, and what is known of them is kept."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import inf, isfinite

import pytest

from taskflow.machine import load_machine
from taskflow.mapper import HybridPlan, parse_plan
from taskflow.models import build
from taskflow.optimizer.beside import _shared
from taskflow.optimizer.grid import PlanGrid, PlanMemory
from taskflow.optimizer.grid.plans import PlanAxes
from taskflow.optimizer.grid.stages import PlanSums
from taskflow.optimizer.grid.tables import GraphTables
from taskflow.rules import Adam


def test_usual_plans_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """All plans are those that a grid finds which was not asked for usual ones before, and a part of them stays known."""
    machine = load_machine("h100", 8)
    graph = build("Mixtral-8x7B", batch=16, layers=4, places=1.0, dtype="bfloat16")
    grid, anew = PlanGrid(graph, machine, Adam()), PlanGrid(graph, machine, Adam())
    looked: Counter[HybridPlan] = Counter()
    memory = PlanGrid.memory

    def counted(self: PlanGrid, plan: HybridPlan, count: int) -> PlanMemory:
        looked[plan] += self is grid
        return memory(self, plan, count)

    monkeypatch.setattr(PlanGrid, "memory", counted)
    calls = iter(range(10**6))
    part = grid.usual(lambda: next(calls) > 20)
    usual = grid.usual()
    fitting, _ = grid.plans()
    assert 0 < len(part) < len(usual) < len(fitting) and set(part) <= set(usual) <= set(fitting)
    expected = anew.plans()[0]
    assert fitting == expected and [one.plan for one in grid.refused] == [one.plan for one in anew.refused]
    assert max(looked.values()) == 1 and grid.whole
    assert all(grid.sums.axes.unusual(one.plan) == 0 for one in usual)


def test_plans_without_stages_do_not_wait_for_pipelines() -> None:
    """A framework that records imported code for each pipeline took all of a budget, and no plan was found that fits."""
    asked: list[HybridPlan] = []

    def takes(plan: HybridPlan) -> bool:
        asked.append(plan)
        return plan.pipeline == 1

    graph, machine = build("Llama-8B", batch=16, layers=4, dtype="bfloat16"), load_machine("h100", 8)
    grid = PlanGrid(graph, machine, Adam(), takes)
    part = grid.usual(lambda: asked[-1].pipeline > 1)
    alone = [one for one in PlanGrid(graph, machine, Adam()).usual() if one.plan.pipeline == 1]
    assert alone and part == alone
    staged = [plan for plan in asked if plan.pipeline > 1]
    assert len({replace(plan, schedule=staged[0].schedule, loss_parallel=True) for plan in staged}) == 1


def test_experts_that_are_dealt_beyond_a_node_are_unusual() -> None:
    axes = PlanAxes(build("Mixtral-8x7B", batch=32, layers=2, places=1.0, experts=16), load_machine("h100", 32))
    near, far = HybridPlan(data=32, experts=8, micro_batch=1), HybridPlan(data=32, experts=16, micro_batch=1)
    assert (axes.unusual(near), axes.unusual(far), axes.unusual(replace(near, tensor=2, data=16))) == (0, 1, 1)


def test_weights_of_plans_that_differ_in_their_micro_batches_are_added_up_once() -> None:
    sums = PlanSums(GraphTables(build("Llama-8B", batch=16, layers=4), load_machine("h100", 8)), Adam())
    one, two = (HybridPlan(tensor=2, data=4, micro_batch=size, zero=1) for size in (1, 2))
    assert sums.weights(one) is sums.weights(two)
    assert sums.weights(one) is not sums.weights(replace(one, tensor=1, data=8))


def test_a_pipeline_has_no_more_stages_than_layers() -> None:
    graph = build("Llama-8B", batch=64, layers=4)
    assert {p for _, p, _ in _shared(graph, load_machine("h100", 64))} == {1, 2, 4}


def test_plans_like_the_best_usual_ones_are_priced_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search has no time for all plans of a network with many experts on many devices."""
    grid = PlanGrid(build("Mixtral-8x7B", batch=32, layers=4, places=1.0, dtype="bfloat16"), load_machine("h100", 16), Adam())
    usual = {one.plan: one.seconds for one in grid.usual()}
    looked: list[HybridPlan] = []
    memory = PlanGrid.memory

    def recorded(self: PlanGrid, plan: HybridPlan, count: int) -> PlanMemory:
        looked.append(plan)
        return memory(self, plan, count)

    monkeypatch.setattr(PlanGrid, "memory", recorded)
    grid.plans(lambda: len(looked) > 200)
    promised = [usual.get(grid.sums.axes.usual_like(plan), inf) for plan in looked]
    assert len(promised) > 200 and promised == sorted(promised) and isfinite(promised[-1])


@pytest.mark.parametrize("text", ["d32 e16 mb1 zero2", "t4 p2 d4 e4 mb1 zero3 recompute=selective", "c2 d16 e2 mb1 zero1"])
def test_the_usual_plan_that_a_plan_is_like_has_no_unusual_feature(text: str) -> None:
    axes = PlanAxes(build("Mixtral-8x7B", batch=32, layers=2, places=1.0, experts=16), load_machine("h100", 32))
    plan, usual = parse_plan(text), axes.usual_like(parse_plan(text))
    assert axes.unusual(plan) > 0 == axes.unusual(usual)
    assert usual.tensor * (usual.data or 1) * usual.pipeline == plan.tensor * (plan.data or 1) * plan.context * plan.pipeline
    assert axes.usual_like(usual) == usual
