"""Labels: the purpose and operator of each task of a step: computing, moving data, synchronising weights or updating them.

A transfer of a tensor, or of its gradient, belongs to the operator that makes the tensor, whoever reads it. Synchronisation and
updates of a layer's weights belong to the layer's first operator, which declares them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from taskflow.tasks import Purpose, Task, TaskGraph, Topic


class TaskPurpose(Enum):
    """Purpose of a task."""

    COMPUTE = "computation"  # forward, backward, and sums, moves and fills of activations and their gradients
    TRANSFER = "transfers"  # activations and their gradients between processors
    SYNC = "synchronisation"  # sums of weight gradients and new weights, between and within processors
    UPDATE = "update"


@dataclass(frozen=True, slots=True)
class Label:
    """``what``: ``forward``, ``backward``, ``output``, ``gradient of output``, ``gradients of weights``, ``new weights``,
    ``update``, ... of ``operator`` (empty: of the whole step, such as a gradient norm)."""

    work: TaskPurpose
    operator: str
    what: str

    def __str__(self) -> str:
        return f"{self.operator} {self.what}".strip()


_WORK = {
    Purpose.FORWARD: TaskPurpose.COMPUTE,
    Purpose.BACKWARD: TaskPurpose.COMPUTE,
    Purpose.GATHERED: TaskPurpose.COMPUTE,
    Purpose.NORM: TaskPurpose.SYNC,
    Purpose.WEIGHT_GRADIENTS: TaskPurpose.SYNC,
    Purpose.NEW_WEIGHTS: TaskPurpose.SYNC,
    Purpose.UNSHARDED: TaskPurpose.SYNC,
    Purpose.UPDATE: TaskPurpose.UPDATE,
}
"""What tasks are for whose purpose says it alone; others are transfers between processors and computation within one."""
_HERE = {Purpose.GRADIENT: "sums of gradients", Purpose.PARTIAL: "sums of partial outputs", Purpose.OUTPUT: "moves"}
"""What is done on one processor with what is called otherwise when it travels."""


def labels(tasks: Iterable[Task]) -> tuple[Label, ...]:
    """Return a label for every task of a step, in order."""
    known: dict[tuple[Topic, bool], Label] = {}
    found = []
    for task in tasks:
        key = task.topic, task.kind.travels
        if key not in known:
            known[key] = _label(*key)
        found.append(known[key])
    return tuple(found)


def _label(topic: Topic, moved: bool) -> Label:
    purpose = topic.purpose
    work = _WORK.get(purpose, TaskPurpose.TRANSFER if moved else TaskPurpose.COMPUTE)
    name = "" if purpose is Purpose.NORM else topic.name  # the norm is of the whole step
    return Label(work, name, purpose.value if moved else _HERE.get(purpose, purpose.value))


def totals(tasks: TaskGraph, found: Sequence[Label], seconds: Sequence[float]) -> dict[TaskPurpose, float]:
    """Return the seconds of all tasks by purpose."""
    result = dict.fromkeys(TaskPurpose, 0.0)
    for task in tasks:
        result[found[task.number].work] += seconds[task.number]
    return result
