"""Labels: what each task of a step is for: which operator, and whether it computes, moves data, keeps weights equal or updates.

A transfer of a tensor belongs to the operator that makes the tensor, whoever reads it, and so does that of its gradient. What
keeps a layer's weights equal and updates them belongs to the layer's first operator, whose weights they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from taskflow.graph import OperatorGraph
from taskflow.tasks.task import Compute, Kind, Task, TaskGraph


class Work(Enum):
    """What a task is for."""

    COMPUTE = "computation"  # forward, backward, and sums, moves and fills of activations and their gradients
    TRANSFER = "transfers"  # activations and their gradients between processors
    SYNC = "synchronisation"  # sums of weight gradients and new weights, between and within processors
    UPDATE = "update"


@dataclass(frozen=True, slots=True)
class Label:
    """``what``: ``forward``, ``backward``, ``output``, ``gradient of output``, ``gradients of weights``, ``new weights``,
    ``update``, ... of ``operator`` (empty: of the whole step, such as a gradient norm)."""

    work: Work
    operator: str
    what: str

    def __str__(self) -> str:
        return f"{self.operator} {self.what}".strip()


NORM = Label(Work.SYNC, "", "gradient norm")
_PREFIXES = (  # of a tensor in a task's name: what a transfer of it is, and what is done to it on one processor
    ("d ", "gradient of output", "sums of gradients"), ("sum ", "partial output", "sums of partial outputs"),
    ("", "output", "moves"),
)


def labels(graph: OperatorGraph, tasks: TaskGraph) -> tuple[Label, ...]:
    """A label for every task of a lowered step of ``graph``, by number."""
    names = _Names(graph, tasks)
    backward = [t.number for t in tasks if isinstance(t.work, Compute) and t.work.backward]
    last = max(backward, default=len(tasks))  # what comes after it keeps weights equal, or carries state
    return tuple(names.label(task, after_backward=task.number > last) for task in tasks)


class _Names:
    """Whose name the tasks' names begin with."""

    def __init__(self, graph: OperatorGraph, tasks: TaskGraph) -> None:
        self._tensors = {t.name: node.name for node in graph for t in node.outputs}
        self._weights = {p.name: p.layer for p in graph.parameters} | {b.name: b.layer for b in tasks.bundles}
        self._known: dict[tuple[str, bool], Label] = {}

    def label(self, task: Task, after_backward: bool) -> Label:
        if isinstance(task.work, Compute):
            return Label(Work.COMPUTE, task.work.node.name, "backward" if task.work.backward else "forward")
        if task.kind in (Kind.NORM, Kind.CLIP):
            return NORM
        stem, bracket, _ = task.name.rpartition("[")
        stem = stem if bracket else task.name
        moved = task.kind is Kind.COPY
        if task.kind is Kind.UPDATE:
            return self._of_weights(stem.removeprefix("update "), "update", Work.UPDATE)
        if stem.startswith("carry "):
            name = self._tensors.get(stem.removeprefix("carry "), "")
            return Label(Work.TRANSFER if moved else Work.COMPUTE, name, "next step's state")
        if stem in ("sum of squares", "clip"):
            return NORM
        if after_backward and stem.startswith("weights "):
            return self._of_weights(stem.removeprefix("weights "), "new weights", Work.SYNC)
        if after_backward and stem.startswith("d "):
            return self._of_weights(stem.removeprefix("d "), "gradients of weights", Work.SYNC)
        for prefix, transfer, here in _PREFIXES:
            name = stem.removeprefix(prefix)
            if stem.startswith(prefix) and name in self._tensors:
                return Label(Work.TRANSFER if moved else Work.COMPUTE, self._tensors[name], transfer if moved else here)
        return self._of_weights(stem, "weights put together", Work.COMPUTE)

    def _of_weights(self, name: str, what: str, work: Work) -> Label:
        return Label(work, self._weights.get(name, ""), what)


def totals(tasks: TaskGraph, found: Sequence[Label], seconds: Sequence[float]) -> dict[Work, float]:
    """Seconds of all tasks by what they are for."""
    result = dict.fromkeys(Work, 0.0)
    for task in tasks:
        result[found[task.number].work] += seconds[task.number]
    return result
