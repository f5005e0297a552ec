"""Propagating changes (delta) gives full simulation's times bit for bit, and limits never change a decision."""

from __future__ import annotations

from math import inf, nextafter
from random import Random

import pytest
from core_cases import Odd, random_changes, shared
from fast_and_slow import fast_among
from language_model import CONFIG, ONE_STEP, model, random_strategy

from taskflow.machine import host
from taskflow.optimizer.cost.task_costs import Roofline
from taskflow.rules import SGD

core = pytest.importorskip("taskflow.optimizer.evaluate.compiled", reason="the compiled core is not built")


def moves(seed: int, count: int) -> None:
    random = Random(seed)
    graph = model(config=random.choice((CONFIG, ONE_STEP)))
    processors = random.randint(2, 8)
    machine = random.choice((host, shared))(processors)
    costs = random.choice((Roofline(machine), Odd(2)))
    clip = random.choice((None, 1.0))
    full, delta = (core.CompiledEvaluator(graph, machine, costs, SGD(0.1), clip, algorithm) for algorithm in core.SIMULATIONS)
    start = random_strategy(graph, processors, random)
    assert full.set(start) == delta.set(start)
    for _ in range(count):
        changes = random_changes(graph, random_strategy(graph, processors, random), random)
        seconds = full.propose(changes)
        assert delta.propose(changes) == seconds
        if random.random() < 0.5:
            for here in (full, delta):
                here.accept()
            if random.random() < 0.2:
                assert full.timeline() == delta.timeline()


@pytest.mark.parametrize("seed", fast_among(range(40), range(15)))
def test_delta_is_full(seed):
    moves(seed, 50)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10_000, 10_100))
def test_delta_is_full_over_100_000_moves(seed):
    moves(seed, 1000)


@pytest.mark.parametrize("algorithm", core.SIMULATIONS)
@pytest.mark.parametrize("seed", range(10))
def test_limits(seed, algorithm):
    random = Random(seed)
    graph, machine = model(), host(4)
    free, limited = (core.CompiledEvaluator(graph, machine, Roofline(machine), SGD(0.1), 1.0, algorithm) for _ in range(2))
    start = random_strategy(graph, 4, random)
    assert free.set(start) == limited.set(start)
    for _ in range(40):
        changes = random_changes(graph, random_strategy(graph, 4, random), random)
        seconds = free.propose(changes)
        # At the limit a proposal is evaluated to the end; below, what comes back passes the limit.
        assert limited.propose(changes, limit=seconds) == seconds
        low = nextafter(seconds, 0) if random.random() < 0.5 else seconds * random.random()
        given = limited.propose(changes, limit=low)
        assert given in (seconds, inf)
        if given == inf:
            with pytest.raises(ValueError, match="cut short"):
                limited.accept()
        assert limited.propose(changes, limit=seconds * 0.3) > seconds * 0.3
