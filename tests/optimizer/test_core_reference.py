"""The reference evaluator, and what is derived from timelines."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random

import pytest
from language_model import model, random_strategy

from taskflow.machine import host
from taskflow.mapper import Strategy
from taskflow.optimizer.core_costs import Roofline
from taskflow.optimizer.evaluator import PythonEvaluator, critical_path, evaluator, timeline_json
from taskflow.rules import SGD
from taskflow.tasks.lower import lower
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
        evaluator(here.graph, here.machine, algorithm="quick")


@pytest.mark.parametrize("seed", range(5))
def test_critical_path_and_file(seed):
    here = reference()
    here.set(random_strategy(here.graph, 3, Random(seed)))
    tasks, timeline = here.lowered(), here.timeline()
    path = critical_path(tasks, timeline, here.machine)
    assert path[0].start == 0.0 and path[-1].end == here.seconds
    assert all(a.end == pytest.approx(b.start, rel=1e-12) for a, b in zip(path, path[1:]))
    assert sum(stay.end - stay.start for stay in path) == pytest.approx(here.seconds)
    usage = here.usage()
    assert usage.critical and set(usage.critical) <= {node.name for node in here.graph}
    assert usage.transfer_bytes == tasks.transfer_bytes
    content = json.loads(json.dumps(timeline_json(tasks, timeline, here.machine)))
    by_number = {entry["id"]: entry for entry in content["tasks"]}
    for entry in content["tasks"]:
        ends = [by_number[n]["end_seconds"] for n in entry["predecessors"]]
        assert entry["ready_seconds"] == max(ends, default=0.0)
        assert entry["start_seconds"] >= entry["ready_seconds"]
