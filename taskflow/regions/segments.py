"""Collections of Rects with look-up by overlap: RectIndex (any Rects) and DisjointMap (a value for each point). Also
`canonical`, a normal form of disjoint Rects."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from taskflow.regions.rect import Rect

V = TypeVar("V")
_Key = tuple[int, ...]


class RectIndex(Generic[V]):
    """Dict from non-empty Rects (all with the same number of dimensions) to values that also finds Rects by overlap.

    Rects are sorted by size class: for each dimension, the power of two that holds their extent. A class is a grid of buckets
    as wide as the class, indexed by the Rects' lower corners, and kept as a tree with one dimension a level (sorted keys). If a
    Rect of a class overlaps ``rect``, its lower corner is less than one bucket below ``rect.lo``. So a look-up visits few
    buckets, and few Rects besides those that it finds, whatever dimensions are cut. A handful of Rects is simply scanned.
    """

    __slots__ = ("_levels", "_values")

    def __init__(self) -> None:
        self._values: dict[Rect, V] = {}
        self._levels: dict[_Key, _Buckets] | None = None

    def get(self, rect: Rect) -> V | None:
        """Return the value of exactly this Rect, or None."""
        return self._values.get(rect)

    def __getitem__(self, rect: Rect) -> V:
        """The value of exactly this Rect; KeyError if it is not there."""
        return self._values[rect]

    def setdefault(self, rect: Rect, make: Callable[[], V]) -> V:
        """Return the value of exactly this Rect; if it has none, ``make()`` is stored first."""
        value = self._values.get(rect)
        if value is None:
            value = self[rect] = make()
        return value

    def __setitem__(self, rect: Rect, value: V) -> None:
        """Set the value of exactly this Rect. Raises ValueError for an empty Rect, which overlaps nothing."""
        if rect not in self._values:
            if rect.empty:
                raise ValueError(f"RectIndex: a Rect must hold at least one point, got {rect}")
            if self._levels is not None:
                self._add(self._levels, rect)
            elif len(self._values) == FEW:
                self._levels = {}
                for known in (*self._values, rect):
                    self._add(self._levels, known)
        self._values[rect] = value

    def __delitem__(self, rect: Rect) -> None:
        """Forget exactly this Rect; KeyError if it is not there."""
        del self._values[rect]
        if self._levels is not None:
            level, place = _place(rect)
            buckets = self._levels[level]
            buckets.remove(place, rect)
            if not buckets.keys:
                del self._levels[level]

    def overlapping(self, rect: Rect) -> list[tuple[Rect, V]]:
        """Return every Rect that shares a point with ``rect``, with its value, in the order of the Rects."""
        if rect.empty:
            return []
        values = self._values
        if self._levels is None:
            found = [(r, value) for r, value in values.items() if r.overlaps(rect)]
        else:
            found = [(r, values[r]) for r in self._near(self._levels, rect) if r.overlaps(rect)]
        if len(found) > 1:
            found.sort(key=_corners)
        return found

    def __iter__(self) -> Iterator[Rect]:
        return iter(self._values)

    def items(self) -> Iterable[tuple[Rect, V]]:
        """Yield every Rect and its value, in insertion order."""
        return self._values.items()

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, rect: Rect) -> bool:
        return rect in self._values

    @staticmethod
    def _add(levels: dict[_Key, _Buckets], rect: Rect) -> None:
        level, place = _place(rect)
        buckets = levels.get(level)
        if buckets is None:
            buckets = levels[level] = _Buckets()
        buckets.add(place, rect)

    @staticmethod
    def _near(levels: dict[_Key, _Buckets], rect: Rect) -> list[Rect]:
        """The Rects of every bucket that may hold one that overlaps ``rect``."""
        near: list[Rect] = []
        for level, buckets in levels.items():
            ranges = [((lo + 1 >> k) - 1, hi - 1 >> k) for k, lo, hi in zip(level, rect.lo, rect.hi)]
            buckets.collect(ranges, 0, near)
        return near


FEW = 8
"""Up to so many Rects, looking through all of them is faster than an index."""


def _corners(entry: tuple[Rect, object]) -> tuple[_Key, _Key]:
    return entry[0].lo, entry[0].hi


def _place(rect: Rect) -> tuple[_Key, _Key]:
    """Size class and bucket of a Rect: class ``k`` has extents above ``2^(k-1)``, up to ``2^k``."""
    level = tuple([(hi - lo - 1).bit_length() for lo, hi in zip(rect.lo, rect.hi)])
    return level, tuple([lo >> k for lo, k in zip(rect.lo, level)])


class _Buckets:
    """Buckets by their first coordinate: each holds those by the next coordinate, or, after the last one, Rects."""

    __slots__ = ("inner", "keys", "rects")

    def __init__(self) -> None:
        self.keys: list[int] = []  # sorted
        self.inner: dict[int, _Buckets] = {}
        self.rects: dict[int, list[Rect]] = {}

    def add(self, place: _Key, rect: Rect) -> None:
        first = place[0] if place else 0  # a Rect of no dimensions has one bucket
        if len(place) <= 1:
            rects = self.rects.get(first)
            if rects is None:
                rects = self.rects[first] = []
                insort(self.keys, first)
            rects.append(rect)
            return
        inner = self.inner.get(first)
        if inner is None:
            inner = self.inner[first] = _Buckets()
            insort(self.keys, first)
        inner.add(place[1:], rect)

    def remove(self, place: _Key, rect: Rect) -> None:
        first = place[0] if place else 0
        if len(place) <= 1:
            self.rects[first].remove(rect)
            if self.rects[first]:
                return
            del self.rects[first]
        else:
            inner = self.inner[first]
            inner.remove(place[1:], rect)
            if inner.keys:
                return
            del self.inner[first]
        del self.keys[bisect_left(self.keys, first)]

    def collect(self, ranges: Sequence[tuple[int, int]], depth: int, near: list[Rect]) -> None:
        """Append the Rects of the buckets whose coordinates from ``depth`` on are in these ranges, ends included."""
        low, high = ranges[depth] if ranges else (0, 0)
        keys = self.keys
        last = depth + 1 >= len(ranges)
        for i in range(bisect_left(keys, low), bisect_right(keys, high)):
            if last:
                near += self.rects[keys[i]]
            else:
                self.inner[keys[i]].collect(ranges, depth + 1, near)


class DisjointMap(Generic[V]):
    """Map from points to values, kept as disjoint Rects ("segments"); points that were never set have no value.

    Reading or replacing exactly one segment costs one dict look-up; for any other Rect the cost grows with the segments that it
    overlaps. Values are shared between the parts of a split segment, so they must be immutable.
    """

    __slots__ = ("_segments",)

    def __init__(self) -> None:
        self._segments: RectIndex[V] = RectIndex()

    def within(self, rect: Rect) -> list[tuple[Rect, V]]:
        """Return the points of ``rect`` that have a value: disjoint Rects, clipped to ``rect``, in the order of their segments."""
        exact = self._segments.get(rect)
        if exact is not None:
            return [(rect, exact)]
        return [(segment.intersect(rect), value) for segment, value in self._segments.overlapping(rect)]

    def gaps(self, rect: Rect) -> list[Rect]:
        """Return the points of ``rect`` that have no value, as disjoint Rects."""
        if rect in self._segments:
            return []
        return _minus_all(rect, [segment for segment, _ in self._segments.overlapping(rect)])

    def carve(self, rect: Rect) -> bool:
        """Remove the values of ``rect``; the rest of each segment stays. Returns True if there were any."""
        if rect in self._segments:
            del self._segments[rect]
            return True
        found = self._segments.overlapping(rect)
        for segment, value in found:
            del self._segments[segment]
            for rest in segment.minus(rect):
                self._segments[rest] = value
        return bool(found)

    def assign(self, rect: Rect, value: V) -> None:
        """Give every point of ``rect`` this value, as one segment. An empty Rect changes nothing."""
        if rect not in self._segments:
            if rect.empty:
                return
            self.carve(rect)
        self._segments[rect] = value

    def update(self, rect: Rect, change: Callable[[Rect, V | None], V]) -> None:
        """Replace the value of every part of ``rect`` by ``change(part, old value)``; None means no value. Segments are split
        at the border of ``rect``."""
        parts: list[tuple[Rect, V | None]] = [*self.within(rect)]
        if rect not in self._segments:
            if sum(part.volume for part, _ in parts) < rect.volume:
                parts += [(gap, None) for gap in _minus_all(rect, [part for part, _ in parts])]
            self.carve(rect)
        for part, value in parts:
            self._segments[part] = change(part, value)

    def items(self) -> Iterable[tuple[Rect, V]]:
        """Yield every segment and its value."""
        return self._segments.items()

    def replace(self, change: Callable[[V], V]) -> None:
        """Replace every segment's value by ``change(value)``."""
        for rect, value in list(self._segments.items()):
            self._segments[rect] = change(value)

    def __len__(self) -> int:
        return len(self._segments)


def _minus_all(whole: Rect, rects: Iterable[Rect]) -> list[Rect]:
    """The points of ``whole`` that no Rect holds."""
    left = [] if whole.empty else [whole]
    for rect in rects:
        left = [part for piece in left for part in (piece.minus(rect) if piece.overlaps(rect) else (piece,))]
    return left


def canonical(rects: Iterable[Rect]) -> tuple[Rect, ...]:
    """Return the same points as these disjoint Rects, in a form that depends only on the set of points: maximal slabs along
    dimension 0, each cut likewise along the next dimension, in order. Points that form one Rect come back as that Rect."""
    given = [rect for rect in rects if not rect.empty]
    if len(given) <= 1:
        return tuple(given)
    whole = given[0]
    for rect in given[1:]:
        whole = whole.bound(rect)
    if whole.volume == sum(rect.volume for rect in given):
        return (whole,)
    return tuple(Rect(tuple(lo), tuple(hi)) for lo, hi in _slabs([(r.lo, r.hi) for r in given]))


def _slabs(boxes: list[tuple[_Key, _Key]]) -> list[tuple[_Key, _Key]]:
    """`canonical` of boxes of at least one dimension, given and returned as (lo, hi)."""
    if not boxes[0][0]:
        return [((), ())]
    cuts = sorted({lo[0] for lo, _ in boxes} | {hi[0] for _, hi in boxes})
    slabs: list[tuple[int, int, list[tuple[_Key, _Key]]]] = []
    for start, end in zip(cuts, cuts[1:]):
        inner = [(lo[1:], hi[1:]) for lo, hi in boxes if lo[0] <= start and end <= hi[0]]
        cross = _slabs(inner) if inner else []
        if slabs and slabs[-1][1] == start and slabs[-1][2] == cross:
            slabs[-1] = (slabs[-1][0], end, cross)
        elif cross:
            slabs.append((start, end, cross))
    return [((start, *lo), (end, *hi)) for start, end, cross in slabs for lo, hi in cross]
