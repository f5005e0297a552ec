"""Places of buffers in an arena: one buffer after another at the lowest free place (`places`), or in order of first use in the
smallest hole (`places_by_time`).

The compiled twin is _places.pyx; tests/tasks/test_memory.py holds them equal."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.int64]]
Integers = Sequence[int] | Array


def places(sizes: Integers, first: Integers, last: Integers, most: int) -> Array | None:
    """Return the byte offset of each buffer of ``sizes`` bytes that lives from position ``first`` to ``last``, given those of the
    buffers before it. None if one does not end below ``most``."""
    found: list[int] = []
    placed: list[tuple[int, int, int, int]] = []  # place, end, first and last, from the lowest place upwards
    for size, begin, end in zip(*map(_ints, (sizes, first, last))):
        place = 0
        for low, high, from_, to in placed:
            if from_ <= end and to >= begin:
                if low - place >= size:
                    break
                place = max(place, high)
        if place + size >= most:
            return None
        insort(placed, (place, place + size, begin, end))
        found.append(place)
    return np.array(found, np.int64)


def places_by_time(sizes: Integers, first: Integers, last: Integers) -> tuple[Array, int, int]:
    """Return the byte offset of each buffer of ``sizes`` bytes that lives from position ``first`` (ascending) to ``last``, the
    arena's size, and the most bytes that live at once. Each takes the smallest hole that holds it, else the arena grows. None ends
    before it begins."""
    found: list[int] = []
    sizes, first, last = map(_ints, (sizes, first, last))
    holes = _Holes()
    ends: list[tuple[int, int]] = []  # (last, number) of what lives
    top = live = most = 0
    for number, (size, begin, end) in enumerate(zip(sizes, first, last)):
        while ends and ends[0][0] < begin:
            over = heapq.heappop(ends)[1]
            live -= sizes[over]
            holes.free(found[over], sizes[over])
        place = holes.take(size)
        if place is None:
            # The arena's last hole is its end: start there.
            tail = holes.take_ending_at(top)
            place = top if tail is None else tail
            top = place + size
        found.append(place)
        heapq.heappush(ends, (end, number))
        live += size
        most = max(most, live)
    return np.array(found, np.int64), top, most


def _ints(of: Integers) -> list[int]:
    return np.asarray(of, np.int64).tolist()  # type: ignore[no-any-return]


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
