"""Folded steps of networks in which something is made of weights alone: it is in each replica, and steps fold as others do."""

from __future__ import annotations

import numpy as np
import pytest

import taskflow
from taskflow.machine import load_machine
from taskflow.mapper import HybridParallel, map_graph
from taskflow.optimizer import make_evaluator
from taskflow.optimizer.evaluate.evaluator import PythonEvaluator
from taskflow.optimizer.evaluate.folded import folded_step, folded_use
from taskflow.optimizer.evaluate.folded.layers import fewer_layers
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


@pytest.mark.parametrize(("plan", "layers"), [
    ("d8 zero1", 2), ("t2 d4 zero1 mb2", 2), ("t2 nosp d4", 2), ("p2 d4 mb1", 2), ("d8 zero3 mb1", 2), ("c2 d4", 2),
    ("t2 c2 d2 mb2", 2), ("d8 mb1 zero1 bucket=layer", 9), ("t2 d4 mb2 bucket=layer", 9), ("p2 d4 mb1 bucket=layer", 14),
    ("d8 mb1 recompute=full bucket=layer", 8),
])
def test_times_tasks_and_memory_are_those_of_the_whole_step(plan: str, layers: int) -> None:
    graph = biased(layers)
    costs = make_evaluator(graph, MACHINE, rule=RULE).costs
    strategy = map_graph(HybridParallel(plan), graph, MACHINE)
    assert (fewer_layers(graph, strategy) is not None) is (layers > 2)
    whole = PythonEvaluator(graph, MACHINE, costs, RULE, None)
    seconds = whole.set(strategy)
    step = folded_step(graph, strategy, MACHINE, costs, RULE, None)
    assert step.replicas.count > 1
    assert step.makespan == pytest.approx(seconds, rel=1e-3 if "nosp" in plan or "zero3" in plan else 1e-12)
    tasks, timeline = whole.current()
    assert (step.tasks, step.transfer_bytes) == (whole.tasks, tasks.transfer_bytes)
    for folded, use in zip(folded_use(step), memory_use(tasks, timeline.begun(tasks))):
        assert folded.weights + folded.state == pytest.approx(use.weights + use.state, rel=0.1)
        assert folded.buffers == pytest.approx(use.buffers, rel=0.01)
