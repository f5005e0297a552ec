"""Memory in which kernels lay weights out: planned in training steps, from the first forward task with a weight to the last."""

from __future__ import annotations

import numpy as np
import pytest

from taskflow import operators as ops
from taskflow.graph import OperatorGraph
from taskflow.kernels import kernels_on
from taskflow.machine import host
from taskflow.mapper import choose
from taskflow.rules import SGD
from taskflow.runtime.executor import Executor
from taskflow.runtime.program.schedule import ByteRange, Placement, RunTask, Send, WaitSend, schedule
from taskflow.runtime.program.schedule import _span as span_of
from taskflow.tasks.items import items_of, lifetimes
from taskflow.tasks.items import rooms as rooms_of
from taskflow.tasks.lower.lower import lower
from taskflow.tasks.simulate import roofline, simulate
from taskflow.tasks.task import Compute, Kind, TaskGraph

HIDDEN = 320


def recurrent(steps: int = 6, chunk: int = 2) -> OperatorGraph:
    graph = OperatorGraph("float32")
    x = ops.input(graph, (64, steps, 96), name="x")
    y, _ = ops.lstm(x, HIDDEN, 2, steps=chunk, name="rnn")
    graph.minimize(ops.mse_loss(y, ops.input(graph, y.shape, name="wanted"), name="loss"))
    return graph


def tasks_of(graph: OperatorGraph, rule: SGD | None, processors: int = 1) -> tuple[TaskGraph, tuple[int, ...]]:
    machine = host(processors)
    tasks = lower(graph, choose("data", graph, machine)[0], rule)
    return tasks, tuple(simulate(tasks, machine, roofline(machine)).begun(tasks))


def test_a_room_lives_as_long_as_forward_tasks_use_the_weight() -> None:
    tasks, order = tasks_of(recurrent(), SGD(0.1))
    items = items_of(tasks, order, Placement(1, 1), 0)
    rooms = {~life.buffer: life for life in lifetimes(tasks, items, {0}) if life.buffer < 0}
    assert sorted(tasks.buffers[b].region for b in rooms) == ["rnn.l0.weight_hh", "rnn.l1.weight_hh"]
    for buffer, life in rooms.items():
        users = [
            i for i, item in enumerate(items)
            if item.task.kind is Kind.FORWARD and isinstance(item.task.work, Compute) and buffer in item.task.work.weights
        ]
        assert len(users) == 3 and (life.first, life.last) == (users[0], users[-1])
        assert life.nbytes == 4 * 4 * HIDDEN * HIDDEN  # multiples of 64 already


def test_evaluation_and_single_steps_plan_none() -> None:
    for graph, rule in ((recurrent(), None), (recurrent(chunk=1), SGD(0.1))):
        tasks, order = tasks_of(graph, rule)
        lives = lifetimes(tasks, items_of(tasks, order, Placement(1, 1), 0), {0})
        assert all(life.buffer >= 0 for life in lives)


def test_gradients_come_to_lie_there() -> None:
    tasks, order = tasks_of(recurrent(), SGD(0.1))
    plan = schedule(tasks, order, Placement(1, 1), 0)
    lives = lifetimes(tasks, items_of(tasks, order, Placement(1, 1), 0), {0})
    rooms = sum(life.nbytes for life in lives if life.buffer < 0)
    without = [life for life in lives if life.buffer >= 0]
    spans = {life.buffer: (plan.memory.offsets[life.buffer], life) for life in lives}
    for key, (low, life) in spans.items():
        if key < 0:
            meets = [
                other for b, (at, other) in spans.items()
                if b != key and at < low + life.nbytes and low < at + other.nbytes
            ]
            assert meets and all(other.last < life.first or other.first > life.last for other in meets)
    assert plan.memory.nbytes < sum(life.nbytes for life in without) and rooms > 0


@pytest.mark.parametrize("rank", range(3))
def test_a_room_is_written_when_what_was_sent_from_there_has_left(rank: int) -> None:
    """In a step, what the step before has sent: rooms lie where gradients were."""
    tasks, order = tasks_of(recurrent(steps=4), SGD(0.1), 3)
    plan, leaving = schedule(tasks, order, Placement(3, 3), rank), dict[int, ByteRange]()
    for item in (*plan.items, *plan.items):
        if isinstance(item, Send):
            leaving[item.task.number] = span_of(tasks, plan.memory, item.task.reads[0])
        elif isinstance(item, WaitSend):
            leaving.pop(item.copy.number, None)
        elif isinstance(item, RunTask):
            for buffer, nbytes in rooms_of(item.task.work).items():
                low = plan.memory.offsets[~buffer]
                assert not any(ByteRange(-1, low, low + nbytes).meets(span) for span in leaving.values())


@pytest.mark.parametrize("name", ["onednn", "native"])
def test_losses_are_those_of_weights_as_they_lie(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "onednn":
        pytest.importorskip("taskflow.kernels.onednn._onednn")
    graph = recurrent()
    kernels = kernels_on("cpu")
    if name == "native":
        from taskflow.kernels.native.kernels import NativeKernels

        kernels = NativeKernels()
    rng = np.random.default_rng(1)
    feeds = {node.name: rng.standard_normal(node.outputs[0].shape).astype(np.float32) for node in graph if not node.inputs
             and node.operator.kind == "input"}
    strategy = choose("data", graph, host(1))[0]
    with_room = Executor(graph, strategy, SGD(0.1), kernels=kernels)
    ours = [with_room.train(feeds) for _ in range(2)]
    layer = next(type(node.operator) for node in graph if node.operator.kind == "lstm")
    monkeypatch.setattr(layer, "lays_out", lambda *_: ())
    without = Executor(graph, strategy, SGD(0.1), kernels=kernels)
    assert ours == [without.train(feeds) for _ in range(2)] and ours[-1] < ours[0]
    assert without.program("train").plan.memory.nbytes <= with_room.program("train").plan.memory.nbytes
