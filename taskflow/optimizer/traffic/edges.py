"""Edges: how many elements of a tensor go from each piece of its writer to each piece of its readers.

These numbers follow from what pieces write and read (`Node.writes`, `Node.reads`). All estimates use them: loads, additive
costs, counts of messages, memory, and the choice of the nearest configuration. `taskflow.tasks` lowers them to tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from taskflow.graph import Node, OperatorGraph
from taskflow.mapper import OpConfig
from taskflow.operators.operator import Reads
from taskflow.regions import Rect

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
Numbers = NDArray[np.int64]
Makers = Mapping[Rect, Mapping[int, None]]  # of each Rect of an output: the processors that compute it, the owner first


@dataclass(frozen=True, slots=True)
class Access:
    """Pieces of a cut operator, and what each of them reads and writes."""

    pieces: tuple[Rect, ...]
    reads: tuple[Reads, ...]
    writes: tuple[tuple[Rect, ...], ...]


class Accesses:
    """Cache of the `Access` of a graph's operators under any cut. Equal operators share it. ``kinds``: by node, a number that
    equal operators share. ``rects``: pieces of an operator, if they are not those of all its iteration space."""

    def __init__(self, graph: OperatorGraph, rects: Callable[[Node, OpConfig], list[Rect]] | None = None) -> None:
        self._rects = rects or (lambda node, config: config.partition(node).rects())
        numbers: dict[object, int] = {}
        self.kinds = [numbers.setdefault((node.operator, node.specs), len(numbers)) for node in graph]
        self._known: dict[object, Access] = {}

    def __call__(self, node: Node, config: OpConfig) -> Access:
        key = (self.kinds[node.number], config.degrees, config.weights)
        found = self._known.get(key)
        if found is None:
            rects = self._rects(node, config)
            found = Access(tuple(rects), tuple(map(node.reads, rects)), tuple(map(node.writes, rects)))
            self._known[key] = found
        return found

    def clear(self) -> None:
        """Forget all cuts."""
        self._known.clear()


@dataclass(frozen=True, slots=True)
class Corners:
    """Rects as arrays (Rects, dimensions), the processor of each, and the one of ``cuts`` cuts to which it belongs."""

    low: Numbers
    high: Numbers
    processor: Numbers
    cut: Numbers
    cuts: int = 1


def corners(rects: Iterable[tuple[Rect, int]]) -> Corners:
    """Return the Rects of one cut. Each appears once for each processor: what a processor holds or reads twice moves once."""
    found = list(dict.fromkeys(rects))
    return Corners(
        np.array([rect.lo for rect, _ in found]), np.array([rect.hi for rect, _ in found]),
        np.array([processor for _, processor in found]), np.zeros(len(found), dtype=np.int64),
    )


def alternatives(cuts: Sequence[Corners]) -> Corners:
    """Join several cuts into one value, to look at all of them at once."""
    return Corners(
        np.concatenate([one.low for one in cuts]), np.concatenate([one.high for one in cuts]),
        np.concatenate([one.processor for one in cuts]),
        np.repeat(np.arange(len(cuts)), [len(one.processor) for one in cuts]), len(cuts),
    )


def makers(access: Access, config: OpConfig, output: int) -> Makers:
    """Return the processors that compute each Rect of an output. If there are several, each has a partial value, and the first
    owns the sum."""
    found: dict[Rect, dict[int, None]] = {}
    for written, processor in zip(access.writes, config.processors):
        found.setdefault(written[output], {})[processor] = None
    return found


def owned(of: Makers) -> Corners:
    """Return each Rect at its owner, where readers get it when partial values are summed."""
    return corners((rect, next(iter(group))) for rect, group in of.items())


def corners_of(of: Makers) -> Corners:
    """Return each Rect at each of its makers."""
    return corners((rect, processor) for rect, group in of.items() for processor in group)


def needed(uses: Iterable[tuple[Access, OpConfig, int]]) -> Corners:
    """Return the Rects that the pieces of operators read of one tensor. ``uses``: operators, each with the number of the input
    that is the tensor."""
    return corners(
        (reads.inputs[i], processor)
        for access, config, i in uses for reads, processor in zip(access.reads, config.processors)
    )


def common(read: Corners, held: Corners) -> Vector:
    """Return the number of elements that Rects have in common, by (read Rect, held Rect)."""
    volume = np.ones((len(read.low), len(held.low)))
    for i in range(read.low.shape[1]):
        low = np.maximum(read.low[:, i, None], held.low[:, i])
        volume *= np.maximum(np.minimum(read.high[:, i, None], held.high[:, i]) - low, 0)
    return volume


def sent(volume: Vector, read: Corners, held: Corners, processors: int) -> Vector:
    """Return the elements that readers get, by (cut, source x ``processors`` + target), from ``volume`` by `common`. The
    diagonal has those that stay where they are. One of the two sides may be of several cuts."""
    cuts, pairs = max(read.cuts, held.cuts), processors**2
    target, source = read.cut * pairs + read.processor, held.cut * pairs + held.processor * processors
    at = target[:, None] + source
    return np.asarray(np.bincount(at.ravel(), volume.ravel(), cuts * pairs), np.float64).reshape(cuts, pairs)
