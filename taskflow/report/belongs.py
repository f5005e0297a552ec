"""Belongs: which operator each task of a step works for, and which piece of it; the page selects and filters by that."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from taskflow.graph import OperatorGraph
from taskflow.mapper import Strategy
from taskflow.regions import Rect
from taskflow.report.spans import SYNC, Spans
from taskflow.tasks.task import Compute, Task, TaskGraph

NONE = -1
_PREFIXES = ("d ", "sum ", "weights ", "update ", "norm ", "carry ")


def operator_of(tasks: TaskGraph, spans: Spans, graph: OperatorGraph) -> NDArray[np.int64]:
    """By task: the number of its operator; of messages and sums the one that made the tensor, or the layer's first; NONE
    for what serves all layers (clipping)."""
    tensors = {tensor.name: node.number for node in graph for tensor in node.outputs}
    layers = {bundle.name: bundle.layer for bundle in tasks.bundles}
    numbers = {node.name: node.number for node in graph}
    parameters = {p.name: numbers[p.layer] for p in graph.parameters}
    bundles = {name: numbers[layer] for name, layer in layers.items()}
    synchronises = np.isin(spans.category, SYNC)
    found = np.full(len(tasks), NONE, np.int64)
    for task in tasks:
        if isinstance(task.work, Compute):
            found[task.number] = task.work.node.number
        else:
            tables = (bundles, parameters, tensors) if synchronises[task.number] else (tensors, parameters, bundles)
            found[task.number] = _look_up(task, tables)
    return found


def _look_up(task: Task, tables: tuple[dict[str, int], ...]) -> int:
    """A task is called ``d conv1[0:4]``: perhaps a word in front, and at the end the Rect, whose bracket is the last."""
    name = task.name[: task.name.rfind("[")] if task.name.endswith("]") else task.name
    for words in (name, *(name[len(p) :] for p in _PREFIXES if name.startswith(p))):
        for table in tables:
            if words in table:
                return table[words]
    return NONE


def piece_of(tasks: TaskGraph, graph: OperatorGraph, strategy: Strategy) -> NDArray[np.int64]:
    """By task: the piece of its operator, 0 for tasks that are no piece's."""
    pieces: dict[tuple[int, Rect], int] = {}
    for node in graph:
        for index, (rect, _) in enumerate(strategy[node.name].pieces(node)):
            pieces[node.number, rect] = index
    return np.array(
        [pieces[t.work.node.number, t.work.piece] if isinstance(t.work, Compute) else 0 for t in tasks], np.int64
    )
