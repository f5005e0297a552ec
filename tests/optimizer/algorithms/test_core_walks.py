"""Long walks: what is kept between proposals (blocks of tasks, fragments) changes no time
and no decision. Each step is compared with a simulation from nothing, now and then with the reference."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nextafter
from random import Random

import pytest
from core_cases import Odd, random_changes, shared
from language_model import CONFIG, ONE_STEP, model, random_strategy, ways

from taskflow.machine import load_machine
from taskflow.mapper.strategy import SUMS
from taskflow.models import build
from taskflow.optimizer.algorithms.initial import known
from taskflow.optimizer.cost.task_costs import Roofline
from taskflow.optimizer.evaluate.evaluator import PythonEvaluator
from taskflow.optimizer.space.space import SearchSpace
from taskflow.rules import SGD

core = pytest.importorskip("taskflow.optimizer.evaluate.compiled", reason="the compiled core is not built")
SYNCS = ways(0, 2)


def decide(here, changes, syncs, wanted: float, random: Random, sums=None) -> None:
    """Whatever the limit, the decision is the one that the whole simulation gives."""
    limit = random.choice((wanted, nextafter(wanted, 0), wanted * random.uniform(0.5, 1.5)))
    given = here.propose(changes, limit, syncs, sums)
    assert given == wanted if wanted <= limit else given in (wanted, inf)


def walk(graph, machine, costs, draw, moves: int, random: Random) -> int:
    """Proposals of the walking evaluator against one that starts anew for each; how many were accepted."""
    here, delta = (core.CompiledEvaluator(graph, machine, costs, SGD(0.1), None, a) for a in ("full", "delta"))
    start, layers = known(graph, machine)[0], sorted({p.layer for p in graph.parameters})
    start = replace(start, sums=random.choice(SUMS))
    for each in (here, delta):
        each.set(start)
    accepted = 0
    for number in range(moves):
        changes = draw()
        syncs = {random.choice(layers): random.choice(SYNCS)} if random.random() < 0.2 else {}
        sums = random.choice(SUMS) if random.random() < 0.1 else None
        fresh = core.CompiledEvaluator(graph, machine, costs, SGD(0.1), None)
        wanted = fresh.set(here.changed(changes, syncs, sums))
        decide(here, changes, syncs, wanted, random, sums)
        if number % 7 == 0:
            decide(delta, changes, syncs, wanted, random, sums)
        if random.random() < 0.4:
            for each in (here, delta):
                assert each.propose(changes, inf, syncs, sums) == wanted
                each.accept()
            accepted += 1
            assert here.tasks == fresh.tasks
    assert here.timeline() == fresh_timeline(here) and here.timeline().makespan == here.seconds
    return accepted


def fresh_timeline(here):
    fresh = core.CompiledEvaluator(here.graph, here.machine, here.costs, SGD(0.1), None)
    fresh.set(here.strategy)
    return fresh.timeline()


def network(name: str, devices: int, seed: int, moves: int) -> None:
    random, graph, machine = Random(seed), build(name, preset="small"), load_machine("k80", devices)
    space = SearchSpace(graph, devices)
    names = [node.name for node in graph]

    def draw():
        other = space.random(random)
        return {n: other[n] for n in random.sample(names, random.choice((0, 1, 1, 1, 1, 2)))}

    assert walk(graph, machine, Roofline(machine), draw, moves, random) > 0


def language(seed: int, moves: int) -> None:
    random = Random(seed)
    graph, processors = model(config=random.choice((CONFIG, ONE_STEP))), random.randint(2, 8)
    machine = shared(processors)

    def draw():
        return random_changes(graph, random_strategy(graph, processors, random), random)

    assert walk(graph, machine, random.choice((Roofline(machine), Odd(2))), draw, moves, random) > 0


@pytest.mark.parametrize("name", ["AlexNet", "RNNTC", "RNNLM", "NMT", "LeNet", "Transformer", "ResNet-101"])
def test_walks_through_networks(name):
    network(name, 4, 1, 25)


@pytest.mark.parametrize("seed", range(6))
def test_walks_of_random_graphs(seed):
    language(seed, 60)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["AlexNet", "ResNet-101", "Inception-v3", "RNNTC", "RNNLM", "NMT", "Transformer"])
@pytest.mark.parametrize("devices", [6, 16])
def test_long_walks_through_networks(name, devices):
    network(name, devices, devices, 500)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 130))
def test_long_walks_of_random_graphs(seed):
    language(seed, 1000)


@pytest.mark.parametrize("seed", range(3))
def test_limits_against_the_reference(seed):
    random = Random(seed)
    graph, machine = model(), shared(4)
    costs = Roofline(machine)
    reference = PythonEvaluator(graph, machine, costs, SGD(0.1), None)
    here = core.CompiledEvaluator(graph, machine, costs, SGD(0.1), None)
    start = random_strategy(graph, 4, random)
    assert reference.set(start) == here.set(start)
    for _ in range(12):
        other = random_strategy(graph, 4, random)
        changes = random_changes(graph, other, random)
        syncs = dict(random.sample(sorted(other.syncs.items()), random.randint(0, 1)))
        wanted = reference.propose(changes, syncs=syncs)
        decide(here, changes, syncs, wanted, random)
        if random.random() < 0.5 and here.propose(changes, wanted, syncs) == wanted:
            here.accept()
            reference.accept()
            assert here.timeline() == reference.timeline()
