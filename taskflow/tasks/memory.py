"""Memory plan: the place of each buffer in one arena while it lives, so that memory is reused as soon as it is free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from taskflow.tasks.places import Integers

try:
    from taskflow.tasks._places import places, places_by_time
except ImportError:  # it was not compiled
    from taskflow.tasks.places import places, places_by_time

Array = np.ndarray[Any, np.dtype[np.int64]]

ALIGNMENT = 64  # bytes: a cache line
NEAR = 1.02  # an arena of so many times what lives at once is good enough
MANY = 3000  # buffers that are placed by size; the time grows with the square


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A buffer of ``nbytes`` that is first written at position ``first`` of a schedule and last used at ``last``."""

    buffer: int
    nbytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Byte offset of each buffer in the arena, and the arena's size. ``peak_bytes``: the most that lives at once; no arena can
    be smaller."""

    offsets: dict[int, int]
    nbytes: int
    peak_bytes: int


def plan_memory(lifetimes: Sequence[Lifetime]) -> MemoryPlan:
    """Plan an arena in which buffers whose lifetimes overlap never share bytes (`plan_places`)."""
    ordered = sorted(lifetimes, key=lambda x: (x.first, x.buffer))
    found, top, most = plan_places([x.nbytes for x in ordered], [x.first for x in ordered], [x.last for x in ordered])
    return MemoryPlan({life.buffer: place for life, place in zip(ordered, found)}, top, most)


def plan_places(nbytes: Integers, first: Integers, last: Integers) -> tuple[list[int], int, int]:
    """Return the offsets of buffers that live from position ``first`` (ascending) to ``last``, the arena's size, and the most
    bytes that live at once. Places are best fits in order of first use, which puts new values where the last ones have just been.
    If that leaves holes, the same backwards in time is tried, and placing the largest buffers first, by size or by size times time
    (Pisarchyk and Lee, "Efficient memory management for deep neural net inference", arXiv 2001.03288). The smallest arena wins."""
    given, first, last = (np.asarray(of, np.int64) for of in (nbytes, first, last))
    sizes = np.maximum(ALIGNMENT, -(-given // ALIGNMENT) * ALIGNMENT)
    found, top, most = places_by_time(sizes, first, last)
    if top <= NEAR * most:
        return found, top, most
    backwards, other = _backwards(sizes, first, last)
    if other < top:
        found, top = backwards, other
    for keys in (given, given * (last - first + 1)):
        better = _by_size(sizes, first, last, keys, top) if top > most else None
        if better is not None:
            found, top = better
    return found, top, most


def _backwards(sizes: Array, first: Array, last: Array) -> tuple[list[int], int]:
    """Best fits in order of last use, from the end. Offsets and the arena's size."""
    order, end = np.argsort(-last, kind="stable"), last.max(initial=0)
    placed, top, _ = places_by_time(sizes[order], end - last[order], end - first[order])
    found = np.empty(len(sizes), np.int64)
    found[order] = placed
    return found.tolist(), top


def _by_size(sizes: Array, first: Array, last: Array, keys: Array, best: int) -> tuple[list[int], int] | None:
    """The largest by ``keys`` first, each at the lowest place that is free while it lives; of very many buffers the rest, which
    matter little, by time behind them. Offsets and the arena's size; None as soon as it is known to be no less than ``best``."""
    ordered = np.argsort(-keys, kind="stable")
    many, others = ordered[:MANY], np.sort(ordered[MANY:])
    behind, top_behind, _ = places_by_time(sizes[others], first[others], last[others])
    placed = places(sizes[many], first[many], last[many], best - top_behind)
    if placed is None:
        return None
    found = np.empty(len(sizes), np.int64)
    found[many] = placed
    top = int((found[many] + sizes[many]).max(initial=0))
    found[others] = np.array(behind, np.int64) + top
    return found.tolist(), top + top_behind
