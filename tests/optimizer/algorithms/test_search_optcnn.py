"""Dynamic programming equals enumeration, on random additive costs and on small networks."""

from __future__ import annotations

from itertools import product
from random import Random

import numpy as np
import pytest

import taskflow
from taskflow.models import build
from taskflow.optimizer.algorithms import elimination as module
from taskflow.optimizer.algorithms.elimination import eliminate
from taskflow.optimizer.algorithms.optcnn import additive, additive_plan, fused, planned
from taskflow.optimizer.evaluate import make_evaluator
from taskflow.optimizer.search import search
from taskflow.optimizer.space.space import SpaceOptions
from taskflow.optimizer.traffic.additive import Additive

GRAPHS = {
    "chain": (5, [(0, 1), (1, 2), (2, 3), (3, 4)]),
    "diamond": (4, [(0, 1), (0, 2), (1, 3), (2, 3)]),
    "residual": (6, [(0, 1), (1, 2), (0, 2), (2, 3), (3, 4), (2, 4), (4, 5)]),
    "tree": (6, [(0, 1), (0, 2), (2, 3), (2, 4), (4, 5)]),
    "two parts": (4, [(0, 1), (2, 3)]),
    "loop": (3, [(0, 1), (1, 1), (1, 2)]),
    "complete": (5, [(u, v) for u in range(5) for v in range(u + 1, 5)]),  # not reducible: enumerated
}


def random_costs(count: int, pairs: list[tuple[int, int]], seed: int):  # type: ignore[no-untyped-def]
    random = np.random.default_rng(seed)
    sizes = random.integers(1, 5, count)
    vertices = [random.random(s) for s in sizes]
    return vertices, {(u, v): random.random((sizes[u], sizes[v])) * 2 for u, v in pairs}


def enumerate_(vertices, edges):  # type: ignore[no-untyped-def]
    return min(
        sum(c[i] for c, i in zip(vertices, choice)) + sum(m[choice[u], choice[v]] for (u, v), m in edges.items())
        for choice in product(*(range(len(c)) for c in vertices))
    )


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("seed", range(8))
def test_elimination_finds_the_least_cost(name: str, seed: int) -> None:
    vertices, edges = random_costs(*GRAPHS[name], seed)
    result = eliminate(vertices, edges)
    assert result.exact
    assert result.cost == pytest.approx(enumerate_(vertices, edges))
    assert result.cost == pytest.approx(
        sum(c[i] for c, i in zip(vertices, result.chosen))
        + sum(m[result.chosen[u], result.chosen[v]] for (u, v), m in edges.items())
    )


def test_what_is_too_large_to_enumerate_is_fixed_and_said_to_be_inexact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_COMBINATIONS", 1)
    for seed in range(8):
        vertices, edges = random_costs(*GRAPHS["complete"], seed)
        if min(len(v) for v in vertices) < 2:
            continue
        result = eliminate(vertices, edges)
        assert not result.exact and result.cost >= enumerate_(vertices, edges) - 1e-12


@pytest.mark.parametrize("model", ["MLP", "LeNet"])
def test_the_plan_of_a_network_has_the_least_additive_cost(model: str) -> None:
    graph = build(model, preset="small")
    evaluator = make_evaluator(graph, taskflow.load_machine("k80", devices=2))
    cost = additive(evaluator, SpaceOptions("powers"))
    best = eliminate(cost.vertices, cost.edges)
    assert best.exact
    assert additive_plan(evaluator, SpaceOptions("powers")) == planned(evaluator, cost, best.chosen)
    random = Random(0)
    for _ in range(500):
        choice = [random.randrange(len(v)) for v in cost.vertices]
        total = sum(v[i] for v, i in zip(cost.vertices, choice))
        total += sum(m[choice[a], choice[b]] for (a, b), m in cost.edges.items())
        assert total >= best.cost - 1e-15


def test_recurrent_steps_decide_together() -> None:
    graph = build("RNNLM", preset="small", batch=8, steps=4, steps_per_operator=1)
    evaluator = make_evaluator(graph, taskflow.load_machine("k80", devices=4))
    steps = [[n.name for n in group] for group in fused(graph) if group[0].operator.kind == "lstm"]
    assert [len(names) for names in steps] == [4, 4]
    plan = additive_plan(evaluator)
    for layer in {p.layer for p in graph.parameters}:
        assert len({plan[n.name] for n in graph if n.parameters and n.parameters[0].layer == layer}) == 1


def test_large_layers_use_the_whole_machine() -> None:
    graph = build("AlexNet", devices=4)
    machine = taskflow.load_machine("h100", devices=4)
    found = search(graph, machine, algorithm="optcnn", alone=True)
    assert found.stopped == "finished" and set(found.starts) == set()
    assert max(len(c.processors) for c in found.strategy.configs.values()) == 4


def test_blocks_that_repeat_share_their_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three times as many equal blocks need no more tables, and what is shared is what each edge has by itself."""
    made: list[int] = []
    transfers, vertex = Additive._transfers, Additive._vertex
    monkeypatch.setattr(Additive, "_transfers", lambda self, *at: made.append(1) or transfers(self, *at))
    monkeypatch.setattr(Additive, "_vertex", lambda self, *at: made.append(1) or vertex(self, *at))
    counts = []
    for blocks in (3, 9):
        graph, machine = build("GPT-2", devices=8, preset="small", layers=blocks), taskflow.load_machine("k80", 8)
        made.clear()
        cost = additive(make_evaluator(graph, machine), SpaceOptions("powers"))
        counts.append(len(made))
    assert counts[0] == counts[1]
    for group, configs, found in zip(cost.groups, cost.configs, cost.vertices):
        assert found.tolist() == [vertex(cost, group, config) for config in configs]
    sums: dict[tuple[int, int], np.ndarray] = {}  # type: ignore[type-arg]
    for node in graph:
        for i, tensor in enumerate(node.inputs):
            u, v = cost._group[tensor.node], cost._group[node.number]
            matrix = transfers(cost, graph.producer(tensor), tensor, node, i)
            sums[u, v] = sums[u, v] + matrix if (u, v) in sums else matrix
    assert sums.keys() == cost.edges.keys()
    assert all(np.array_equal(cost.edges[at], matrix) for at, matrix in sums.items())
