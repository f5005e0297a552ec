"""Exact search equals enumeration; placement stays in its space and finds the best placement of small networks."""

from __future__ import annotations

from itertools import product

import pytest

import taskflow
from taskflow.graph import OperatorGraph
from taskflow.mapper import OpConfig, Strategy
from taskflow.models import build
from taskflow.optimizer.search import make_evaluator, search
from taskflow.optimizer.space import SpaceOptions
from tests.optimizer.search_toys import every, tiny


@pytest.mark.parametrize("machine", ["k80", "p100"])
@pytest.mark.parametrize("options", [SpaceOptions("powers"), SpaceOptions("powers", "arbitrary")])
def test_exact_search_equals_enumeration(machine: str, options: SpaceOptions) -> None:
    graph, cluster = tiny(4, 8), taskflow.load_machine(machine, devices=2)
    judge = make_evaluator(graph, cluster, rule=None)
    best = min(judge.set(Strategy(2, configs)) for configs in every(graph, 2, options))
    found = search(graph, cluster, algorithm="exact", space=options, use=judge, budget="100000p", alone=True)
    assert found.optimal and found.stopped == "finished"
    assert found.seconds == best == found.lower_bound


@pytest.mark.parametrize("samples", [64, 4096])
def test_exact_search_proves_a_trained_network(samples: int) -> None:
    graph, cluster = OperatorGraph(name="one layer"), taskflow.load_machine("p100", devices=2)
    x, labels = taskflow.input(graph, (samples, 64), name="x"), taskflow.input(graph, (samples,), "int64", name="labels")
    graph.minimize(taskflow.cross_entropy(taskflow.linear(x, 128, name="fc"), labels, name="loss"))
    judge, options = make_evaluator(graph, cluster), SpaceOptions("powers")
    seconds = [judge.set(Strategy(2, configs)) for configs in every(graph, 2, options)]
    found = search(graph, cluster, algorithm="exact", space=options, use=judge, budget="50000p")
    assert found.optimal and found.lower_bound == found.seconds <= min(seconds)


def test_a_short_budget_is_no_proof_and_a_large_space_is_refused() -> None:
    graph, cluster = build("MLP", preset="small"), taskflow.load_machine("k80", devices=4)
    found = search(graph, cluster, algorithm="exact", budget="100p")
    assert not found.optimal and found.stopped == "budget" and found.proposals <= 100
    with pytest.raises(ValueError, match="configurations, at most"):
        search(graph, cluster, algorithm="exact", space=SpaceOptions("any", "arbitrary", most_pieces=16), budget="100p")


def test_placement_finds_the_best_placement() -> None:
    graph, cluster = build("MLP", preset="small"), taskflow.load_machine("p100", devices=2)
    judge = make_evaluator(graph, cluster)
    names = [node.name for node in graph]
    best = min(
        judge.set(Strategy(2, {n: OpConfig((1,) * len(graph.node(n).dims), (p,)) for n, p in zip(names, chosen)}))
        for chosen in product(range(2), repeat=len(names))
    )
    found = search(graph, cluster, algorithm="placement", use=judge, budget="4000p", alone=True)
    assert all(len(c.processors) == 1 for c in found.strategy.configs.values())
    assert found.seconds <= best and found.strategy.name in ("placement", "model", "one processor")
    beaten = search(graph, cluster, algorithm="placement", use=judge, budget="4000p")
    assert beaten.seconds <= min(beaten.starts.values())


def test_exact_search_starts_from_the_default_searchs_plan() -> None:
    graph, cluster = build("LeNet", devices=4), taskflow.load_machine("p100", devices=4)
    options = SpaceOptions("powers", reduction=False)
    for budget in ("1.5s", "3000p"):  # far too short for a proof
        found = search(graph, cluster, algorithm="exact", space=options, budget=budget, memory=False)
        assert not found.optimal and found.seconds < 0.95 * min(found.starts.values())
