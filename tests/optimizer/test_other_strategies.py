"""What an evaluator says of other strategies, and how often a step is lowered for what is said of the current one."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest

from taskflow.graph import OperatorGraph
from taskflow.machine import Cluster, load_machine
from taskflow.mapper import Strategy, choose
from taskflow.models import build
from taskflow.optimizer import make_evaluator
from taskflow.optimizer.evaluate import Evaluator
from taskflow.optimizer.evaluate.evaluator import PythonEvaluator
from taskflow.optimizer.evaluate.ordered import OrderedEvaluator
from taskflow.optimizer.explain import alternatives, explain
from taskflow.optimizer.explain.split import split_gain
from taskflow.report import report_data
from taskflow.rules import Adam
from taskflow.tasks import TaskGraph
from taskflow.tasks.lower import lower

RULE, PLANS = Adam(), ("data", "p2 d2 mb1", "t2 d2 mb2 split=2")
MOST_WHOLE = "taskflow.optimizer.evaluate.ordered.MOST_WHOLE"


@pytest.fixture
def lowered(monkeypatch: pytest.MonkeyPatch) -> list[Strategy]:
    """Every strategy that an evaluator lowers as a whole from now on."""
    module, found = import_module("taskflow.optimizer.evaluate.evaluator"), []

    def noted(graph: OperatorGraph, strategy: Strategy, *given: Any, **named: Any) -> TaskGraph:
        found.append(strategy)
        return lower(graph, strategy, *given, **named)

    monkeypatch.setattr(module, "lower", noted)
    return found


def problem() -> tuple[OperatorGraph, Cluster, list[Strategy]]:
    graph, machine = build("GPT-2", 4, preset="small", layers=2, steps=8), load_machine("h100", 4)
    return graph, machine, [choose(plan, graph, machine)[0] for plan in PLANS]


def by_definition(graph: OperatorGraph, machine: Cluster) -> Evaluator:
    return PythonEvaluator(graph, machine, make_evaluator(graph, machine, rule=RULE).costs, RULE, None)


def ordered(graph: OperatorGraph, machine: Cluster) -> Evaluator:
    return OrderedEvaluator(graph, machine, make_evaluator(graph, machine, rule=RULE).costs, RULE, None)


def usual(graph: OperatorGraph, machine: Cluster) -> Evaluator:
    return make_evaluator(graph, machine, rule=RULE)


@pytest.mark.parametrize(("make", "folds"), [(by_definition, False), (ordered, True), (usual, False), (usual, True)])
def test_seconds_of_another_strategy_leave_the_current_one(
    make: Callable[[OperatorGraph, Cluster], Evaluator], folds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if folds:
        monkeypatch.setattr(MOST_WHOLE, 0)
    graph, machine, (data, _, split) = problem()
    strategies = [data, split]
    judge, evaluator = by_definition(graph, machine), make(graph, machine)
    wanted = [judge.set(strategy) for strategy in strategies]
    for here, seconds in zip(strategies, wanted):
        assert evaluator.set(here) == pytest.approx(seconds, rel=1e-12)
        for other, other_seconds in zip(strategies, wanted):
            assert evaluator.seconds_of(other) == pytest.approx(other_seconds, rel=1e-12)
            assert evaluator.strategy is here and evaluator.seconds == pytest.approx(seconds, rel=1e-12)
        tasks, timeline = evaluator.current()
        assert timeline.makespan == pytest.approx(seconds, rel=1e-12) and len(tasks) == evaluator.tasks == len(timeline.spans)
        assert evaluator.evaluated(here)[1].makespan == timeline.makespan


def test_what_does_not_suit_the_machine_is_refused_and_nothing_changes() -> None:
    graph, machine, strategies = problem()
    wrong = choose("d2 mb1", graph, load_machine("h100", 2))[0]
    for make in (by_definition, ordered, usual):
        evaluator = make(graph, machine)
        seconds = evaluator.set(strategies[1])
        with pytest.raises(ValueError, match="processors"):
            evaluator.seconds_of(wrong)
        assert evaluator.strategy is strategies[1] and evaluator.seconds == seconds


@pytest.mark.parametrize("folds", [False, True])
def test_a_step_is_lowered_once_for_all_that_is_said_of_it(
    folds: bool, lowered: list[Strategy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """When it is set; or, if it was folded then, when all of its tasks are asked for."""
    if folds:
        monkeypatch.setattr(MOST_WHOLE, 0)
    graph, machine, strategies = problem()
    evaluator = make_evaluator(graph, machine, rule=RULE)
    evaluator.set(strategies[1])
    explain(evaluator)
    explain(evaluator)
    assert lowered == [strategies[1]]
    split_gain(evaluator)
    explain(evaluator)
    assert lowered.count(strategies[1]) == 1


def test_an_alternative_is_lowered_once_to_be_compared_and_once_to_be_explained(lowered: list[Strategy]) -> None:
    graph, machine, strategies = problem()
    evaluator = make_evaluator(graph, machine, rule=RULE)
    evaluator.set(strategies[1])
    lowered.clear()
    found = alternatives(evaluator, "ln_f", most=2)
    explained = [one for one in found if one.grows is not None]
    assert explained and all(lowered.count(one) <= 2 for one in lowered)
    assert lowered.count(strategies[1]) == 1, "the strategy itself only when the evaluator goes back to it"


def test_a_report_lowers_its_plan_once(lowered: list[Strategy]) -> None:
    graph, machine, strategies = problem()
    evaluator = make_evaluator(graph, machine, rule=RULE)
    report = report_data(evaluator, strategies[1])
    assert report.value["plan"]["tasks"] == evaluator.tasks
    assert lowered.count(strategies[1]) <= 2, "once for the page, and once when the evaluator comes back from the baselines"
