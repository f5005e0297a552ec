"""Task owners: the operator that each task of a step works for, and which piece of it. The page selects and filters by them."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
from numpy.typing import NDArray

from taskflow.graph import Node, OperatorGraph
from taskflow.mapper import Strategy, sample_dim
from taskflow.optimizer.evaluate import ShownStep
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
                known[key] = _piece(task.work.node, task.work.piece, batch, strategy)
            found[number] = known[key]
    return found


def _piece(node: Node, rect: Rect, batch: int, strategy: Strategy) -> int:
    """The number of the piece of micro-batch ``batch`` that is as ``rect`` is in its own micro-batch."""
    config, dim, pipeline = strategy[node.name], sample_dim(node), strategy.pipeline
    if not config.degrees:
        return 0
    place = [bisect_right(cuts, low) - 1 for cuts, low in zip(config.partition(node).cuts, rect.lo)]
    if batch and pipeline is not None and dim is not None and config.degrees[dim] % pipeline.parts == 0:
        each = config.degrees[dim] // pipeline.micro_batches
        place[dim] = (batch - 1) * each + place[dim] % each
    return int(np.ravel_multi_index(place, config.degrees))
