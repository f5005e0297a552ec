"""Topic: what a task is about (which operator or layer), and which part of a step it belongs to. For reports and traces."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from taskflow.graph import OperatorGraph
from taskflow.tasks.task import Clip, Compute, Kind, Norm, Task, TaskGraph, Update, UserCall

# How the names of tasks begin that move or sum what is named behind.
_PREFIXES = ("sum ", "d ", "weights ", "norm ", "update ", "carry ")


class Phase(Enum):
    """Parts of a step. ``SYNCHRONISATION`` is all that is done with the gradients of weights to make new weights of them."""

    FORWARD = "forward"
    BACKWARD = "backward"
    SYNCHRONISATION = "synchronisation"
    TRANSFER = "transfer"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Topic:
    """``name``: the operator, for synchronisation the layer; of a user's task its own name."""

    name: str
    phase: Phase


class Topics:
    """Answers for the tasks of one task graph. ``graph``: the operator graph it was lowered from, None for a user's tasks."""

    def __init__(self, tasks: TaskGraph, graph: OperatorGraph | None = None) -> None:
        self._tasks = tasks
        self._layers = {bundle.name: bundle.layer for bundle in tasks.bundles}
        self._operators: dict[str, str] = {}
        for node in graph or ():
            self._operators |= {tensor.name: node.name for tensor in node.outputs}
            self._operators |= {parameter.name: node.name for parameter in node.parameters}

    def of(self, task: Task) -> Topic:
        """What ``task`` is about."""
        work = task.work
        if isinstance(work, Compute):
            return Topic(work.node.name, Phase.BACKWARD if work.backward else Phase.FORWARD)
        if isinstance(work, UserCall):
            return Topic(task.name.partition("[")[0], Phase.FORWARD)
        name = _plain(task.name)
        if isinstance(work, (Update, Norm, Clip)) or self._synchronises(task, name):
            return Topic(self._layers.get(name, name), Phase.SYNCHRONISATION)
        phase = Phase.TRANSFER if task.kind is Kind.COPY else Phase.OTHER
        return Topic(self._operators.get(name, name), phase)

    def _synchronises(self, task: Task, name: str) -> bool:
        """Whether it works on a layer's flat gradients or weights, which have one dimension, as few activations have."""
        if name in ("sum of squares", "clip"):
            return True
        if name not in self._layers:
            return False
        return all(len(self._tasks.buffers[part.buffer].shape) == 1 for part in (*task.reads, *task.writes))


def _plain(name: str) -> str:
    """``d conv1.weight[0:4, 0:3]`` is about ``conv1.weight``."""
    if name.startswith("sum of squares"):
        return "sum of squares"
    found = True
    while found:
        found = False
        for prefix in _PREFIXES:
            if name.startswith(prefix):
                name, found = name[len(prefix):], True
    return name.partition("[")[0]
