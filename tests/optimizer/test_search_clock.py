"""Budgets are obeyed: every phase looks at the clock and at Ctrl-C, and what there was no time for is said."""

from __future__ import annotations

import time
from collections.abc import Mapping
from math import inf

import pytest

from taskflow.machine import load_machine
from taskflow.mapper import OpConfig, Strategy
from taskflow.models import build
from taskflow.optimizer import foresight
from taskflow.optimizer.algorithms.guided import guided
from taskflow.optimizer.algorithms.initial import known
from taskflow.optimizer.algorithms.mcmc import mcmc
from taskflow.optimizer.algorithms.optcnn import MOST_PROCESSORS, additive_plan
from taskflow.optimizer.bounds.work_and_path import lower_bound
from taskflow.optimizer.clock import Clock, Pace
from taskflow.optimizer.evaluate.evaluator import NO_SYNCS
from taskflow.optimizer.memory_check import MemoryCheck
from taskflow.optimizer.result import Budget, SearchOptions, SearchResult
from taskflow.optimizer.search import make_evaluator, search
from taskflow.optimizer.space.space import OperatorSpace, SpaceOptions
from taskflow.optimizer.traffic.messages import Messages
from taskflow.tasks.lower.lower import lower
from taskflow.tasks.task import Kind
from tests.optimizer.search_toys import CtrlC, Table, rugged, tiny


class Slow(Table):
    """Takes as long as it is told for every evaluation, by a clock of its own."""

    takes, time = 0.05, 0.0

    def now(self) -> float:
        self.time += 1e-6  # so that it goes on, whatever is done between two evaluations
        return self.time

    def set(self, strategy: Strategy) -> float:
        self.time += self.takes
        return super().set(strategy)

    def propose(self, changes, limit=inf, syncs: Mapping = NO_SYNCS, sums=None) -> float:  # type: ignore[no-untyped-def]
        self.time += self.takes
        return super().propose(changes, limit, syncs, sums)


@pytest.mark.parametrize(("model", "devices", "algorithm"), [
    ("NMT", 256, "guided"), ("RNNLM", 64, "guided"), ("Inception-v3", 64, "guided"), ("NMT", 64, "mcmc"), ("NMT", 64, "optcnn"),
])
def test_a_small_budget_holds_on_a_large_machine(model: str, devices: int, algorithm: str) -> None:
    graph, machine = build(model, devices=devices), load_machine("h100", devices)
    begin = time.process_time()
    judge = make_evaluator(graph, machine)
    data = known(graph, machine)[0]
    seconds = judge.set(data)
    MemoryCheck(judge)(data)
    least = time.process_time() - begin  # what evaluating data parallelism alone takes
    begin, started = time.process_time(), time.perf_counter()
    found = search(graph, machine, budget="1s", algorithm=algorithm, workers=1)
    # Of the processor's time, since others may use it too; then the clock ends the search the sooner. One worker, since it adds up.
    took = time.process_time() - begin
    assert took <= max(1.0, 1.5 * least) + 1.0, f"{took:.1f} s, of which data parallelism {least:.1f}: {found}"
    assert found.starts["data"] == seconds >= found.seconds
    assert found.search_seconds <= time.perf_counter() - started
    for start in {"expert", "model"} - set(found.starts):
        assert any(what.startswith(start) for what in found.left_out) and start in str(found)


@pytest.mark.parametrize("search_of", [guided, mcmc])
def test_slow_evaluations_end_before_the_budget_does(search_of) -> None:  # type: ignore[no-untyped-def]
    graph = tiny(3, 4)
    judge = Slow(graph, 4, rugged)

    def searched(seconds: float) -> SearchResult:
        clock = Clock(seconds, judge.now)
        return search_of(judge, SearchOptions(Budget(seconds), rivals=known(graph, judge.machine), clock=clock))

    found = searched(0.6)
    assert judge.time <= 0.6 + 2 * judge.takes and found.proposals >= 1  # one may have begun in time
    judge.takes, begin = 2.0, judge.time
    searched(4.2)
    assert judge.time - begin <= 4.2  # that the third takes longer than what is left is known by then
    judge.takes = 0.7
    found = searched(0.2)
    assert set(found.starts) == {"data"} and found.proposals == 0 and found.stopped == "budget"
    assert {"expert (no time to evaluate it)", "model (no time to evaluate it)"} <= set(found.left_out)
    assert found.as_json()["left_out"] == list(found.left_out)


def test_proposals_that_would_be_too_large_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foresight, "MANY_PROCESSORS", 8)
    monkeypatch.setattr(foresight, "CAREFUL", 0.0)
    graph, machine = build("mlp", preset="small", batch=8), load_machine("p100", 8)
    judge, tried = make_evaluator(graph, machine), []
    monkeypatch.setattr(foresight, "MOST_MESSAGES", 20)
    counted, ask = Messages(graph), judge.propose

    def propose(changes, limit=inf, syncs=NO_SYNCS, sums=None):  # type: ignore[no-untyped-def]
        tried.append(counted.around(judge.strategy.configs, changes))
        return ask(changes, limit, syncs, sums)

    monkeypatch.setattr(judge, "propose", propose)
    guided(judge, SearchOptions(Budget(seconds=100, proposals=300), rivals=known(graph, machine)))
    assert tried and max(tried) <= 20


@pytest.mark.parametrize("degrees", [(4, 1, 1), (1, 4, 1), (2, 2, 1), (1, 2, 2)])
def test_messages_are_counted_about_right(degrees: tuple[int, ...]) -> None:
    graph, machine = build("mlp", preset="small"), load_machine("p100", 4)
    data = known(graph, machine)[0]
    layers = [node for node in graph if len(node.dims) == 3 and node.parameters]
    changes = {node.name: OpConfig(degrees, (3, 0, 1, 2)) for node in layers[1:]}  # nothing lies where it is read
    there, before = lower(graph, Strategy(4, {**data.configs, **changes}, {}, "changed"), None), lower(graph, data, None)
    sent = sum(t.kind is Kind.COPY for t in there) - sum(t.kind is Kind.COPY for t in before)
    estimate = Messages(graph).around(data.configs, changes) / 2
    assert layers[1:] and 0.5 * sent <= estimate <= 3 * sent + 8


def test_a_bound_that_is_cut_short_still_holds() -> None:
    graph, machine = build("AlexNet", devices=4), load_machine("p100", 4)
    judge = make_evaluator(graph, machine)
    whole, asked = lower_bound(judge), []

    def over() -> bool:
        asked.append(0)
        return len(asked) > 5

    assert 0 < lower_bound(judge, over=over) < whole
    assert lower_bound(judge, over=lambda: True) <= lower_bound(judge, over=over)


def test_dynamic_programming_says_what_it_leaves_out() -> None:
    judge = make_evaluator(build("mlp", preset="small"), load_machine("h100", 2 * MOST_PROCESSORS))
    with pytest.raises(TimeoutError, match=f"more than {MOST_PROCESSORS} processors"):
        additive_plan(judge, over=lambda: False)
    small = make_evaluator(build("mlp", preset="small"), load_machine("h100", 8))
    with pytest.raises(TimeoutError, match="no time"):
        additive_plan(small, over=lambda: True)


@pytest.mark.usefixtures("nothing_else_collects")
def test_interrupting_any_phase_returns_the_best_so_far() -> None:
    graph, machine = build("NMT", devices=64), load_machine("k80", 64)
    for delay in (0.3, 2.0):
        judge, ctrl_c = make_evaluator(graph, machine), CtrlC(delay)
        judge.set(known(graph, machine)[0])
        found = search(graph, machine, budget="200s", workers=1, use=judge, progress=ctrl_c)
        assert found.stopped == "interrupted" and "data" in found.starts and 0 <= ctrl_c.seconds < 8


def test_a_clock_and_its_pace() -> None:
    clock = Clock(100.0)
    assert clock.allows(50) and clock.allows(103) and not clock.allows(110) and not clock.over
    clock.stopped = True
    assert clock.over and clock.left == 0 and not clock.allows(0)
    assert Clock().allows(1e9) and not Clock(1e-9).allows(0)
    pace, cut = Pace(), {"a": OpConfig((4,), (0, 1, 2, 3))}
    assert pace.expected(cut, 4) == 0
    pace.learn(cut, 4, 2.0)
    assert pace.expected(cut, 4) == 0  # known, and nothing known of known ones yet
    assert pace.expected({"b": cut["a"]}, 4) == pytest.approx(2.0)
    pace.learn(cut, 4, 1.0)
    assert pace.expected(cut, 4) == pytest.approx(1.0)


def test_many_candidates_are_an_even_sample_of_all() -> None:
    node = next(n for n in build("mlp", preset="small") if len(n.dims) == 3)
    space = OperatorSpace(node.dims, 12, SpaceOptions())
    for aligned in (True, False):
        every = space.candidates(aligned)
        assert len(every) == len(set(every)) and (aligned or len(every) == space.size)
        for most in (7, 100, len(every), 10 * len(every)):
            some = space.candidates(aligned, most)
            assert some == every[:: max(1, -(-len(every) // most))]
