"""Delta simulation takes over from the current plan what only moves in time: the seconds of full simulation, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import reduce
from itertools import permutations
from math import inf
from operator import add
from random import Random

import pytest
from core_cases import Odd, shared
from language_model import CONFIG, ONE_STEP, model

from taskflow.graph import OperatorGraph
from taskflow.machine import host, load_machine
from taskflow.mapper.config import Sync, SyncAlgorithm
from taskflow.models import build
from taskflow.optimizer.algorithms.initial import known, random_start
from taskflow.optimizer.cost.task_costs import Costs, Roofline
from taskflow.optimizer.space.followers import CoupledMoves
from taskflow.optimizer.space.space import SearchSpace, SpaceOptions
from taskflow.rules import SGD
from taskflow.tasks.simulate import on_grid

core = pytest.importorskip("taskflow.optimizer.evaluate.compiled", reason="the compiled core is not built")

NETWORKS = ("language model", "LeNet", "MLP", "AlexNet", "NMT", "RNNTC", "Transformer", "Inception-v3")
MANY = {"ResNet-101": 4}  # devices of networks with many tasks


def network(name: str, random: Random) -> OperatorGraph:
    return model(config=random.choice((CONFIG, ONE_STEP))) if name == "language model" else build(name, devices=8)


class Slow(Odd):
    """Tasks of minutes: sums are too long to be exact."""

    def piece(self, *arguments: object) -> float:
        return super().piece(*arguments) * 1e7


def walk(name: str, seed: int, moves: int, costs: Costs | None = None) -> float:
    """Moves of one or two operators, some with a limit, some accepted; the share of what was taken that was leapt over."""
    random = Random(f"{name} {seed}")
    graph, processors = network(name, random), MANY.get(name) or random.randint(2, 8)
    machine = random.choice(
        (host(processors), shared(processors), load_machine("k80", processors), load_machine("p100", processors))
    )
    costs = costs or random.choice((Roofline(machine), Odd(2)))
    full, delta = (core.CompiledEvaluator(graph, machine, costs, SGD(0.1), None, how) for how in ("full", "delta"))
    delta._core.mark_every(random.choice((1, 2, 7, 64)))
    space = SearchSpace(graph, processors, SpaceOptions("even", reduction=False, follow=random.choice(("none", "elementwise"))))
    together = CoupledMoves(graph, space)
    start = random.choice((known(graph, machine)[0], random_start(graph, machine, space, random, "random")))
    now = full.set(start)
    assert delta.set(start) == now
    for move in range(moves):
        changes = together.draw(random)
        if random.random() < 0.2:
            changes |= together.draw(random)
        limit = random.choice((inf, now * random.uniform(0.9, 1.1)))
        sums = random.choice((None,) * 8 + (SyncAlgorithm.OWNER, SyncAlgorithm.COLLECTIVE))
        seconds = full.propose(changes, limit, sums=sums)
        assert delta.propose(changes, limit, sums=sums) == seconds, f"{name} {seed}, move {move}"
        if seconds < inf and random.random() < 0.6:
            full.accept(), delta.accept()
            now = seconds
    taken, leapt = delta.leaps
    return leapt / max(taken, 1)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", NETWORKS)
def test_delta_is_full(name, seed):
    walk(name, seed, 40)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 115))
@pytest.mark.parametrize("name", NETWORKS)
def test_delta_is_full_over_100_000_moves(name, seed):
    walk(name, seed, 900)


def test_a_change_in_a_deep_network_moves_most_of_the_step_only_in_time():
    assert walk("ResNet-101", 0, 60) > 0.6


def test_what_is_written_down_grows_with_the_turns():
    """Where hundreds of messages wait at once, marks with all of the queue every 96 turns would take many times the turns' room."""
    graph, machine = build("RNNLM", devices=32), load_machine("k80", 32)
    delta = core.CompiledEvaluator(graph, machine, Roofline(machine), SGD(0.1), None, "delta")
    data = known(graph, machine)[0]
    delta.set(replace(data, syncs={layer: Sync(SyncAlgorithm.OWNER) for layer in data.syncs}))
    node = next(iter(graph)).name
    for _ in range(2):
        delta.propose({node: data[node]})
    waiting, turns = delta._core.written_down()
    assert 0 < waiting <= 1.5 * turns


def test_steps_of_minutes_are_simulated_whole():
    assert walk("MLP", 0, 40, Slow(2)) == 0


def test_costs_are_rounded_up_to_the_grid():
    for seconds in (0.0, 1e-9, 1e-6, 0.1, 1 / 3, 8191.9):
        given = on_grid(seconds)
        assert Fraction(seconds) <= Fraction(given) < Fraction(seconds) + Fraction(1, 2**40)
        assert (Fraction(given) * 2**40).denominator == 1 and on_grid(given) == given
    assert on_grid(9000.1) == 9000.1 and on_grid(inf) == inf
    parts = tuple(map(on_grid, (0.1, 0.2, 0.3, 1e-7, 300.7)))
    # One after the other, as the core adds: since Python 3.12 sum() makes up for rounding.
    assert len({reduce(add, order) for order in permutations(parts)}) == 1
    assert len({reduce(add, order) for order in permutations((0.1, 0.2, 0.3, 1e-7, 300.7))}) > 1
