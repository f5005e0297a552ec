"""What training does not read is not moved for it; evaluation, which reads it, has it."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

import taskflow
from taskflow.graph import OperatorGraph
from taskflow.mapper import choose
from taskflow.operators.operator import REGISTRY
from taskflow.optimizer.algorithms.initial import random_start
from taskflow.optimizer.space.space import SearchSpace
from taskflow.regions import Rect
from taskflow.rules import SGD
from taskflow.runtime.executor import Executor
from taskflow.tasks.lower.lower import lower
from taskflow.tasks.task import Compute
from taskflow.tasks.topic import Purpose


def network() -> OperatorGraph:
    graph = OperatorGraph()
    x = taskflow.input(graph, (8, 3, 6, 6), name="images")
    for i in range(2):
        x = taskflow.relu(taskflow.batch_norm(taskflow.conv2d(x, 4, 3, padding=1, name=f"conv{i}"), name=f"bn{i}"))
    labels = taskflow.input(graph, (8,), "int64", name="labels")
    graph.minimize(taskflow.cross_entropy(taskflow.linear(taskflow.reshape(x, (8, -1)), 5, name="fc"), labels))
    return graph


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
def test_training_moves_running_statistics_only_to_make_the_next(seed: int | None) -> None:
    graph, machine = network(), taskflow.load_machine("k80", 4)
    strategy = (
        choose("data", graph, machine)[0] if seed is None else random_start(graph, machine, SearchSpace(graph, 4), Random(seed))
    )
    scores = graph.node("fc").outputs[0]
    for tasks, training in (
        (lower(graph, strategy, SGD(0.1)), True), (lower(graph, strategy, None, wanted=[scores]), False)
    ):
        sent = {
            (task.topic.name, task.processor) for task in tasks
            if task.kind.travels and task.topic.purpose is Purpose.OUTPUT and ".running_" in task.topic.name
        }
        # Only what makes the next statistics may lie elsewhere than the present ones.
        makers = {(f"{n}.running_{what}", p) for n in ("bn0", "bn1") for what in ("mean", "var")
                  for p in strategy[f"{n}.running"].processors}  # fmt: skip
        states = {(name, p) for name, _ in makers for p in strategy[name].processors}
        if training:
            assert sent <= makers
        elif seed is None:
            assert sent == {(name, p) for name, home in states for p in range(4) if p != home}
        for task in tasks:
            if isinstance(task.work, Compute) and task.work.node.operator.kind == "normalize":
                places = [tasks.buffers[b].rect for b in task.work.inputs[2:] if b is not None]
                assert all(rect.empty == training for rect in places)


@pytest.mark.parametrize("training", [True, False])
def test_pieces_say_what_a_mode_reads(training: bool) -> None:
    examples = [kind.example(Random(0)) for kind in REGISTRY.values()]
    found = [example for example in examples if example.operator.unread(training)]
    assert [example.operator.kind for example in found] == ["normalize"]
    for example in found:
        operator, specs = example.operator, example.inputs
        piece = Rect.of([dim.size for dim in operator.dims(specs)])
        all_of, some = operator.reads(specs, piece), operator.reads_in(specs, piece, training)
        assert all_of.weights == some.weights
        for i, (whole, read) in enumerate(zip(all_of.inputs, some.inputs)):
            assert read.empty if i in operator.unread(training) else read == whole


def test_evaluation_reads_what_training_has_moved() -> None:
    graph = network()
    rng = np.random.default_rng(0)
    fed = {"images": rng.normal(3, 2, size=(8, 3, 6, 6)).astype(np.float32), "labels": rng.integers(0, 5, 8)}
    losses = []
    for processors in (1, 4):
        run = Executor(graph, choose("data", graph, taskflow.load_machine("k80", processors))[0], SGD(0.01))
        losses.append([run.evaluate(fed), *(run.train(fed) for _ in range(3)), run.evaluate(fed)])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
    assert losses[0][0] != losses[0][-1]
