"""Memory plan: the place of each buffer in one arena while it lives, so that memory is reused as soon as it is free."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

try:
    from taskflow.tasks._places import places
except ImportError:  # it was not compiled
    from taskflow.tasks.places import places

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
    """Plan an arena in which buffers whose lifetimes overlap never share bytes. Places are best fits in order of first use,
    which puts new values where the last ones have just been. If that leaves holes, placing the largest buffers first, by size
    or by size times time, is tried too, and the smallest arena wins (Pisarchyk and Lee, "Efficient memory management for deep
    neural net inference", arXiv 2001.03288).
    """
    plan = _by_time(lifetimes)
    if plan.nbytes <= NEAR * plan.peak_bytes:
        return plan
    for key in (_size, _area):
        if plan.nbytes > plan.peak_bytes:
            plan = _by_size(lifetimes, key, plan) or plan
    return plan


def peak_of(lifetimes: Sequence[Lifetime]) -> int:
    """Return the most bytes that live at once."""
    change: dict[int, int] = {}
    for life in lifetimes:
        change[life.first] = change.get(life.first, 0) + _rounded(life)
        change[life.last + 1] = change.get(life.last + 1, 0) - _rounded(life)
    return max(accumulate(change[position] for position in sorted(change)), default=0)


def _by_time(lifetimes: Sequence[Lifetime]) -> MemoryPlan:
    """Place buffers in order of first use: each takes the smallest hole that holds it, else the arena grows."""
    offsets: dict[int, int] = {}
    holes = _Holes()
    ends: list[tuple[int, int, int]] = []  # (last, offset, size) of what lives
    top = live = peak = 0
    for life in sorted(lifetimes, key=lambda x: (x.first, x.buffer)):
        while ends and ends[0][0] < life.first:
            _, offset, size = heapq.heappop(ends)
            live -= size
            holes.free(offset, size)
        size = _rounded(life)
        place = holes.take(size)
        if place is None:
            # The arena's last hole is its end: start there.
            tail = holes.take_ending_at(top)
            place = top if tail is None else tail
            top = place + size
        offsets[life.buffer] = place
        heapq.heappush(ends, (life.last, place, size))
        live += size
        peak = max(peak, live)
    return MemoryPlan(offsets, top, peak)


def _by_size(lifetimes: Sequence[Lifetime], key: Callable[[Lifetime], int], best: MemoryPlan) -> MemoryPlan | None:
    """The largest by ``key`` first, each at the lowest place that is free while it lives; of very many buffers the rest, which
    matter little, by time behind them. None as soon as that is known to need no less than the ``best`` so far."""
    ordered = sorted(lifetimes, key=lambda x: (-key(x), x.first, x.buffer))
    many, rest = ordered[:MANY], _by_time(ordered[MANY:])
    sizes = [_rounded(life) for life in many]
    found = places(sizes, [life.first for life in many], [life.last for life in many], best.nbytes - rest.nbytes)
    if found is None:
        return None
    offsets = {life.buffer: place for life, place in zip(many, found)}
    top = max(map(sum, zip(found, sizes)), default=0)
    offsets.update((buffer, top + offset) for buffer, offset in rest.offsets.items())
    return MemoryPlan(offsets, top + rest.nbytes, best.peak_bytes)


def _rounded(life: Lifetime) -> int:
    return max(ALIGNMENT, -(-life.nbytes // ALIGNMENT) * ALIGNMENT)


def _size(life: Lifetime) -> int:
    return life.nbytes


def _area(life: Lifetime) -> int:
    return life.nbytes * (life.last - life.first + 1)


class _Holes:
    """Free ranges of the arena, by size and by position."""

    def __init__(self) -> None:
        self._by_size: list[tuple[int, int]] = []  # (size, offset), sorted
        self._starts: dict[int, int] = {}  # offset -> size
        self._ends: dict[int, int] = {}  # end -> offset

    def free(self, offset: int, size: int) -> None:
        if offset in self._ends:
            before = self._ends[offset]
            size += self._remove(before)
            offset = before
        if offset + size in self._starts:
            size += self._remove(offset + size)
        self._starts[offset] = size
        self._ends[offset + size] = offset
        insort(self._by_size, (size, offset))

    def take(self, size: int) -> int | None:
        """The offset of the smallest hole of at least ``size``, which is cut from its start."""
        index = bisect_left(self._by_size, (size, -1))
        if index == len(self._by_size):
            return None
        found, offset = self._by_size[index]
        self._remove(offset)
        if found > size:
            self.free(offset + size, found - size)
        return offset

    def take_ending_at(self, end: int) -> int | None:
        """The offset of the hole that ends there, taken whole."""
        offset = self._ends.get(end)
        if offset is not None:
            self._remove(offset)
        return offset

    def _remove(self, offset: int) -> int:
        size = self._starts.pop(offset)
        del self._ends[offset + size]
        del self._by_size[bisect_left(self._by_size, (size, offset))]
        return size
