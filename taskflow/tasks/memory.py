"""Memory plan: the place of each buffer in one arena while it lives, so that memory is reused as soon as it is free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from taskflow.tasks.places import Array, Integers

try:
    from taskflow.tasks._places import places, places_by_time
except ImportError:  # it was not compiled
    from taskflow.tasks.places import places, places_by_time

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
    return MemoryPlan({life.buffer: place for life, place in zip(ordered, found.tolist())}, top, most)


def plan_places(nbytes: Integers, first: Integers, last: Integers) -> tuple[Array, int, int]:
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
    ends = np.argsort(last, kind="stable")
    ended = np.searchsorted(last[ends], first)  # how many have ended when one begins
    for keys in (given, given * (last - first + 1)):
        order = np.argsort(-keys, kind="stable")
        apart = sum(_at_once(np.where(which, sizes, 0), ends, ended) for which in _apart(order))
        if apart < top and (better := _by_size(sizes, first, last, order, top)) is not None:
            found, top = better
    return found, top, most


def _apart(order: Array) -> tuple[Array, Array]:
    """Which of the buffers are among the first `MANY` of an order, and which are not."""
    many = np.zeros(len(order), bool)
    many[order[:MANY]] = True
    return many, ~many


def _at_once(sizes: Array, ends: Array, ended: Array) -> int:
    """The most bytes that live at once. ``ends``: the order in which buffers end; ``ended``: how many have when each begins."""
    freed = np.append(0, np.cumsum(sizes[ends]))
    return int((np.cumsum(sizes) - freed[ended]).max(initial=0))


def _backwards(sizes: Array, first: Array, last: Array) -> tuple[Array, int]:
    """Best fits in order of last use, from the end. Offsets and the arena's size."""
    order, end = np.argsort(-last, kind="stable"), last.max(initial=0)
    placed, top, _ = places_by_time(sizes[order], end - last[order], end - first[order])
    found = np.empty(len(sizes), np.int64)
    found[order] = placed
    return found, top


def _by_size(sizes: Array, first: Array, last: Array, order: Array, best: int) -> tuple[Array, int] | None:
    """The largest first, by ``order``, each at the lowest place that is free while it lives; of very many buffers the rest, which
    matter little, by time behind them. Offsets and the arena's size; None as soon as it is known to be no less than ``best``."""
    many, others = order[:MANY], np.sort(order[MANY:])
    behind, top_behind, _ = places_by_time(sizes[others], first[others], last[others])
    placed = places(sizes[many], first[many], last[many], best - top_behind)
    if placed is None:
        return None
    found = np.empty(len(sizes), np.int64)
    found[many] = placed
    top = int((found[many] + sizes[many]).max(initial=0))
    found[others] = behind + top
    return found, top + top_behind
