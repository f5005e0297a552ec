"""Stretches: ranges of the elements of a Rect, counted row by row, expressed as Rects."""

from __future__ import annotations

from taskflow.regions import Rect


def rects_of(rect: Rect, first: int, last: int) -> list[Rect]:
    """Return elements ``first`` to ``last`` - 1 of ``rect`` as consecutive Rects: at most two for each dimension, less one."""
    if first >= last:
        return []
    if (first, last) == (0, rect.volume):
        return [rect]
    row = rect.volume // rect.shape[0]
    (begin, skipped), (end, left) = divmod(first, row), divmod(last, row)
    if begin == end:
        return _in_row(rect, begin, skipped, left)
    found = _in_row(rect, begin, skipped, row) if skipped else []
    whole = begin + bool(skipped)
    if whole < end:
        found.append(Rect((rect.lo[0] + whole, *rect.lo[1:]), (rect.lo[0] + end, *rect.hi[1:])))
    return found + (_in_row(rect, end, 0, left) if left else [])


def _in_row(rect: Rect, row: int, first: int, last: int) -> list[Rect]:
    at = rect.lo[0] + row
    return [
        Rect((at, *part.lo), (at + 1, *part.hi)) for part in rects_of(Rect(rect.lo[1:], rect.hi[1:]), first, last)
    ]
