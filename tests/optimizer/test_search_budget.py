"""Budgets are obeyed: every phase looks at the clock and at Ctrl-C, and what there was no time for is said."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from math import inf
from random import Random

import pytest
from fast_and_slow import fast_among
from search_toys import CtrlC, Table, rugged, tiny

from taskflow.machine import load_machine
from taskflow.mapper import HybridParallel, HybridPlan, OpConfig, Strategy, map_graph
from taskflow.models import build
from taskflow.models.llama import LlamaConfig, llama
from taskflow.optimizer import budget as budgets
from taskflow.optimizer.algorithms.guided import guided
from taskflow.optimizer.algorithms.initial import known
from taskflow.optimizer.algorithms.mcmc import mcmc
from taskflow.optimizer.algorithms.moves import SYNCS
from taskflow.optimizer.algorithms.optcnn import MOST_PAIRED, additive_plan
from taskflow.optimizer.bounds.work_and_path import lower_bound
from taskflow.optimizer.budget import Budget, Deadline, Looks
from taskflow.optimizer.cost.task_costs import Roofline
from taskflow.optimizer.evaluate import make_evaluator
from taskflow.optimizer.evaluate.evaluator import NO_SYNCS
from taskflow.optimizer.grid import PlanGrid, PlanMemory
from taskflow.optimizer.memory_check import MemoryCheck
from taskflow.optimizer.memory_estimate import MemoryEstimate
from taskflow.optimizer.options import SearchOptions
from taskflow.optimizer.result import SearchResult
from taskflow.optimizer.search import search
from taskflow.optimizer.space.space import OperatorSpace, SearchSpace, SpaceOptions
from taskflow.optimizer.traffic.messages import Messages
from taskflow.rules import SGD
from taskflow.tasks.lower.lower import lower
from taskflow.tasks.task import Kind


def test_lowering_a_whole_step_and_estimating_memory_look_at_the_time() -> None:
    """Once for each operator's pieces, forward and backward tasks, and bundle of weights, whether or not there are passes."""
    machine = load_machine("h100", 8)
    graph = llama(replace(LlamaConfig.small(), batch=16, layers=2))
    for plan in ("d8", "d8 zero1 mb1", "p2 d4 zero3 mb1"):
        evaluator, calls = make_evaluator(graph, machine, rule=SGD(0.1)), [0]
        strategy = map_graph(HybridParallel(plan), graph, machine)
        estimate = MemoryEstimate(evaluator)
        estimate.likely(strategy)  # what operators hold is known from now on

        def called(calls: list[int] = calls) -> None:
            calls[0] += 1

        with evaluator.interruptible(called):
            evaluator.lowered(strategy)
            lowering, calls[0] = calls[0], 0
            estimate.likely(strategy)
        passes = len(graph) if strategy.pipeline is None else 16
        assert lowering >= len(graph) + passes and calls[0] >= 3 * len(graph)


class Slow(Table):
    """Takes as long as it is told for every evaluation, by a clock of its own, and has a checkpoint every hundredth of a second."""

    takes, time = 0.05, 0.0

    def now(self) -> float:
        self.time += 1e-6  # so that it goes on, whatever is done between two evaluations
        return self.time

    def _work(self) -> None:
        end = self.time + self.takes
        while self.time < end:
            self.time += 0.01
            self.checkpoint()

    def set(self, strategy: Strategy) -> float:
        self._work()
        return super().set(strategy)

    def propose(self, changes, limit=inf, syncs: Mapping = NO_SYNCS, sums=None) -> float:  # type: ignore[no-untyped-def]
        self._work()
        return super().propose(changes, limit, syncs, sums)


@pytest.mark.parametrize(("model", "devices", "algorithm"), fast_among([
    ("NMT", 256, "guided"), ("RNNLM", 64, "guided"), ("Inception-v3", 64, "guided"), ("NMT", 64, "mcmc"), ("NMT", 64, "optcnn"),
], [("NMT", 256, "guided")]))
def test_a_small_budget_holds_on_a_large_machine(model: str, devices: int, algorithm: str) -> None:
    graph, machine = build(model, devices=devices), load_machine("h100", devices)
    begin = time.process_time()
    evaluator = make_evaluator(graph, machine)
    data = known(graph, machine)[0]
    seconds = evaluator.set(data)
    MemoryCheck(evaluator)(data)
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
def test_slow_evaluations_are_broken_off_when_the_budget_ends(search_of) -> None:  # type: ignore[no-untyped-def]
    graph = tiny(3, 4)
    evaluator = Slow(graph, 4, rugged)

    def searched(seconds: float) -> SearchResult:
        clock = Deadline(seconds, evaluator.now)
        return search_of(evaluator, SearchOptions(Budget(seconds), rivals=known(graph, evaluator.machine), deadline=clock))

    found = searched(0.6)
    assert evaluator.time <= 0.62 and found.proposals >= 1
    evaluator.takes, begin = 2.0, evaluator.time
    found = searched(4.2)
    assert evaluator.time - begin <= 4.22 and len(found.starts) == 2 and "model (no time to evaluate it)" in found.left_out
    evaluator.takes, begin = 0.7, evaluator.time
    found = searched(0.2)
    assert evaluator.time - begin <= 0.72  # the first strategy of all is evaluated to its end
    assert set(found.starts) == {"data"} and found.proposals == 0 and found.stopped == "budget"
    assert {"expert (no time to evaluate it)", "model (no time to evaluate it)"} <= set(found.left_out)
    assert found.as_json()["left_out"] == list(found.left_out)


def test_proposals_that_would_be_too_large_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgets, "MANY_PROCESSORS", 8)
    graph, machine = build("mlp", preset="small", batch=8), load_machine("p100", 8)
    evaluator, tried = make_evaluator(graph, machine), []
    monkeypatch.setattr(budgets, "MOST_MESSAGES", 20)
    counted, ask = Messages(graph), evaluator.propose

    def propose(changes, limit=inf, syncs=NO_SYNCS, sums=None):  # type: ignore[no-untyped-def]
        tried.append(counted.around(evaluator.strategy.configs, changes))
        return ask(changes, limit, syncs, sums)

    monkeypatch.setattr(evaluator, "propose", propose)
    guided(evaluator, SearchOptions(Budget(seconds=100, proposals=300), rivals=known(graph, machine)))
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
    evaluator = make_evaluator(graph, machine)
    whole, asked = lower_bound(evaluator), []

    def over() -> bool:
        asked.append(0)
        return len(asked) > 5

    assert 0 < lower_bound(evaluator, over=over) < whole
    assert lower_bound(evaluator, over=lambda: True) <= lower_bound(evaluator, over=over)


def test_dynamic_programming_says_what_it_leaves_out() -> None:
    evaluator = make_evaluator(build("mlp", preset="small"), load_machine("h100", 2 * MOST_PAIRED))
    with pytest.raises(TimeoutError, match=f"more than {MOST_PAIRED} processors"):
        additive_plan(evaluator, over=lambda: False)
    small = make_evaluator(build("mlp", preset="small"), load_machine("h100", 8))
    with pytest.raises(TimeoutError, match="no time"):
        additive_plan(small, over=lambda: True)


@pytest.mark.usefixtures("nothing_else_collects")
@pytest.mark.parametrize("delay", fast_among([0.3, 2.0], [2.0]))
def test_interrupting_any_phase_returns_the_best_so_far(delay: float) -> None:
    graph, machine = build("NMT", devices=64), load_machine("k80", 64)
    evaluator, ctrl_c = make_evaluator(graph, machine), CtrlC(delay)
    evaluator.set(known(graph, machine)[0])
    found = search(graph, machine, budget="200s", workers=1, use=evaluator, progress=ctrl_c)
    assert found.stopped == "interrupted" and "data" in found.starts and 0 <= ctrl_c.seconds < 8


def test_a_deadline() -> None:
    time = 0.0
    deadline = Deadline(100.0, lambda: time)
    assert not deadline.expired and deadline.left == 100.0 and not Deadline().expired
    time = 99.0
    assert deadline.left == 1.0 and deadline.elapsed == 99.0
    deadline.stopped = True
    assert deadline.expired and deadline.left == 0


class Enough(Exception):
    pass


@pytest.mark.parametrize(("algorithm", "clip"), fast_among([("full", None), ("full", 1.0), ("delta", None)], [("delta", None)]))
@pytest.mark.parametrize("seed", fast_among(range(4), [1]))
def test_what_is_broken_off_leaves_nothing_behind(seed: int, algorithm: str, clip: float | None) -> None:
    """Evaluations end at any checkpoint; those that come to their end give what a new evaluator gives, bit for bit."""
    core = pytest.importorskip("taskflow.optimizer.evaluate.compiled", reason="the compiled core is not built")
    random, graph, machine = Random(seed), build("NMT", devices=16), load_machine("k80", 16)
    space = SearchSpace(graph, 16)
    names, layers = [node.name for node in graph], sorted({p.layer for p in graph.parameters})
    here = core.CompiledEvaluator(graph, machine, Roofline(machine), SGD(0.1), clip, algorithm)
    here._core.ask_every(0.0)
    here.set(known(graph, machine)[0])
    broken = 0
    for _ in range(25):
        other = space.random(random)
        changes = {name: other[name] for name in random.sample(names, 2)}
        syncs = {random.choice(layers): random.choice(SYNCS)}
        left = random.randrange(120)

        def count() -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Enough

        before = here.strategy
        with here.interruptible(count):
            try:
                here.propose(changes, inf, syncs)
            except Enough:
                broken += 1
        if left < 0:
            with pytest.raises(ValueError, match="accept"):
                here.accept()
            assert here.strategy is before
        fresh = core.CompiledEvaluator(graph, machine, Roofline(machine), SGD(0.1), clip)
        wanted = fresh.set(here.changed(changes, syncs))
        assert here.propose(changes, inf, syncs) == wanted
        if random.random() < 0.5:
            here.accept()
            assert here.timeline() == fresh.timeline()
    assert 5 < broken < 25


def test_a_proposal_that_is_given_up_between_two_changes_leaves_no_error_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The core was asking for a cost when the time ended, and Python asked for the time before the core was evaluated."""
    core = pytest.importorskip("taskflow.optimizer.evaluate.compiled", reason="the compiled core is not built")
    graph, machine = build("MLP", preset="small"), load_machine("p100", 4)

    class Asked(Roofline):
        """As another class it is asked for every cost."""

    here = core.CompiledEvaluator(graph, machine, Asked(machine), SGD(0.1), None)
    start, other = known(graph, machine)[0], SearchSpace(graph, 4).random(Random(2))
    seconds, asked = here.set(start), 0

    def too_late(*arguments: object) -> float:
        nonlocal asked
        asked += 1
        raise Enough

    def now() -> None:
        if asked:
            raise Enough

    changes = {node.name: other[node.name] for node in graph if other[node.name].degrees != start[node.name].degrees}
    with monkeypatch.context() as patch, here.interruptible(now):
        patch.setattr(here.costs, "piece", too_late)
        with pytest.raises(Enough):
            here.propose(changes)
    assert asked and len(changes) > 1
    assert here.propose({}) == seconds and here.set(start) == seconds


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [4.0, 7.0, 11.0, 16.0])
def test_a_search_on_1024_devices_ends_within_a_second_of_its_budget(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the end comes: the bound, an evaluation, a check of memory. In processor time, as others may use the machine."""
    module = import_module("taskflow.optimizer.search")
    monkeypatch.setattr(module, "Deadline", lambda seconds: Deadline(seconds, time.process_time))
    graph, machine = build("NMT", devices=1024), load_machine("h100", 1024)
    evaluator = make_evaluator(graph, machine)
    MemoryCheck(evaluator)(known(graph, machine)[0])
    begin = time.process_time()
    found = search(graph, machine, budget=seconds, use=evaluator, workers=1)
    took = time.process_time() - begin
    first = found.history[0].elapsed  # until data parallelism had been evaluated, which is done in any case
    assert took <= max(seconds, first) + 1.0, f"{took:.1f} s: {found}"


def test_looks_are_shared_by_parts() -> None:
    looks = Looks(10)
    part = looks.part(0.5)
    assert [part() for _ in range(7)] == [False] * 5 + [True] * 2
    rest = looks.part()
    assert [rest() for _ in range(6)] == [False] * 5 + [True] and looks.part()()
    assert not any(part() for part in [Looks().part(0.5)] for _ in range(1000))


def test_proposals_bound_the_plans_that_are_priced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small budget looks at few plans in closed form, a larger one at more, up to all; the same ones each time."""
    searching = import_module("taskflow.optimizer.grid.plan_search")
    monkeypatch.setattr("taskflow.optimizer.grid.plans.MEMORY_SHARE", 0.0)
    monkeypatch.setattr(searching, "LEAST_LOOKS", 40)
    monkeypatch.setattr(searching, "LOOKS", 20)
    graph, machine = llama(replace(LlamaConfig.small(), batch=16, layers=2), "bfloat16"), load_machine("h100", 8)
    asked, memory = [0], PlanGrid.memory

    def counted(self: PlanGrid, plan: HybridPlan, count: int) -> PlanMemory:
        asked[0] += 1
        return memory(self, plan, count)

    monkeypatch.setattr(PlanGrid, "memory", counted)
    found = []
    for budget in ("1p", "20p", "20p", "1000p"):
        asked[0] = 0
        seconds = search(graph, machine, budget=budget).seconds
        found.append((asked[0], seconds))
    assert found[0][0] <= 40 + 10 < found[1][0] <= 20 * 20 + 10 < found[3][0]
    assert found[1] == found[2] and found[0][1] >= found[1][1] >= found[3][1]


def test_many_candidates_are_an_even_sample_of_all() -> None:
    node = next(n for n in build("mlp", preset="small") if len(n.dims) == 3)
    space = OperatorSpace(node.dims, 12, SpaceOptions())
    for aligned in (True, False):
        every = space.candidates(aligned)
        assert len(every) == len(set(every)) and (aligned or len(every) == space.size)
        for most in (7, 100, len(every), 10 * len(every)):
            some = space.candidates(aligned, most)
            assert some == every[:: max(1, -(-len(every) // most))]
