"""Task owners: the operator that each task of a step works for, and which piece of it. The page selects and filters by them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from taskflow.graph import OperatorGraph
from taskflow.mapper import Strategy
from taskflow.optimizer.evaluate import ShownStep, piece_color
from taskflow.regions import Rect
from taskflow.tasks import Compute

NONE = -1


def operator_of(step: ShownStep, graph: OperatorGraph) -> NDArray[np.int64]:
    """Return for each task the number of its operator. A message or sum belongs to the operator that made the tensor, or to the
    layer's (or block's) first operator; a task that serves all layers (clipping) has NONE."""
    numbers = {node.name: node.number for node in graph}
    for bundle in step.lowered.bundles:  # of a block
        units, layers = (step.stands_for.get(name, (name,)) for name in (bundle.unit, bundle.layer))
        for unit, layer in zip(units, layers):
            numbers.setdefault(unit, numbers.get(layer, NONE))
    return np.array([numbers.get(name, NONE) for name in step.names], np.int64)


def piece_of(step: ShownStep, strategy: Strategy, micro: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return for each task the piece of its operator; 0 for tasks that belong to no piece. ``micro``: their micro-batches, from 1
    on, 0 for none: the task that was lowered may be of another one."""
    known: dict[tuple[int, Rect, int], int] = {}
    found = np.zeros(len(step.tasks), np.int64)
    for number, (task, batch) in enumerate(zip(step.tasks, micro.tolist())):
        if isinstance(task.work, Compute):
            key = task.work.node.number, task.work.piece, batch
            if key not in known:
                color, degrees = piece_color(task.work.node, *key[1:], strategy), strategy[task.work.node.name].degrees
                known[key] = int(np.ravel_multi_index(color, degrees)) if degrees else 0
            found[number] = known[key]
    return found
