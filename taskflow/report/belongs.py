"""Task owners: the operator that each task of a step works for, and which piece of it. The page selects and filters by them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from taskflow.graph import OperatorGraph
from taskflow.mapper import Strategy
from taskflow.regions import Rect
from taskflow.tasks import Compute, TaskGraph

NONE = -1


def operator_of(tasks: TaskGraph, graph: OperatorGraph) -> NDArray[np.int64]:
    """Return for each task the number of its operator. A message or sum belongs to the operator that made the tensor, or to the
    layer's (or block's) first operator; a task that serves all layers (clipping) has NONE."""
    numbers = {node.name: node.number for node in graph}
    for bundle in tasks.bundles:
        numbers.setdefault(bundle.unit, numbers.get(bundle.layer, NONE))  # of a block
    return np.array([numbers.get(task.topic.name, NONE) for task in tasks], np.int64)


def piece_of(tasks: TaskGraph, graph: OperatorGraph, strategy: Strategy) -> NDArray[np.int64]:
    """Return for each task the piece of its operator; 0 for tasks that belong to no piece."""
    pieces: dict[tuple[int, Rect], int] = {}
    for node in graph:
        for index, (rect, _) in enumerate(strategy[node.name].pieces(node)):
            pieces[node.number, rect] = index
    return np.array(
        [pieces[t.work.node.number, t.work.piece] if isinstance(t.work, Compute) else 0 for t in tasks], np.int64
    )
