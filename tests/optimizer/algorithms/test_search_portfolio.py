"""The default search on several threads at once."""

from __future__ import annotations

import pytest
from search_toys import CtrlC

import taskflow
from taskflow.machine import load_machine
from taskflow.mapper import choose
from taskflow.models import build
from taskflow.optimizer.algorithms.guided import guided
from taskflow.optimizer.algorithms.portfolio import worth
from taskflow.optimizer.budget import Budget, Deadline, SharedIncumbent
from taskflow.optimizer.evaluate import make_evaluator
from taskflow.optimizer.options import SearchOptions
from taskflow.optimizer.search import search

CLUSTER = load_machine("p100", 8)
GRAPH = build("nmt", 64, preset="small")


def test_two_workers_share_what_they_find():
    told = []
    found = search(GRAPH, CLUSTER, budget="2s", workers=2, progress=told.append)
    assert found.seconds <= min(found.starts.values())
    evaluator = make_evaluator(GRAPH, CLUSTER)
    assert evaluator.set(found.strategy) == found.seconds
    seconds = [step.seconds for step in found.history]
    assert seconds == sorted(seconds, reverse=True) and seconds[-1] == found.seconds
    assert [step.elapsed for step in found.history] == sorted(step.elapsed for step in found.history)
    assert found.accepted <= found.proposals and told and told[-1].best >= found.seconds
    assert found.seed == 0 and found.search_seconds < 20


def test_a_search_goes_on_from_what_another_has_found():
    best = search(GRAPH, CLUSTER, budget="400p", seed=5, workers=1)
    exchange = SharedIncumbent()
    exchange.publish(best.strategy, best.seconds)
    evaluator = make_evaluator(GRAPH, CLUSTER)
    found = guided(evaluator, SearchOptions(Budget(proposals=10), incumbent=exchange))
    assert found.seconds <= best.seconds
    assert exchange.best_seconds == found.seconds
    exchange.publish(choose("data", GRAPH, CLUSTER)[0], 2 * best.seconds)
    assert exchange.best_seconds == found.seconds
    clock = Deadline(60.0)
    clock.stopped = True
    data = choose("data", GRAPH, CLUSTER)[0]
    ended = guided(evaluator, SearchOptions(Budget(seconds=60), incumbent=exchange, deadline=clock, rivals=(data,)))
    assert ended.proposals == 0 and ended.seconds == evaluator.set(data) and ended.stopped == "budget"


@pytest.mark.usefixtures("nothing_else_collects")
def test_interrupting_two_workers_returns_the_best_so_far():
    ctrl_c = CtrlC(0.5)
    found = search(GRAPH, CLUSTER, budget="200s", workers=2, progress=ctrl_c)
    assert found.stopped == "interrupted" and 0 <= ctrl_c.seconds < 20
    assert found.seconds <= min(found.starts.values())


def test_when_threads_are_used():
    evaluator = make_evaluator(GRAPH, CLUSTER)
    small, large = taskflow.host(2), load_machine("k80", 64)
    mlp = build("mlp", preset="small")
    assert not worth(make_evaluator(mlp, small), choose("data", mlp, small)[0])
    nmt = build("nmt", None, 64)
    assert worth(make_evaluator(nmt, large), choose("data", nmt, large)[0])
    with pytest.raises(ValueError, match="workers must be 1 to 256, got 0"):
        search(GRAPH, CLUSTER, use=evaluator, workers=0)
    once, again = (search(GRAPH, CLUSTER, budget="200p", seed=3) for _ in range(2))
    assert once.strategy == again.strategy and once.proposals == again.proposals
