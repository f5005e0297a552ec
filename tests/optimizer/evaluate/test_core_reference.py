"""The reference evaluator, and what is derived from timelines."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random

import pytest
from core_cases import shared
from language_model import model, random_strategy

import taskflow
from taskflow.machine import host
from taskflow.mapper import Strategy
from taskflow.optimizer.cost.adapter import ModelCosts
from taskflow.optimizer.cost.analytic import AnalyticCosts
from taskflow.optimizer.cost.task_costs import Roofline
from taskflow.optimizer.evaluate import DEFAULT_RULE, make_evaluator
from taskflow.optimizer.evaluate import evaluator as new_evaluator
from taskflow.optimizer.evaluate.critical_path import critical_path
from taskflow.optimizer.evaluate.evaluator import PythonEvaluator, timeline_json
from taskflow.rules import SGD
from taskflow.tasks.lower.lower import lower
from taskflow.tasks.simulate import roofline, simulate


def reference(processors: int = 3) -> PythonEvaluator:
    machine = host(processors)
    return PythonEvaluator(model(), machine, Roofline(machine), SGD(0.1), 1.0)


def test_proposals_leave_the_current_strategy_until_accepted():
    here = reference()
    graph = here.graph
    first, second = (random_strategy(graph, 3, Random(seed)) for seed in (1, 2))
    seconds = here.set(first)
    assert here.seconds == seconds == simulate(
        lower(graph, first, SGD(0.1), clip_norm=1.0), here.machine, roofline(here.machine)
    ).makespan
    changes = {name: second[name] for name in ("lstm0", "softmax.1")}
    proposed = here.propose(changes)
    assert here.seconds == seconds and here.strategy is first
    here.accept()
    assert here.seconds == proposed and here.proposals == 1
    fresh = reference()
    assert fresh.set(replace(first, configs={**first.configs, **changes})) == proposed


def test_says_what_is_wrong():
    here = reference()
    with pytest.raises(ValueError, match="set\\(strategy\\) must come before"):
        _ = here.seconds
    here.set(random_strategy(here.graph, 3, Random(0)))
    with pytest.raises(ValueError, match="no proposal"):
        here.accept()
    with pytest.raises(ValueError, match="is for 2 processors, host-3 has 3"):
        here.set(Strategy(2, {}))
    with pytest.raises(ValueError, match="algorithm must be one of"):
        new_evaluator(here.graph, here.machine, here.costs, here.rule, algorithm="quick")


def test_costs_have_their_default_in_one_place():
    """A second function with defaults of its own gave the same plan another time."""
    graph, machine = model(), taskflow.load_machine("k80", 2)
    with pytest.raises(TypeError, match="'costs' and 'rule'"):
        new_evaluator(graph, machine)
    plan, evaluator = random_strategy(graph, 2, Random(0)), make_evaluator(graph, machine)
    assert isinstance(evaluator.costs, ModelCosts) and isinstance(evaluator.costs.model, AnalyticCosts)
    assert evaluator.rule == DEFAULT_RULE
    assert new_evaluator(graph, machine, evaluator.costs, evaluator.rule).set(plan) == evaluator.set(plan)
    assert isinstance(make_evaluator(graph, shared(2)).costs, Roofline)


@pytest.mark.parametrize("seed", range(5))
def test_critical_path_and_file(seed):
    here = reference()
    here.set(random_strategy(here.graph, 3, Random(seed)))
    tasks, timeline = here.lowered(), here.timeline()
    path = critical_path(tasks, timeline, here.machine)
    assert path[0].start == 0.0 and path[-1].end == here.seconds
    assert all(a.end == pytest.approx(b.start, rel=1e-12) for a, b in zip(path, path[1:]))
    assert sum(lap.seconds for lap in path) == pytest.approx(here.seconds)
    usage = here.usage()
    assert usage.critical and set(usage.critical) <= {node.name for node in here.graph}
    assert usage.transfer_bytes == tasks.transfer_bytes
    content = json.loads(json.dumps(timeline_json(tasks, timeline, here.machine)))
    by_number = {entry["id"]: entry for entry in content["tasks"]}
    for entry in content["tasks"]:
        ends = [by_number[n]["end_seconds"] for n in entry["predecessors"]]
        assert entry["ready_seconds"] == max(ends, default=0.0)
        assert entry["start_seconds"] >= entry["ready_seconds"]
