"""plan: one strategy on every rank, searched for on the first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from measured_quickly import watch

import taskflow
from taskflow.models import build
from taskflow.runtime.transport.local import LocalTransport
from taskflow.training.program.plan import MeasuredStrategy, best, plan, trial

GRAPH = build("RNNLM", batch=8, preset="small")
MACHINE = taskflow.host(2)


class Rank(LocalTransport):
    """A rank of two whose broadcasts are looked up, not sent."""

    def __init__(self, rank: int, sent: list[Any]) -> None:
        self.rank, self.size, self.sent = rank, 2, sent
        self.patience: list[float] = []

    @contextmanager
    def patient(self, seconds: float) -> Iterator[None]:
        self.patience.append(seconds)
        yield

    def broadcast(self, value: Any, root: int = 0) -> Any:
        if self.rank == root:
            self.sent.append(value)
        return self.sent[-1]


def test_rank_0_searches_and_all_train_with_its_plan() -> None:
    sent: list[Any] = []
    said: list[str] = []
    rule = taskflow.SGD(lr=0.1)
    first, _ = plan("search", GRAPH, MACHINE, Rank(0, sent), rule=rule, budget="40p", say=said.append)
    second, mapper = plan("search", GRAPH, MACHINE, Rank(1, sent), rule=rule, budget="1h")
    assert first == second and isinstance(mapper, taskflow.Mapper)
    first.verify(GRAPH)
    assert "data" in said[0] and "expert" in said[0] and "ms a step" in said[0]


def test_measured_costs_are_measured_on_rank_0(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """The others wait, and say nothing of it; what cannot be measured is an error on all."""
    stopwatch, sent, said = watch(monkeypatch, cache), list[Any](), list[str]()
    rule = taskflow.SGD(lr=0.1)
    first, _ = plan("search", GRAPH, MACHINE, Rank(0, sent), rule=rule, budget="40p", say=said.append, costs="measured")
    measured = stopwatch.count
    assert measured > 0 and "; costs: measured " in said[0]
    other = Rank(1, sent)
    assert plan("search", GRAPH, MACHINE, other, rule=rule, budget="40p", costs="measured")[0] == first
    assert stopwatch.count == measured and other.patience == [3600.0]
    for rank in (0, 1):
        with pytest.raises(ValueError, match="machine k80 has k80; use analytic costs"):
            plan("search", GRAPH, taskflow.load_machine("k80", 2), Rank(rank, sent), rule=rule, costs="measured")
    analytic = Rank(0, sent)
    plan("search", GRAPH, MACHINE, analytic, rule=rule, budget="40p", say=said.append)
    assert "; costs: analytic host-2)" in said[-1] and stopwatch.count == measured and analytic.patience == []


def test_other_names_are_chosen_without_a_search() -> None:
    strategy, _ = plan("expert", GRAPH, MACHINE, LocalTransport(), rule=taskflow.SGD(lr=0.1))
    assert strategy == taskflow.choose("expert", GRAPH, MACHINE)[0]


def test_the_best_is_tried_and_nothing_of_the_trial_stays() -> None:
    said: list[str] = []
    transport = LocalTransport()
    strategy, _ = plan("best", GRAPH, MACHINE, transport, rule=taskflow.SGD(lr=0.1), budget="40p", say=said.append)
    chosen = said[-1].split()[1]
    assert said[-1].startswith("best: ") and "data" in said[-1] and "expert" in said[-1] and " ms " in said[-1]
    if chosen != "search":
        assert strategy == taskflow.choose(chosen, GRAPH, MACHINE)[0]
    strategy.verify(GRAPH)
    alone, _ = plan("best", GRAPH, taskflow.host(1), transport, rule=taskflow.SGD(lr=0.1), budget="5p", say=said.append)
    assert alone == taskflow.choose("data", GRAPH, taskflow.host(1))[0]


def test_a_trial_measures_each_strategy() -> None:
    candidates = {name: taskflow.choose(name, GRAPH, MACHINE)[0] for name in ("data", "expert")}
    tried = trial(candidates, GRAPH, MACHINE, LocalTransport(), taskflow.SGD(lr=0.1))
    assert [each.name for each in tried] == ["data", "expert"]
    assert all(each.seconds > 0 for each in tried)
    for each in tried:
        run = taskflow.Executor(GRAPH, candidates[each.name], taskflow.SGD(lr=0.1), machine=MACHINE)
        assert each.nbytes == run.program("train").plan.memory.nbytes + run.kept.nbytes


def test_of_equally_fast_plans_the_smaller_is_best() -> None:
    slow, large, small = MeasuredStrategy("slow", 1.2, 10), MeasuredStrategy("large", 1.0, 30), MeasuredStrategy("small", 1.01, 20)
    assert best([slow, large, small]) is small
    assert best([slow, large]) is large
    assert best([slow]) is slow


def test_a_mapper_that_there_is_not_gets_the_names_of_all() -> None:
    with pytest.raises(ValueError, match=r"no mapper 'fastest'; use data, .*search, best, a plan such as .t2 p2 mb1."):
        plan("fastest", GRAPH, MACHINE, LocalTransport(), rule=taskflow.SGD(lr=0.1))


def test_what_fails_on_rank_0_fails_everywhere() -> None:
    sent: list[Any] = []
    for rank in (0, 1):
        with pytest.raises(ValueError, match="budget"):
            plan("search", GRAPH, MACHINE, Rank(rank, sent), rule=taskflow.SGD(lr=0.1), budget="never")
