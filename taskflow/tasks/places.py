"""places: buffers one after another, each at the lowest place of an arena that is free while it lives.

The compiled twin is _places.pyx; tests/tasks/test_memory.py holds them equal."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence


def places(sizes: Sequence[int], first: Sequence[int], last: Sequence[int], most: int) -> list[int] | None:
    """Return the byte offset of each buffer of ``sizes`` bytes that lives from position ``first`` to ``last``, given those of the
    buffers before it. None if one does not end below ``most``."""
    found: list[int] = []
    placed: list[tuple[int, int, int, int]] = []  # place, end, first and last, from the lowest place upwards
    for size, begin, end in zip(sizes, first, last):
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
    return found
