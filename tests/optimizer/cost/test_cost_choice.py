"""Costs by name: what they are, and how searches behave where asking for a cost measures it."""

from __future__ import annotations

import os
import threading
import time
from math import nan
from pathlib import Path

import pytest
from measured_quickly import Stopwatch, watch
from modules import module_of

import taskflow
from taskflow.graph import OperatorGraph
from taskflow.kernels import NumpyKernels
from taskflow.machine import host, load_machine
from taskflow.models import build
from taskflow.optimizer.algorithms.initial import known
from taskflow.optimizer.algorithms.portfolio import in_threads
from taskflow.optimizer.bounds.work_and_path import lower_bound
from taskflow.optimizer.budget import Budget, Deadline
from taskflow.optimizer.cost.analytic import AnalyticCosts
from taskflow.optimizer.cost.choose import choose_costs
from taskflow.optimizer.cost.measured.blas_threads import blas_threads, openblas
from taskflow.optimizer.cost.measured.cache_state import between
from taskflow.optimizer.cost.measured.guard import NotMeasured, before_measuring, nothing_new
from taskflow.optimizer.cost.measured.model import MeasuredCosts
from taskflow.optimizer.evaluate import DEFAULT_RULE, make_evaluator
from taskflow.optimizer.explain.machine_changes import Change
from taskflow.optimizer.explain.what_if import Scenario, what_if
from taskflow.optimizer.search import search
from taskflow.optimizer.space.space import SpaceOptions
from taskflow.regions import Rect
from taskflow.rules import SGD
from taskflow.tasks.task import Kind

PAIR, RULE = host(2), SGD(lr=0.1)
SMALL = build("MLP", batch=8, preset="small")


@pytest.fixture
def stopwatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stopwatch:
    return watch(monkeypatch, tmp_path)


def model_of(costs: object) -> MeasuredCosts:
    model = getattr(costs, "model", costs)
    assert isinstance(model, MeasuredCosts)
    return model


# ---- by name ---------------------------------------------------------------------------------------------------------
def test_the_names() -> None:
    assert isinstance(choose_costs("analytic", SMALL, PAIR, RULE), AnalyticCosts)
    with pytest.raises(ValueError, match="costs must be analytic or measured, got 'guessed'"):
        choose_costs("guessed", SMALL, PAIR, RULE)
    with pytest.raises(ValueError, match="costs must be analytic or measured, got 'guessed'"):
        search(SMALL, PAIR, budget="5p", costs="guessed")


@pytest.mark.parametrize("name", ["k80", "p100"])
def test_what_is_not_at_hand_cannot_be_measured(name: str) -> None:
    said = rf"on the CPU at hand, but machine {name} has {name}; use analytic costs \(--costs analytic"
    with pytest.raises(ValueError, match=said) as raised:
        choose_costs("measured", SMALL, load_machine(name, 2), RULE)
    assert "\n" not in str(raised.value)


def test_a_plan_for_two_cores_is_measured_as_two_ranks_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKFLOW_CACHE", str(tmp_path))
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    found = between(SMALL, PAIR, RULE)
    for ranks, company, own, threads in ((None, 1, 2, 4), (2, 1, 2, None), (2, 1, 8, 4)):
        monkeypatch.setattr("taskflow.optimizer.cost.choose._threads", lambda kernels, own=own: own)
        costs = model_of(choose_costs("measured", SMALL, PAIR, RULE, ranks=ranks))
        assert (costs._company.count, costs._threads) == (company, threads)
        assert costs.between == found and found.code and found.age.share > 0
    in_turn = model_of(choose_costs("measured", SMALL, host(16), RULE, ranks=1))  # virtual processors of one process
    assert in_turn._company.count == 0 and in_turn.between == between(SMALL, host(1), RULE)
    crowded = model_of(choose_costs("measured", SMALL, host(16), RULE))
    assert (crowded._company.count, crowded._threads) == (7, 1)


def test_ranks_have_no_more_threads_than_there_are_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a process of its own has, that asks for two ranks: their threads would wait for each other's."""
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    with blas_threads(2):
        costs = model_of(choose_costs("measured", SMALL, PAIR, RULE, ranks=2, folder=tmp_path))
        assert costs._threads == costs.kernels.threads == 1
        if openblas() is not None:
            assert costs._clock is time.thread_time
        own = model_of(choose_costs("measured", SMALL, PAIR, RULE, ranks=1, folder=tmp_path))
        assert own._threads is None


def test_a_benchmark_measures_as_users_do_but_anew(stopwatch: Stopwatch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    mine, own = NumpyKernels(), tmp_path / "own"
    users = model_of(choose_costs("measured", SMALL, PAIR, RULE, ranks=2))
    anew = model_of(choose_costs("measured", SMALL, PAIR, RULE, ranks=2, kernels=mine, folder=own, seconds=0.5, company=0))
    assert anew.between == users.between and (users._company.count, anew._company.count) == (1, 0)
    assert anew.kernels is mine and anew._seconds == 0.5 != users._seconds
    anew.memory_seconds(Kind.FILL, 256, 0)
    assert stopwatch.count == 2 and [file.name[:6] for file in own.iterdir()] == ["costs-"]


def test_measuring_takes_the_threads_of_a_rank_and_gives_them_back(tmp_path: Path) -> None:
    library = openblas()
    if library is None:
        pytest.skip("numpy computes with another library than OpenBLAS")
    before = library.get_threads()
    with blas_threads(before + 1):
        assert library.get_threads() == before + 1
        with blas_threads(None):
            assert library.get_threads() == before + 1
    assert library.get_threads() == before
    one = MeasuredCosts(PAIR, folder=tmp_path, seconds=1e-3, threads=1)
    assert one.identity["blas_threads"] == one.identity["kernel_threads"] == "1" and one._clock is time.thread_time
    assert one.memory_seconds(Kind.FILL, 1 << 10, 0) > 0
    assert library.get_threads() == before


def test_the_default_is_analytic() -> None:
    """Whether it is named, given or left to the default, every number of the search is the same."""
    machine = load_machine("p100", 2)
    one, *others = [
        search(SMALL, machine, budget="300p", seed=3, rule=RULE, costs=costs)
        for costs in (None, "analytic", AnalyticCosts(machine))
    ]
    for other in others:
        assert (other.strategy, other.seconds, other.starts, other.lower_bound) == (
            one.strategy, one.seconds, one.starts, one.lower_bound)  # fmt: skip
        assert [(h.proposal, h.seconds) for h in other.history] == [(h.proposal, h.seconds) for h in one.history]
    assert one.lower_bound > 0 and make_evaluator(SMALL, machine).costs.name == "analytic p100"


# ---- searches --------------------------------------------------------------------------------------------------------
def test_a_search_measures_and_the_next_one_knows(stopwatch: Stopwatch) -> None:
    first = search(SMALL, PAIR, budget="100p", costs="measured", rule=RULE)
    first.strategy.verify(SMALL)
    measured = stopwatch.count
    assert measured > 0 and first.seconds <= min(first.starts.values())
    again = search(SMALL, PAIR, budget="100p", costs="measured", rule=RULE)
    assert stopwatch.count == measured
    assert (again.strategy, again.seconds, again.starts) == (first.strategy, first.seconds, first.starts)
    evaluator = make_evaluator(SMALL, PAIR, costs="measured", rule=RULE)
    assert evaluator.set(first.strategy) == first.seconds and evaluator.costs.name.startswith("measured ")


def test_nothing_but_data_parallelism_is_measured_without_time(stopwatch: Stopwatch) -> None:
    found = search(SMALL, PAIR, budget=Budget(1e-6), costs="measured", rule=RULE)
    assert list(found.starts) == ["data"] and found.stopped == "budget"
    measured = stopwatch.count
    evaluator = make_evaluator(SMALL, PAIR, costs="measured", rule=RULE)
    assert evaluator.set(known(SMALL, PAIR)[0]) == found.seconds
    assert stopwatch.count == measured, "the search has measured what data parallelism needs, and nothing else"


def test_measuring_ends_with_the_time_and_what_was_measured_stays(stopwatch: Stopwatch, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is over while the second strategy's tasks are being measured."""
    evaluator = make_evaluator(SMALL, PAIR, costs="measured", rule=RULE)
    evaluator.set(known(SMALL, PAIR)[0])
    of_data, elapsed = stopwatch.count, 0.0

    def at(number: int) -> None:
        nonlocal elapsed
        elapsed = 100.0 if number > of_data + 2 else 0.0

    stopwatch.at = at
    monkeypatch.setattr(module_of(search), "Deadline", lambda seconds: Deadline(seconds, lambda: elapsed))
    found = search(SMALL, PAIR, budget="50s", use=evaluator)
    assert list(found.starts) == ["data"] and stopwatch.count == of_data + 3
    assert found.left_out == ("expert (no time to evaluate it)", "model (no time to evaluate it)")
    elapsed, stopwatch.at = 0.0, lambda number: None
    fresh = make_evaluator(SMALL, PAIR, costs="measured", rule=RULE)
    for plan in known(SMALL, PAIR):  # of the evaluation that was broken off nothing wrong is left
        assert evaluator.set(plan) == fresh.set(plan)


def test_ctrl_c_while_measuring_gives_the_best_so_far(stopwatch: Stopwatch) -> None:
    evaluator = make_evaluator(SMALL, PAIR, costs="measured", rule=RULE)
    evaluator.set(known(SMALL, PAIR)[0])
    of_data = stopwatch.count

    def at(number: int) -> None:
        if number == of_data + 2:
            raise KeyboardInterrupt

    stopwatch.at = at
    found = search(SMALL, PAIR, budget="1000p", use=evaluator)
    assert found.stopped == "interrupted" and found.strategy.name == "data" and stopwatch.count == of_data + 2
    fresh = make_evaluator(SMALL, PAIR, costs="measured", rule=RULE)
    for plan in known(SMALL, PAIR):
        assert evaluator.set(plan) == fresh.set(plan)


def test_a_cost_that_is_no_number_is_an_error() -> None:
    class Broken(AnalyticCosts):
        def compute_seconds(self, *_: object, **__: object) -> float:
            return nan

    evaluator = make_evaluator(SMALL, PAIR, costs=Broken(PAIR), rule=RULE)
    if type(evaluator).__name__ != "CompiledEvaluator":
        pytest.skip("not compiled")
    with pytest.raises(ValueError, match="must be a number, got NaN"):
        evaluator.set(known(SMALL, PAIR)[0])


# ---- bounds and proofs -----------------------------------------------------------------------------------------------
def tiny() -> OperatorGraph:
    graph = OperatorGraph(name="tiny")
    x = taskflow.input(graph, (4, 6), name="x")
    graph.minimize(taskflow.mse_loss(taskflow.linear(x, 2, name="layer"), taskflow.input(graph, (4, 2), name="y")))
    return graph


def test_nothing_is_measured_for_a_bound(stopwatch: Stopwatch) -> None:
    graph = tiny()
    evaluator = make_evaluator(graph, PAIR, costs="measured", rule=RULE)
    assert lower_bound(evaluator) == 0.0 and stopwatch.count == 0
    found = search(graph, PAIR, budget="2000p", use=evaluator)
    measured = stopwatch.count
    bound = lower_bound(evaluator)
    assert 0 < bound <= found.seconds and found.lower_bound == bound and stopwatch.count == measured


def test_a_proof_under_measured_costs(stopwatch: Stopwatch) -> None:
    graph = tiny()
    evaluator = make_evaluator(graph, PAIR, costs="measured", rule=RULE)
    proved = search(graph, PAIR, budget="50000p", algorithm="exact", use=evaluator)
    assert proved.optimal and proved.lower_bound == proved.seconds
    for algorithm in ("guided", "optcnn", "mcmc"):
        assert search(graph, PAIR, budget="500p", algorithm=algorithm, use=evaluator).seconds >= proved.seconds


def test_a_proof_that_would_have_to_measure_too_much_is_left_out(stopwatch: Stopwatch) -> None:
    found = search(tiny(), PAIR, budget=Budget(1e-6), algorithm="exact", costs="measured", rule=RULE)
    assert "proof (no time to measure all costs)" in found.left_out and found.algorithm == "exact" and not found.optimal


# ---- one at a time ---------------------------------------------------------------------------------------------------
def test_one_task_is_measured_at_a_time(stopwatch: Stopwatch) -> None:
    now = most = 0

    def at(number: int) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        time.sleep(1e-3)
        now -= 1

    stopwatch.at = at
    found = search(SMALL, PAIR, budget="2s,60p", costs="measured", rule=RULE, workers=3)
    assert found.seconds > 0 and stopwatch.count > 3 and most == 1
    costs = choose_costs("measured", SMALL, PAIR, RULE)
    assert stopwatch.count == len(model_of(costs).measurements), "no task was measured twice"


def test_one_thread_searches_unless_more_are_asked_for(stopwatch: Stopwatch, monkeypatch: pytest.MonkeyPatch) -> None:
    module = module_of(in_threads)
    monkeypatch.setattr(module, "worth", lambda *_: True)
    monkeypatch.setattr(module, "cores", lambda: 4)
    used: list[int] = []

    def portfolio(evaluator: object, options: object, searcher: object, workers: int) -> None:
        used.append(workers)
        raise InterruptedError

    monkeypatch.setattr(module, "portfolio", portfolio)
    search(SMALL, PAIR, budget=0.05, costs="measured", rule=RULE)
    assert used == []
    with pytest.raises(InterruptedError):
        search(SMALL, PAIR, budget=0.05, rule=DEFAULT_RULE)
    with pytest.raises(InterruptedError):
        search(SMALL, PAIR, budget=0.05, costs="measured", rule=RULE, workers=2)
    assert used == [4, 2]


def test_who_may_not_measure_is_told_what_is_known(stopwatch: Stopwatch) -> None:
    costs = model_of(choose_costs("measured", SMALL, PAIR, RULE))
    node = SMALL.nodes[-1]
    whole = Rect((0,) * len(node.dims), tuple(d.size for d in node.dims))
    other: list[float] = []
    with before_measuring(nothing_new):
        with pytest.raises(NotMeasured):
            costs.compute_seconds(node.operator, node.specs, whole, False)
        thread = threading.Thread(target=lambda: other.append(costs.compute_seconds(node.operator, node.specs, whole, False)))
        thread.start()  # of another thread nothing was said
        thread.join()
        assert costs.compute_seconds(node.operator, node.specs, whole, False) == other[0]
    assert costs.measured == stopwatch.count == 1


# ---- what if ---------------------------------------------------------------------------------------------------------
def test_what_if_of_links_but_not_of_the_processor_at_hand(stopwatch: Stopwatch) -> None:
    plan = known(SMALL, PAIR)[0]
    (slower,) = what_if(SMALL, PAIR, plan, [Scenario((Change("latency", 3.0),))], rule=RULE, costs="measured")
    before = make_evaluator(SMALL, PAIR, costs="measured", rule=RULE).set(plan)
    assert slower.seconds > before and slower.speedup == pytest.approx(before / slower.seconds)
    with pytest.raises(ValueError, match="what-if links=2x,compute=2x: measured costs are of the processor at hand"):
        what_if(SMALL, PAIR, plan, [Scenario((Change("links", 2), Change("compute", 2)))], rule=RULE, costs="measured")


def test_as_a_user_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is put in anything's place: tasks run, beside others where there is another core."""
    monkeypatch.setenv("TASKFLOW_CACHE", str(tmp_path))
    options = SpaceOptions("powers", "contiguous", reduction=False)
    found = search(tiny(), PAIR, budget="10p", costs="measured", rule=RULE, space=options, memory=False)
    (file,) = tmp_path.iterdir()
    text = file.read_text()
    assert found.seconds > 0 and file.name.startswith("costs-")
    assert ("in company of 1" in text) == ((os.cpu_count() or 1) > 1)
