"""Folded steps of networks in which something is made of weights alone: it is in each replica, and steps fold as others do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import taskflow
from taskflow.machine import load_machine
from taskflow.mapper import HybridParallel, OpConfig, Strategy, map_graph
from taskflow.optimizer import make_evaluator
from taskflow.optimizer.evaluate.evaluator import PythonEvaluator
from taskflow.optimizer.evaluate.folded import folded_step, folded_use
from taskflow.optimizer.evaluate.folded.layers import fewer_layers
from taskflow.optimizer.evaluate.folded.replicas import replicas as replicas_of
from taskflow.optimizer.memory import memory_use
from taskflow.rules import Adam

RULE, MACHINE, BATCH, STEPS, WIDTH = Adam(), load_machine("h100", 8), 16, 16, 32


def biased(layers: int = 2) -> taskflow.OperatorGraph:
    """A network with trained positions, and with biases by distance of the first layer that each scales and adds to its scores, as
    in a T5."""
    graph = taskflow.OperatorGraph("float32")
    x = taskflow.input(graph, (BATCH, STEPS, WIDTH), name="x")
    places = taskflow.constant(graph, np.arange(STEPS).reshape(1, STEPS), name="places")
    x = taskflow.add(x, taskflow.embedding(places, STEPS, WIDTH, name="positions"), name="placed")
    between = np.abs(np.arange(STEPS)[:, None] - np.arange(STEPS)[None])[None]
    biases = taskflow.embedding(taskflow.constant(graph, between, name="h.0.distances"), STEPS, 1, name="h.0.biases")
    bias = taskflow.reshape(biases, (1, STEPS, STEPS), name="h.0.bias")
    for layer in range(layers):
        q, k, v = (taskflow.linear(x, WIDTH, name=f"h.{layer}.{name}") for name in "qkv")
        own = taskflow.scale(bias, 0.5, name=f"h.{layer}.half")
        scores = taskflow.add(taskflow.einsum("nqc,nkc->nqk", q, k, name=f"h.{layer}.scores"), own, name=f"h.{layer}.biased")
        weights = taskflow.softmax(scores, name=f"h.{layer}.softmax")
        mixed = taskflow.einsum("nqk,nkc->nqc", weights, v, name=f"h.{layer}.mixed")
        x = taskflow.add(x, taskflow.linear(mixed, WIDTH, name=f"h.{layer}.out"), name=f"h.{layer}.sum")
    graph.minimize(taskflow.mse_loss(x, taskflow.input(graph, (BATCH, STEPS, WIDTH), name="target"), name="loss"))
    return graph


@pytest.mark.parametrize(("plan", "layers", "replicas"), [
    ("d8 zero1", 2, 8), ("t2 d4 zero1 mb2", 2, 8), ("t2 nosp d4", 2, 4), ("p2 d4 mb1", 2, 4), ("d8 zero3 mb1", 2, 8),
    ("c2 d4", 2, 8), ("t2 c2 d2 mb2", 2, 8), ("d8 mb1 zero1 bucket=layer", 9, 8), ("t2 d4 mb2 bucket=layer", 9, 8),
    ("p2 d4 mb1 bucket=layer", 14, 4), ("d8 mb1 recompute=full bucket=layer", 8, 8),
])
def test_times_tasks_and_memory_are_those_of_the_whole_step(plan: str, layers: int, replicas: int) -> None:
    """Members of a tensor-parallel group have a piece each of what is made of weights alone: each is a replica, too."""
    graph = biased(layers)
    costs = make_evaluator(graph, MACHINE, rule=RULE).costs
    strategy = map_graph(HybridParallel(plan), graph, MACHINE)
    assert (fewer_layers(graph, strategy) is not None) is (layers > 2)
    whole = PythonEvaluator(graph, MACHINE, costs, RULE, None)
    seconds = whole.set(strategy)
    step = folded_step(graph, strategy, MACHINE, costs, RULE, None)
    assert step.replicas.count == replicas
    assert step.makespan == pytest.approx(seconds, rel=1e-3 if "nosp" in plan or "zero3" in plan else 1e-12)
    tasks, timeline = whole.current()
    assert (step.tasks, step.transfer_bytes) == (whole.tasks, tasks.transfer_bytes)
    for folded, use in zip(folded_use(step), memory_use(tasks, timeline.begun(tasks))):
        assert folded.weights + folded.state == pytest.approx(use.weights + use.state, rel=0.1)
        assert folded.buffers == pytest.approx(use.buffers, rel=0.01)


@pytest.mark.parametrize(("copies", "processors", "weights", "counts"), [
    (4, (0, 2, 4, 6, 1, 3, 5, 7), (), [8, 4, 2, 1]),
    (4, (0, 2, 4, 6, 1, 3, 5, 7), ((), (3, 1), ()), [4, 2, 1]),  # a larger piece on the first of each pair
    (8, (0, 1, 2, 3, 4, 5, 6, 7), (), [8, 4, 2, 1]),
    (4, (0, 2, 4, 6), (), [4, 2, 1]),  # the first of each pair has it, for both
    (2, (0, 1), (), [1]),
])
def test_processors_that_make_other_things_of_weights_do_not_do_the_same(
    copies: int, processors: tuple[int, ...], weights: tuple[tuple[int, ...], ...], counts: list[int]
) -> None:
    graph = biased()
    strategy = map_graph(HybridParallel("t2 d4"), graph, MACHINE)
    config = OpConfig((1, len(processors) // copies, 1), processors, weights, copies)
    changed = replace(strategy, configs={**strategy.configs, "h.0.half": config})
    changed.verify(graph)
    assert [found.count for found in replicas_of(graph, changed, MACHINE)] == counts


def test_a_processor_that_only_makes_something_of_weights_is_in_no_replica() -> None:
    graph = biased()
    strategy = map_graph(HybridParallel("d4"), graph, load_machine("h100", 4))
    more = OpConfig((1, 1, 1), tuple(range(8)), (), 8)
    changed = Strategy(8, {**strategy.configs, "h.0.half": more})
    assert [found.count for found in replicas_of(graph, changed, MACHINE)] == [1]
