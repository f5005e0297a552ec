"""Rect: an n-dimensional half-open box of integer points, the only shape that regions and their pieces have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from taskflow.collector import quick


@quick
@dataclass(frozen=True, slots=True, order=True)
class Rect:
    """Box of the points ``p`` with ``lo[i] <= p[i] < hi[i]`` for every dimension ``i``. All Rects in taskflow are half-open.

    A Rect without dimensions holds exactly one point (a scalar's index space). One with ``hi[i] <= lo[i]`` in any dimension is
    empty.
    """

    lo: tuple[int, ...]
    hi: tuple[int, ...]

    @staticmethod
    def of(shape: Sequence[int]) -> Rect:
        """Return the Rect of all indices of an array of this shape."""
        return Rect((0,) * len(shape), tuple(shape))

    @property
    def ndim(self) -> int:
        return len(self.lo)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple([hi - lo if hi > lo else 0 for lo, hi in zip(self.lo, self.hi)])

    @property
    def volume(self) -> int:
        """Number of points."""
        points = 1
        for lo, hi in zip(self.lo, self.hi):
            if hi <= lo:
                return 0
            points *= hi - lo
        return points

    @property
    def empty(self) -> bool:
        """True if it holds no point."""
        for lo, hi in zip(self.lo, self.hi):  # noqa: SIM110 (a generator costs three times as much)
            if hi <= lo:
                return True
        return False

    def contains(self, other: Rect) -> bool:
        """True if every point of ``other`` is in this Rect (an empty Rect is in every Rect)."""
        inside = True
        for a, b, c, d in zip(self.lo, self.hi, other.lo, other.hi):
            if d <= c:
                return True
            if c < a or d > b:
                inside = False
        return inside

    def intersect(self, other: Rect) -> Rect:
        """Return the points in both; check ``.empty``."""
        return Rect(
            tuple([a if a > b else b for a, b in zip(self.lo, other.lo)]),
            tuple([a if a < b else b for a, b in zip(self.hi, other.hi)]),
        )

    def overlaps(self, other: Rect) -> bool:
        """True if some point is in both."""
        # A loop and no generator: this is asked far more often than anything else.
        for a, b, c, d in zip(self.lo, self.hi, other.lo, other.hi):  # noqa: SIM110
            if a >= d or c >= b or a >= b or c >= d:
                return False
        return True

    def bound(self, other: Rect) -> Rect:
        """Return the smallest Rect that holds both."""
        if self.empty:
            return other
        if other.empty:
            return self
        return Rect(
            tuple(min(a, b) for a, b in zip(self.lo, other.lo)), tuple(max(a, b) for a, b in zip(self.hi, other.hi))
        )

    def shift(self, offset: Sequence[int]) -> Rect:
        """Return the Rect moved by ``offset``."""
        return Rect(tuple([a + o for a, o in zip(self.lo, offset)]), tuple([a + o for a, o in zip(self.hi, offset)]))

    def relative_to(self, base: Rect) -> Rect:
        """Return the same points, counted from ``base.lo``."""
        lo = base.lo
        if not any(lo):
            return self
        return Rect(tuple([a - o for a, o in zip(self.lo, lo)]), tuple([a - o for a, o in zip(self.hi, lo)]))

    def slices(self, base: Rect) -> tuple[slice, ...]:
        """Return the slices that index this Rect in an array that holds ``base``."""
        return tuple(slice(lo - b, hi - b) for lo, hi, b in zip(self.lo, self.hi, base.lo))

    def minus(self, other: Rect) -> list[Rect]:
        """Return the points of this Rect that are not in ``other``, as disjoint Rects (at most two a dimension)."""
        middle = self.intersect(other)
        if middle.empty:
            return [] if self.empty else [self]
        pieces: list[Rect] = []
        lo, hi = list(self.lo), list(self.hi)
        for i in range(self.ndim):
            if lo[i] < middle.lo[i]:
                pieces.append(Rect(tuple(lo), (*hi[:i], middle.lo[i], *hi[i + 1 :])))
            if middle.hi[i] < hi[i]:
                pieces.append(Rect((*lo[:i], middle.hi[i], *lo[i + 1 :]), tuple(hi)))
            lo[i], hi[i] = middle.lo[i], middle.hi[i]
        return pieces

    def points(self) -> Iterator[tuple[int, ...]]:
        """Yield every point, last dimension fastest."""
        return product(*(range(lo, hi) for lo, hi in zip(self.lo, self.hi)))

    def __str__(self) -> str:
        return "[" + ", ".join(f"{lo}:{hi}" for lo, hi in zip(self.lo, self.hi)) + "]"


def covers(rects: Iterable[Rect], whole: Rect) -> bool:
    """True if the union of ``rects`` holds every point of ``whole``."""
    left = [] if whole.empty else [whole]
    for rect in rects:
        left = [part for piece in left for part in piece.minus(rect)]
        if not left:
            return True
    return not left


def tilings(rects: Sequence[Rect], whole: Rect) -> list[list[int]]:
    """Return numbers of ``rects`` that together are ``whole`` and do not overlap: those that come for the first time, for the
    second time, and so on. One that is all of it is not together with others, and is there only if it comes alone."""
    times: dict[Rect, int] = {}
    layers: list[list[int]] = []
    for number, rect in enumerate(rects):
        times[rect] = time = times.get(rect, -1) + 1
        if time == len(layers):
            layers.append([])
        layers[time].append(number)

    def tiles(layer: list[int]) -> bool:
        of = [rects[number] for number in layer]
        return (len(of) > 1 or len(layers) == 1) and sum(rect.volume for rect in of) == whole.volume and covers(of, whole)

    return [layer for layer in layers if tiles(layer)]
