"""Searches where much is made of weights alone: plans have it on every processor, and are evaluated as they run."""

from __future__ import annotations

from dataclasses import replace

import pytest
from of_weights import feeds, model

import taskflow
from taskflow.mapper import DataParallel, OpConfig, map_graph
from taskflow.optimizer import make_evaluator, search
from taskflow.optimizer.explain import alternatives


@pytest.mark.parametrize("algorithm", ["guided", "mcmc", "optcnn"])
def test_plans_have_it_wherever_it_is_read(algorithm: str) -> None:
    graph, machine = model("float32"), taskflow.load_machine("p100", 4)
    found = search(graph, machine, budget="400p", rule=taskflow.SGD(0.1), algorithm=algorithm)
    for node in graph:
        config = found.strategy[node.name]
        assert not node.of_weights or found.strategy.plan is not None or config.copies in (1, 4), node.name
    run = taskflow.Executor(graph, found.strategy, taskflow.SGD(0.1))
    assert (run.train(feeds(0, "float32")) or 0) > 0


def test_exact_search_says_that_it_has_no_copies() -> None:
    """A space of single places: plans that have copies, as the first one to beat, may be faster than all of it."""
    graph = taskflow.OperatorGraph()
    x = taskflow.input(graph, (4, 6), name="x")
    matrix = taskflow.tanh(taskflow.expand_weight(graph, (6, 6), (6, 6), name="matrix"), name="bounded")
    target = taskflow.input(graph, (4, 6), name="target")
    graph.minimize(taskflow.mse_loss(taskflow.einsum("ni,ij->nj", x, matrix, name="product"), target, name="loss"))
    found = search(graph, taskflow.load_machine("p100", 2), budget="40000p", rule=taskflow.SGD(0.1), algorithm="exact")
    assert not found.optimal and found.optimal_among == "plans without copies"
    assert found.lower_bound <= found.seconds and "plans without copies" in str(found)


def test_alternatives_of_what_is_made_of_weights_are_tried() -> None:
    graph, machine = model("float32"), taskflow.load_machine("p100", 4)
    evaluator = make_evaluator(graph, machine, rule=taskflow.SGD(0.1))
    everywhere = map_graph(DataParallel(), graph, machine)
    evaluator.set(everywhere)
    for name in ("bounded", "table"):
        found = alternatives(evaluator, name)
        assert "whole on one device" in [one.reason for one in found]
        assert all(one.seconds >= evaluator.seconds for one in found if one.reason == "whole on one device")
    alone = replace(everywhere, configs={**everywhere.configs, "bounded": OpConfig((1, 1), (2,))})
    evaluator.set(alone)
    assert "on every device" in [one.reason for one in alternatives(evaluator, "bounded")]
