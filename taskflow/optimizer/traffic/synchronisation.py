"""Synchronisation: traffic for synchronising a layer's weights, as estimates count it.

Its three estimates differ on purpose. Loads count the least that can travel. Additive costs count what OptCNN's baseline sends,
whatever `Sync` a strategy has. Only the count of messages depends on the `Sync`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from taskflow.floats import sum_bytes
from taskflow.graph import Node
from taskflow.mapper import OpConfig, Sync
from taskflow.operators.tensor import Parameter
from taskflow.optimizer.traffic.edges import Access, Vector
from taskflow.regions import Rect
from taskflow.tasks.lower import make_sync_table

Holders = Mapping[tuple[int, Rect], Collection[int]]  # of each Rect of a parameter, by the parameter's number: who holds it


def holders(uses: Iterable[tuple[Access, OpConfig]]) -> Holders:
    """Return the processors that hold each Rect of a layer's weights, for the operators that use them."""
    found: dict[tuple[int, Rect], set[int]] = {}
    for access, config in uses:
        for reads, processor in zip(access.reads, config.processors):
            for i, read in enumerate(reads.weights):
                found.setdefault((i, read), set()).add(processor)
    return found


def ring_bytes(held: Holders, parameters: Sequence[Parameter], processors: int) -> Vector:
    """Return the bytes, by source x ``processors`` + target, if the gradient of each Rect goes around a ring of its holders. No
    way to synchronise sends less."""
    messages = np.zeros(processors**2)
    for (i, read), group in held.items():
        around(group, read.volume * _both_ways(parameters[i]), messages, processors)
    return messages


def _both_ways(parameter: Parameter) -> int:
    """Bytes of an element on its way to a sum and on the way back, in the mean: as a gradient and as a weight."""
    itemsize = parameter.spec.dtype.itemsize
    return (sum_bytes(itemsize) + itemsize) // 2


def around(group: Iterable[int], size: float, messages: Vector, processors: int) -> None:
    """Add to ``messages`` an all-reduce of ``size`` elements or bytes by a ring through the processors of a group."""
    ring = sorted(group)
    each = 2 * size * (len(ring) - 1) / len(ring)
    for p, q in zip(ring, ring[1:] + ring[:1]):
        messages[p * processors + q] += each if p != q else 0.0


def share_bytes(held: Holders, parameters: Sequence[Parameter], processors: int) -> Vector:
    """Return the bytes, by source x ``processors`` + target, if each holder sends every other one its share of the gradients.
    The new weights take the same again."""
    nbytes: dict[tuple[int, ...], int] = {}  # by holders
    for (i, read), holding in held.items():
        if len(holding) > 1:
            key = tuple(sorted(holding))
            nbytes[key] = nbytes.get(key, 0) + read.volume * _both_ways(parameters[i])
    messages = np.zeros((processors, processors))
    for key, size in nbytes.items():
        messages[np.ix_(key, key)] += size // len(key)
    return messages.ravel()


def sync_messages(node: Node, config: OpConfig, sync: Sync) -> int:
    """Count the messages that synchronise the layer whose weights an operator uses; a collective counts once. Only the cut of
    this operator matters, and pieces count as if each were on a processor of its own."""
    rects = config.partition(node).rects()
    cells = len({tuple(node.reads(rect).weights) for rect in rects})
    nbytes = sum(p.spec.nbytes for p in node.parameters) // cells
    return cells * make_sync_table(sync, (True,) * (len(rects) // cells), nbytes, 1).messages
