"""Aliased memory: gives the names of weights that may share memory the same array, also among the ranks of one machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from taskflow.runtime.program import PersistentBuffers
from taskflow.runtime.transport import Transport
from taskflow.runtime.weights.aliasing import one_copy
from taskflow.runtime.weights.shared_memory import SharedArray, common_arrays
from taskflow.tasks import Placement, TaskGraph

SMALLEST_BYTES = 1 << 20
"""Of weights for which it is worth it."""


def share_weights(
    kept: PersistentBuffers, graph: TaskGraph, order: Sequence[int], placement: Placement, transport: Transport
) -> None:
    """Share weights of a step whose tasks run in ``order``, before its arrays are made. Collective."""
    groups = one_copy(graph, order, placement, SMALLEST_BYTES)
    wanted: list[SharedArray] = []
    arrays: dict[str, Any] = {}
    for group in groups:
        buffers = [graph.buffers[number] for number in group]
        first = buffers[0]
        ranks = tuple(sorted({placement.rank(buffer.processor) for buffer in buffers}))
        if len(ranks) > 1:
            wanted.append(SharedArray(first.name, first.rect.volume, first.dtype, ranks))
        else:
            mine = ranks[0] == transport.rank
            arrays[first.name] = np.zeros(first.rect.volume, first.dtype) if mine else None
    if wanted:
        arrays |= common_arrays(wanted, transport)
    maker = {each.key: each.maker for each in wanted}
    for group in groups:
        buffers = [graph.buffers[number] for number in group]
        key = buffers[0].name
        if key not in arrays:
            continue
        here = [buffer.name for buffer in buffers if placement.rank(buffer.processor) == transport.rank]
        if here:
            kept.share(key, here, arrays[key], maker.get(key, transport.rank) == transport.rank)
        kept.name_elsewhere(key, (buffer.name for buffer in buffers))
