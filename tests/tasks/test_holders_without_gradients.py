"""A processor may hold a weight and compute no gradient for it, because its operator does not lead to the loss."""

from __future__ import annotations

import numpy as np
import pytest
from language_model import ways

import taskflow
from taskflow.mapper import OpConfig, Strategy, Sync
from taskflow.optimizer.cost.task_costs import Roofline
from taskflow.optimizer.evaluate import evaluator
from taskflow.optimizer.evaluate.evaluator import PythonEvaluator


def model() -> taskflow.OperatorGraph:
    graph = taskflow.OperatorGraph("float64")
    x = taskflow.input(graph, (4, 6), name="x")
    target = taskflow.input(graph, (4,), "int64", name="target")
    used = taskflow.linear(x, 5, name="used")
    taskflow.linear(x, 5, name="unused", parameters=graph.parameters_of(used))
    graph.minimize(taskflow.cross_entropy(used, target, name="loss"))
    return graph


@pytest.mark.parametrize("sync", ways(1, 2, 3), ids=str)
@pytest.mark.parametrize("where", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_same_losses(sync: Sync, where: tuple[int, int, int]) -> None:
    feeds = {"x": np.random.default_rng(0).normal(size=(4, 6)), "target": np.arange(4)}

    def losses(places: tuple[int, int, int], processors: int) -> list[float | None]:
        graph = model()
        configs = {node.name: OpConfig((1,) * len(node.dims), (places[0],)) for node in graph}
        configs["unused"] = OpConfig((2, 1, 1), places[1:])
        strategy = Strategy(processors, configs, {"used": sync})
        run = taskflow.Executor(graph, strategy, taskflow.SGD(0.5), clip_norm=1.0)
        run.program("train").storage.arena.fill(0x7F)  # what nobody writes must not be read
        return [run.train(feeds) for _ in range(4)]

    assert losses(where, 3) == pytest.approx(losses((0, 0, 0), 1), rel=1e-12)


def test_the_compiled_core_agrees() -> None:
    graph = model()
    machine = taskflow.host(3)
    for sync in ways(3):
        configs = {node.name: OpConfig((1,) * len(node.dims), (2,)) for node in graph}
        configs["unused"] = OpConfig((2, 1, 1), (1, 0))
        strategy = Strategy(3, configs, {"used": sync})
        rule = taskflow.SGD(0.5)
        plain = PythonEvaluator(graph, machine, Roofline(machine), rule, 1.0).set(strategy)
        assert evaluator(graph, machine, Roofline(machine), rule, 1.0).set(strategy) == plain
