"""Where the elements of a part of an array lie in memory."""

from __future__ import annotations

from collections.abc import Sequence

from taskflow.regions import Rect


def position(rect: Rect, shape: Sequence[int]) -> int:
    """Index of the first element of ``rect`` in a row-major array of ``shape``."""
    at = 0
    for low, size in zip(rect.lo, shape):
        at = at * size + low
    return at


def runs(part: Rect, shape: Sequence[int]) -> int:
    """Return the number of contiguous stretches of memory in ``part`` of a row-major array of ``shape``; 1 if it is empty."""
    length = 1
    for extent, of in zip(reversed(part.shape), reversed(shape)):
        length *= extent
        if extent != of:
            break
    return max(1, part.volume // length) if length else 1


def contiguous(part: Rect, shape: Sequence[int]) -> bool:
    """True if the elements of ``part`` of a row-major array of ``shape`` are contiguous."""
    return runs(part, shape) == 1
