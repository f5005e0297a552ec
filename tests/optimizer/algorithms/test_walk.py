"""A walk in C++ draws and decides what the same walk in Python does, keeps what Python must decide, and can be stopped."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import inf
from random import Random
from time import process_time

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from search_toys import CtrlC

import taskflow
from taskflow.graph import OperatorGraph
from taskflow.machine import load_machine
from taskflow.mapper import Strategy
from taskflow.models import build
from taskflow.optimizer import budget as budgets
from taskflow.optimizer.algorithms.initial import random_start
from taskflow.optimizer.algorithms.mcmc import BETA, mcmc
from taskflow.optimizer.algorithms.mcmc_compiled import CompiledChain, core_walk, walks
from taskflow.optimizer.algorithms.splitmix import SplitMix
from taskflow.optimizer.budget import Budget, Deadline
from taskflow.optimizer.cost.task_costs import Roofline
from taskflow.optimizer.evaluate import make_evaluator
from taskflow.optimizer.evaluate.evaluator import Evaluator
from taskflow.optimizer.options import SearchOptions
from taskflow.optimizer.result import SearchResult
from taskflow.optimizer.session import SearchSession
from taskflow.optimizer.space.constraints import Constraints
from taskflow.optimizer.space.followers import CoupledMoves
from taskflow.optimizer.space.space import PLACEMENTS, SearchSpace, SpaceOptions

pytest.importorskip("taskflow.optimizer.evaluate._core")

GRAPHS = {
    "LeNet": build("LeNet", preset="small"),
    "RNNLM": build("RNNLM", batch=8, preset="small", steps=4, steps_per_operator=2),
    "MLP": build("MLP", preset="small"),
}
K80 = {n: load_machine("k80", n) for n in (2, 3, 4, 8)}


def start_of(graph: OperatorGraph, devices: int, options: SpaceOptions, seed: int) -> Strategy:
    return random_start(graph, K80[devices], SearchSpace(graph, devices, options), Random(seed), f"random {seed}")


def lasting(seconds: float, options: SpaceOptions, **more: object) -> SearchOptions:
    """For so many seconds of the processor's time, which do not depend on how much of it others take."""
    return SearchOptions(Budget(seconds=seconds), 1, options, deadline=Deadline(seconds, process_time), **more)  # type: ignore[arg-type]


def in_python(evaluator: Evaluator, options: SpaceOptions) -> Evaluator:
    """The same evaluator, whose walks are made proposal by proposal."""
    space, moves, compiled = walks(evaluator, options)
    assert compiled is not None  # else nothing is compared
    evaluator.walks[options] = space, moves, None
    return evaluator


def outcome(found: SearchResult) -> tuple[object, ...]:
    history = [(h.proposal, h.seconds) for h in found.history]
    return found.strategy, found.seconds, found.proposals, found.accepted, found.refused, found.stopped, found.starts, history


def test_draws_are_those_of_the_published_generator() -> None:
    draws = SplitMix(1234567)
    words = [draws.getrandbits(64) for _ in range(5)]  # as the reference program of SplitMix64 prints them
    assert words == [
        6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821,
    ]
    assert SplitMix(5).random() == (SplitMix(5).getrandbits(64) >> 11) / 2**53
    assert SplitMix("a").state != SplitMix("b").state and SplitMix("a").state == SplitMix("a").state


@pytest.mark.parametrize("n", [1, 2, 3, 5, 12, 3 << 70])
def test_draws_are_uniform_and_below_their_limit(n: int) -> None:
    draws = SplitMix(f"below {n}")
    counts = Counter(draws.randrange(n) * min(n, 6) // n for _ in range(6000))
    assert set(counts) == set(range(min(n, 6)))
    assert sum((c - 6000 / len(counts)) ** 2 / (6000 / len(counts)) for c in counts.values()) < 25
    assert draws.randrange(10, 20, 3) in (10, 13, 16, 19)
    with pytest.raises(ValueError, match="something to choose from"):
        draws.below(0)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(sorted(GRAPHS)), st.sampled_from(sorted(K80)), st.sampled_from(PLACEMENTS), st.sampled_from(["any", "even"]),
    st.sampled_from([{}, {"*": {"devices": "1-2", "max_degree": 2}}, {"*": {"pin": "whole @ 1"}}]), st.integers(0, 2**32),
)
def test_configurations_have_the_same_numbers(model: str, devices: int, placements: str, degrees: str, rules, seed: int) -> None:  # type: ignore[no-untyped-def]
    graph = GRAPHS[model]
    if devices == 2 and rules:
        rules = {"*": {"devices": "1"}}
    options = SpaceOptions(degrees, placements, constraints=Constraints.parse(rules))
    moves = CoupledMoves(graph, SearchSpace(graph, devices, options))
    compiled = core_walk(make_evaluator(graph, K80[devices]), moves)
    assert compiled is not None
    random = Random(seed)
    for leader, space in enumerate(moves.spaces):
        for number in {0, space.size - 1, *(random.randrange(space.size) for _ in range(20))}:
            config = space.numbered(number)
            assert compiled.processors(leader, number) == config.processors
            assert moves.numbered(leader, number)[moves.leaders[leader].name] == config


@pytest.mark.parametrize(("devices", "ways"), [(8, 6), (16, 24)])
def test_every_order_of_many_cut_dimensions_is_the_same(devices: int, ways: int) -> None:
    graph = build("AlexNet", batch=16)
    space = SearchSpace(graph, devices)
    moves = CoupledMoves(graph, space)
    compiled = core_walk(make_evaluator(graph, load_machine("k80", devices)), moves)
    assert compiled is not None
    most = [max(map(space.orders, space.tuples)) for space in moves.spaces]
    leader = most.index(max(most))
    assert most[leader] == ways
    for number in range(0, moves.spaces[leader].size, 1 + moves.spaces[leader].size // 3000):
        assert compiled.processors(leader, number) == moves.spaces[leader].numbered(number).processors


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(sorted(GRAPHS)), st.sampled_from(sorted(K80)), st.sampled_from(PLACEMENTS),
    st.sampled_from(["none", "elementwise"]), st.sampled_from([1.0, BETA, 1e5]), st.booleans(), st.integers(1, 400),
    st.integers(0, 1000),
)
@example("MLP", 2, "structured", "none", BETA, True, 183, 237)  # patience and proposals end together
def test_a_walk_is_that_in_python(
    model: str, devices: int, placements: str, follow: str, beta: float, patient: bool, budget: int, seed: int
) -> None:
    assume(placements != "contiguous" or follow == "none")  # followers are repaired, proposal by proposal
    graph, options = GRAPHS[model], SpaceOptions("even", placements, follow=follow)
    starts = tuple(start_of(graph, devices, options, seed + i) for i in range(3))
    search = SearchOptions(Budget(proposals=budget), seed, options, starts=starts)
    evaluator, twin = make_evaluator(graph, K80[devices]), in_python(make_evaluator(graph, K80[devices]), options)
    for again in range(2):  # the second time with the tables of the first
        here = mcmc(evaluator, replace(search, seed=seed + again), beta=beta, patient=patient)
        there = mcmc(twin, replace(search, seed=seed + again), beta=beta, patient=patient)
        assert outcome(here) == outcome(there)
        assert evaluator.proposals == twin.proposals and here.proposals <= budget
        assert evaluator.strategy.configs == twin.strategy.configs and evaluator.seconds == twin.seconds
        assert evaluator.pieces == sum(len(config.processors) for config in evaluator.strategy.configs.values())
        assert make_evaluator(graph, K80[devices]).set(evaluator.strategy) == evaluator.seconds


def test_followers_are_contiguous_where_that_is_asked_for() -> None:
    options = SpaceOptions("even", "contiguous", follow="elementwise")
    evaluator = make_evaluator(GRAPHS["LeNet"], K80[4])
    assert walks(evaluator, options)[2] is None
    start = start_of(GRAPHS["LeNet"], 4, replace(options, placements="arbitrary"), 1)
    found = mcmc(evaluator, SearchOptions(Budget(proposals=200), 0, options, starts=(start,)))
    for config in found.strategy.configs.values():
        assert config.processors == tuple((config.processors[0] + i) % 4 for i in range(len(config.processors)))


def test_followers_of_deep_networks_are_the_twins() -> None:
    graph, options = build("ResNet-101", preset="small"), SpaceOptions("even", follow="elementwise")
    search = SearchOptions(Budget(proposals=150), 3, options, starts=(start_of(graph, 4, options, 1),))
    evaluator, twin = make_evaluator(graph, K80[4]), in_python(make_evaluator(graph, K80[4]), options)
    assert outcome(mcmc(evaluator, search)) == outcome(mcmc(twin, search))
    assert evaluator.strategy.configs == twin.strategy.configs


def test_plans_that_do_not_fit_are_refused_as_in_python() -> None:
    graph, options = GRAPHS["LeNet"], SpaceOptions("even")
    start = start_of(graph, 4, options, 2)
    crowd = lambda s: "" if sum(0 in c.processors for c in s.configs.values()) < 0.75 * len(s.configs) else "too many"  # noqa: E731
    search = SearchOptions(Budget(proposals=600), 1, options, starts=(start,), lacks=crowd)
    evaluator, twin = make_evaluator(graph, K80[4]), in_python(make_evaluator(graph, K80[4]), options)
    here, there = mcmc(evaluator, search), mcmc(twin, search)
    assert outcome(here) == outcome(there)
    assert here.refused > 0 and not crowd(here.strategy)


def test_constraints_hold_in_both_kinds_of_walk() -> None:
    graph = GRAPHS["LeNet"]
    for table, compiled in (({"conv*": {"forbid": ["n"]}}, True), ({"*relu*": {"devices": "2"}}, False)):
        limits = Constraints.parse(table)
        permitted = limits.resolve(graph, 4)
        options = SpaceOptions("even", follow="elementwise", constraints=limits)
        evaluator = make_evaluator(graph, K80[4])
        assert permitted and (walks(evaluator, options)[2] is not None) == compiled
        found = mcmc(evaluator, SearchOptions(Budget(proposals=200), 1, options))
        assert found.accepted > 10
        for name, of in permitted.items():
            assert not of.violation(found.strategy[name]) and not of.violation(evaluator.strategy[name])


@pytest.mark.usefixtures("nothing_else_collects")
def test_an_interrupt_keeps_the_best_plan() -> None:
    graph, options = GRAPHS["RNNLM"], SpaceOptions("even")
    evaluator = make_evaluator(graph, K80[4])
    assert walks(evaluator, options)[2] is not None
    ctrl_c = CtrlC(0.3)
    found = mcmc(evaluator, SearchOptions(Budget(proposals=10**9), 1, options, progress=ctrl_c, progress_every=0.0))
    assert found.stopped == "interrupted" and 0 <= ctrl_c.seconds < 10
    assert make_evaluator(graph, K80[4]).set(found.strategy) == found.seconds == found.history[-1].seconds
    assert make_evaluator(graph, K80[4]).set(evaluator.strategy) == evaluator.seconds  # where it stands is known


class Failing(Roofline):
    """Costs that fail after so many questions."""

    left = inf

    def piece(self, *args, **named) -> float:  # type: ignore[no-untyped-def]
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("the device is gone")
        return super().piece(*args, **named)


def test_what_costs_raise_ends_the_walk() -> None:
    graph, options = GRAPHS["LeNet"], SpaceOptions("even")
    costs = Failing(K80[4])
    evaluator = make_evaluator(graph, K80[4], costs=costs)
    evaluator.set(start_of(graph, 4, options, 1))
    costs.left = 30
    with pytest.raises(RuntimeError, match="the device is gone"):
        mcmc(evaluator, SearchOptions(Budget(proposals=10_000), 1, options, starts=(evaluator.strategy,)))
    costs.left = inf
    assert make_evaluator(graph, K80[4], costs=costs).set(evaluator.strategy) == evaluator.seconds
    assert mcmc(evaluator, SearchOptions(Budget(proposals=100), 1, options)).proposals == 100


def test_a_budget_of_time_is_kept_and_progress_told() -> None:
    graph, options, told = GRAPHS["RNNLM"], SpaceOptions("even"), []
    evaluator = make_evaluator(graph, K80[4])
    begin = process_time()
    found = mcmc(evaluator, lasting(0.5, options, progress=told.append, progress_every=0.05), beta=1.0)
    assert found.proposals > 100 and process_time() - begin < 3
    assert len(told) > 3 and [p.proposals for p in told] == sorted(p.proposals for p in told)
    assert told[-1].proposals == found.proposals and told[-1].best == found.seconds


def test_half_of_the_time_without_a_better_plan_ends_a_walk() -> None:
    graph, options = GRAPHS["MLP"], SpaceOptions("even")
    starts = (start_of(graph, 2, options, 1),)
    evaluator = make_evaluator(graph, K80[2])
    found = mcmc(evaluator, lasting(0.6, options, starts=starts), beta=1e9)
    assert found.stopped == "stalled" and 0.3 < found.search_seconds < 0.59  # the few plans of two devices are soon seen


@pytest.mark.parametrize("many", [4, 8])
def test_where_messages_are_counted_a_walk_goes_on_in_python(many: int, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, options = GRAPHS["LeNet"], SpaceOptions("even")
    monkeypatch.setattr(budgets, "MANY_PROCESSORS", many)
    asked, compiled = [], []
    ask, count = SearchSession.propose, SearchSession.walked

    def propose(run: SearchSession, *arguments) -> bool:  # type: ignore[no-untyped-def]
        before = run.proposals
        try:
            return ask(run, *arguments)
        finally:  # one for which there is no time any more does not count
            asked.append(run.proposals - before)

    def walked(run: SearchSession, proposals: int, accepted: int, now: float) -> None:
        compiled.append(proposals)
        count(run, proposals, accepted, now)

    monkeypatch.setattr(SearchSession, "propose", propose)
    monkeypatch.setattr(SearchSession, "walked", walked)
    evaluator = make_evaluator(graph, K80[4])
    found = mcmc(evaluator, lasting(0.6, options), beta=1.0)
    assert found.proposals == sum(asked) + sum(compiled)
    assert sum(compiled) == 0 and sum(asked) > 50 if many == 4 else sum(compiled) > 50 and sum(asked) == 0
    assert make_evaluator(graph, K80[4]).set(found.strategy) == found.seconds


def test_without_a_core_there_is_no_compiled_walk() -> None:
    graph = GRAPHS["LeNet"]
    many = SpaceOptions("even", "arbitrary", most_pieces=64)
    space = SearchSpace(graph, 64, many)
    assert core_walk(make_evaluator(graph, load_machine("k80", 64)), CoupledMoves(graph, space)) is None  # 64**64 configurations
    assert isinstance(core_walk(make_evaluator(graph, K80[4]), CoupledMoves(graph, SearchSpace(graph, 4))), CompiledChain)


def alike(layers: int) -> OperatorGraph:
    """Layers of equal sizes, each with an activation that follows it."""
    graph = taskflow.OperatorGraph(name="alike")
    x = taskflow.input(graph, (8, 6), name="x")
    for i in range(layers):
        x = taskflow.relu(taskflow.linear(x, 6, name=f"layer {i}"), name=f"active {i}")
    graph.minimize(taskflow.cross_entropy(x, taskflow.input(graph, (8,), "int64", name="label")))
    return graph


def test_leaders_that_are_alike_share_their_rows() -> None:
    graph, options = alike(6), SpaceOptions("even", follow="elementwise")
    evaluators = [make_evaluator(graph, K80[4]) for _ in range(2)]
    search = SearchOptions(Budget(proposals=400), 3, options, starts=(start_of(graph, 4, options, 1),))
    compiled, reference = mcmc(evaluators[0], search), mcmc(in_python(evaluators[1], options), search)
    assert outcome(compiled) == outcome(reference)
    _, moves, walk = walks(evaluators[0], options)
    assert walk is not None
    kinds = Counter(walk._kinds)
    # The first layer gives no gradient of what it reads, the last one's activation goes with it as the others' do.
    assert max(kinds.values()) == 5, kinds
    assert len(walk._rows) > 10
    for leader, kind in enumerate(walk._kinds):
        for row, end in enumerate(moves.spaces[leader].ends):
            changes = moves.numbered(leader, end - 1)
            alone = [(evaluators[0].cut_of(name, changes[name]), places) for name, places in moves.places(leader, changes)]
            assert walk._rows.get((kind, row), alone) == alone
