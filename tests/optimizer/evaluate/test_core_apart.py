"""Seconds found from kept fragments against those of the flat task graph, over walks through all networks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from math import inf
from random import Random

import pytest
from language_model import ways

from taskflow.machine import load_machine
from taskflow.models import build
from taskflow.optimizer.algorithms.initial import known
from taskflow.optimizer.space.space import SearchSpace
from taskflow.rules import SGD

core = pytest.importorskip("taskflow.optimizer.evaluate.compiled", reason="the compiled core is not built")
SYNCS = ways(0, 3)


def check(here) -> None:
    """The timeline and the task table are always made from the flat task graph."""
    assert here.timeline().makespan == here.seconds
    assert len(here.timeline().spans) == here.tasks == len(here.task_table()["cost"])


def walk(model: str, devices: int, moves: int, seed: int) -> int:
    """A walk that accepts what is not much slower; how many moves were accepted."""
    random, graph, machine = Random(seed), build(model, preset="small"), load_machine("k80", devices)
    here = core.CompiledEvaluator(graph, machine, core.Roofline(machine), SGD(0.1), None)
    space, names = SearchSpace(graph, devices), [node.name for node in graph]
    layers = sorted({p.layer for p in graph.parameters})
    here.set(known(graph, machine)[0])
    check(here)
    accepted = 0
    for _ in range(moves):
        proposed = space.random(random)
        changes = {name: proposed[name] for name in random.sample(names, random.randint(1, 2))}
        syncs = {random.choice(layers): random.choice(SYNCS)} if random.random() < 0.3 else {}
        limit = here.seconds * random.choice((1.01, 1.2, inf))
        if here.propose(changes, limit, syncs) < inf:
            here.accept()
            accepted += 1
            check(here)
    return accepted


@pytest.mark.parametrize("model", ["AlexNet", "RNNTC", "RNNLM", "NMT", "LeNet", "Transformer"])
@pytest.mark.parametrize("devices", [3, 8])
def test_kept_fragments_change_no_time(model, devices):
    assert walk(model, devices, 12, devices) > 0


@pytest.mark.slow
@pytest.mark.parametrize("model", ["AlexNet", "ResNet-101", "Inception-v3", "RNNTC", "RNNLM", "NMT"])
@pytest.mark.parametrize("devices", [4, 16])
def test_kept_fragments_change_no_time_over_long_walks(model, devices):
    assert walk(model, devices, 300, devices) > 0


def test_two_searches_in_one_process_do_not_disturb_each_other():
    alone = [walk("NMT", 8, 12, seed) for seed in (1, 2)]
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(lambda seed: walk("NMT", 8, 12, seed), (1, 2))) == alone
