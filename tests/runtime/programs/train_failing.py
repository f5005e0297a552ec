"""Trains a small language model on every rank until one of them (the last) fails as the first argument says.

Rank 0 says "connected" first, and "training" after the second step. The second argument is the watchdog's limit in seconds.
"""

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

import taskflow  # isort: skip
from language_model import feeds, model

from taskflow.machine import host
from taskflow.mapper import DataParallel, choose
from taskflow.runtime.program.bind import bind

case = sys.argv[1]
limit = float(sys.argv[2]) if len(sys.argv) > 2 else 60.0
FAILING_STEP = 3
transport = taskflow.connect(watchdog_seconds=limit)
fails = transport.rank == transport.size - 1
transport.barrier()
if transport.rank == 0:
    print("connected", flush=True)


class Nonsense(taskflow.Mapper):
    """Cuts samples, but lstm1.1 as the case says."""

    name = "nonsense"

    def slice_task(self, node, machine):
        if case == "degrees" and node.name == "lstm1.1":
            return (7,) * len(node.dims)
        if case == "type" and node.name == "lstm1.1":
            return None
        if case == "disagree" and fails and node.name == "lstm1.1":
            return (2, 1, 1, 1)[: len(node.dims)]
        return tuple(len(machine.processors) if i == 0 else 1 for i in range(len(node.dims)))

    def map_task(self, node, piece, degrees, machine):
        return len(machine.processors) if case == "processor" and node.name == "lstm1.1" else piece


class LongestFirst(DataParallel):
    """Another order of tasks."""

    def order_tasks(self, name, operator, kind):
        return -len(name)


def bind_failing(task, storage, kernels, state):
    """As bind, but on the failing rank the backward task of lstm0.1 fails in the failing step."""
    action = bind(task, storage, kernels, state)
    if not (fails and str(task).startswith("lstm0.1[") and "backward" in str(task)):
        return action

    def failing():
        if state.step == FAILING_STEP:
            if case == "task":
                raise FloatingPointError("boom")
            if case == "exit in a task":
                sys.exit(0)
            if case == "sleep":
                time.sleep(60)
            if case == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
        action()

    return failing


graph = model()
if case in ("degrees", "type", "processor", "disagree"):
    strategy = taskflow.map_graph(Nonsense(), graph, host(transport.size))
elif case == "file":
    strategy, _ = choose("missing/strategy.json", graph, host(transport.size))
else:
    strategy, _ = choose("data", graph, host(transport.size))
run = taskflow.Executor(
    graph, strategy, taskflow.SGD(0.1), transport=transport, binder=bind_failing,
    seed=2 if case == "seed" and fails else 0, mapper=LongestFirst() if case == "order" and fails else None,
)
for step in range(10**9):
    batch = feeds(step)
    if step == FAILING_STEP:
        if case == "exit" and fails:
            sys.exit(0)
        if case == "shape" and fails:
            batch["targets"] = batch["targets"][:-1]
        if case == "shape everywhere":
            batch["targets"] = batch["targets"][:-1]
        if case == "nan":
            run.set_parameters({graph.parameters[0].name: np.full(graph.parameters[0].shape, np.nan)})
    run.train(batch)
    if step == 1 and transport.rank == 0:
        print("training", flush=True)
