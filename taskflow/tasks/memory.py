"""Memory plan: where in one arena each buffer lies while it lives, so that memory is used again as soon as it is free."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass

ALIGNMENT = 64  # bytes: a cache line


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A buffer of ``nbytes`` that is first written at position ``first`` of a schedule and last used at ``last``."""

    buffer: int
    nbytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Byte offset of each buffer in the arena, and the arena's size. ``peak_bytes``: the most that lives at once, which
    no plan can go below."""

    offsets: dict[int, int]
    nbytes: int
    peak_bytes: int


def plan_memory(lifetimes: Sequence[Lifetime]) -> MemoryPlan:
    """Best fit in order of first use: a buffer takes the smallest hole that holds it, else the arena grows.

    Buffers whose lifetimes share a position never share bytes.
    """
    offsets: dict[int, int] = {}
    holes = _Holes()
    ends: list[tuple[int, int, int]] = []  # (last, offset, size) of what lives
    top = live = peak = 0
    for life in sorted(lifetimes, key=lambda x: (x.first, x.buffer)):
        while ends and ends[0][0] < life.first:
            _, offset, size = heapq.heappop(ends)
            live -= size
            holes.free(offset, size)
        size = max(ALIGNMENT, -(-life.nbytes // ALIGNMENT) * ALIGNMENT)
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
