"""Replicate gives every color the whole region; Image sees another partition through an access function (halos)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from taskflow.partition.partition import Color, Partition
from taskflow.regions import Rect, RectIndex, covers


class Replicate(Partition):
    """Partition of ``copies`` pieces, each of which is the whole of an array of ``shape``."""

    __slots__ = ("colors", "space")

    def __init__(self, shape: Sequence[int], copies: int) -> None:
        if copies < 1:
            raise ValueError(f"Replicate: copies must be at least 1, got {copies}")
        self.space = Rect.of(shape)
        self.colors = (copies,)

    def rect(self, color: Color) -> Rect:
        return self.space

    def overlapping(self, rect: Rect) -> Iterator[Color]:
        return iter(self) if self.space.overlaps(rect) else iter(())

    @property
    def disjoint(self) -> bool:
        return self.colors[0] == 1 or self.space.empty

    @property
    def complete(self) -> bool:
        return True

    def __str__(self) -> str:
        return f"{self.space} x {self.colors[0]} copies"


class Image(Partition):
    """Image of the partition ``source`` under ``access``: color -> ``access(source.rect(color))``, clipped to ``space``.

    ``access`` maps the Rect that a task writes to the Rect that it reads: a halo widens it, a broadcast drops a dimension.
    Example: ``Image(Tile((10,), (2,)), lambda r: Rect((r.lo[0] - 1,), (r.hi[0] + 1,)), Rect.of((10,)))``.
    """

    __slots__ = ("_index", "_rects", "colors", "space")

    def __init__(self, source: Partition, access: Callable[[Rect], Rect], space: Rect) -> None:
        self.space = space
        self.colors = source.colors
        self._rects = {color: access(source.rect(color)).intersect(space) for color in source}
        self._index: RectIndex[list[Color]] | None = None

    def rect(self, color: Color) -> Rect:
        return self._rects[color]

    def overlapping(self, rect: Rect) -> Iterator[Color]:
        # An access function may map pieces anywhere, so there is no arithmetic to invert: they are looked up in an
        # index.
        if self._index is None:
            self._index = RectIndex()
            for color, piece in self._rects.items():
                if not piece.empty:
                    self._index.setdefault(piece, list).append(color)
        return iter(sorted(color for _, colors in self._index.overlapping(rect) for color in colors))

    @property
    def disjoint(self) -> bool:
        pieces = [r for r in self._rects.values() if not r.empty]
        return sum(r.volume for r in pieces) == self.space.volume - _uncovered(pieces, self.space)

    @property
    def complete(self) -> bool:
        return covers(self._rects.values(), self.space)

    def __str__(self) -> str:
        return f"image over {self.space}, {len(self)} pieces"


def _uncovered(rects: Sequence[Rect], whole: Rect) -> int:
    """Number of points of ``whole`` that no Rect holds."""
    left = [whole]
    for rect in rects:
        left = [part for piece in left for part in piece.minus(rect)]
    return sum(piece.volume for piece in left)
