"""Walks by Metropolis-Hastings: their draws, their constraints and memory, and how they end."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import inf
from random import Random
from time import process_time

import pytest
from search_toys import CtrlC

from taskflow.graph import OperatorGraph
from taskflow.machine import load_machine
from taskflow.mapper import Strategy
from taskflow.models import build
from taskflow.optimizer.algorithms.initial import random_start
from taskflow.optimizer.algorithms.mcmc import mcmc
from taskflow.optimizer.algorithms.splitmix import SplitMix
from taskflow.optimizer.budget import Budget, Deadline
from taskflow.optimizer.cost.task_costs import Roofline
from taskflow.optimizer.evaluate import make_evaluator
from taskflow.optimizer.options import SearchOptions
from taskflow.optimizer.space.constraints import Constraints
from taskflow.optimizer.space.space import SearchSpace, SpaceOptions

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
    with pytest.raises(ValueError):
        draws.randrange(0)


def test_followers_are_contiguous_where_that_is_asked_for() -> None:
    options = SpaceOptions("even", "contiguous", follow="elementwise")
    evaluator = make_evaluator(GRAPHS["LeNet"], K80[4])
    start = start_of(GRAPHS["LeNet"], 4, replace(options, placements="arbitrary"), 1)
    found = mcmc(evaluator, SearchOptions(Budget(proposals=200), 0, options, starts=(start,)))
    for config in found.strategy.configs.values():
        assert config.processors == tuple((config.processors[0] + i) % 4 for i in range(len(config.processors)))


def test_plans_that_do_not_fit_are_refused() -> None:
    graph, options = GRAPHS["LeNet"], SpaceOptions("even")
    start = start_of(graph, 4, options, 2)
    crowd = lambda s: "" if sum(0 in c.processors for c in s.configs.values()) < 0.75 * len(s.configs) else "too many"  # noqa: E731
    search = SearchOptions(Budget(proposals=600), 1, options, starts=(start,), lacks=crowd)
    found = mcmc(make_evaluator(graph, K80[4]), search)
    assert found.refused > 0 and not crowd(found.strategy)


def test_constraints_hold() -> None:
    graph = GRAPHS["LeNet"]
    for table in ({"conv*": {"forbid": ["n"]}}, {"*relu*": {"devices": "2"}}):
        limits = Constraints.parse(table)
        permitted = limits.resolve(graph, 4)
        options = SpaceOptions("even", follow="elementwise", constraints=limits)
        evaluator = make_evaluator(graph, K80[4])
        assert permitted
        found = mcmc(evaluator, SearchOptions(Budget(proposals=200), 1, options))
        assert found.accepted > 10
        for name, of in permitted.items():
            assert not of.violation(found.strategy[name]) and not of.violation(evaluator.strategy[name])


@pytest.mark.usefixtures("nothing_else_collects")
def test_an_interrupt_keeps_the_best_plan() -> None:
    graph, options = GRAPHS["RNNLM"], SpaceOptions("even")
    evaluator = make_evaluator(graph, K80[4])
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
