"""Partition: a map from colors (points of a small n-d grid) to Rects of a region."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

from taskflow.drawing import Drawing
from taskflow.regions import Rect

Color = tuple[int, ...]


class Partition(ABC):
    """Division of ``space`` into pieces: each color of the color space ``Rect.of(colors)`` names one Rect of it.

    Pieces may overlap (halos, replicas) and need not cover every point; see ``disjoint`` and ``complete``.
    """

    __slots__ = ()

    space: Rect
    colors: tuple[int, ...]

    @abstractmethod
    def rect(self, color: Color) -> Rect:
        """Return the piece of this color."""

    @abstractmethod
    def overlapping(self, rect: Rect) -> Iterator[Color]:
        """Return the colors whose pieces share a point with ``rect``, in color order. The cost grows with their number, not
        with the number of pieces."""

    @property
    @abstractmethod
    def disjoint(self) -> bool:
        """True if no point is in two pieces."""

    @property
    @abstractmethod
    def complete(self) -> bool:
        """True if every point of ``space`` is in some piece."""

    def __iter__(self) -> Iterator[Color]:
        return Rect.of(self.colors).points()

    def __len__(self) -> int:
        return Rect.of(self.colors).volume

    def rects(self) -> list[Rect]:
        """Return every piece, in color order."""
        return [self.rect(color) for color in self]

    def draw(self, processors: Sequence[int] | None = None) -> Drawing:
        """Draw the pieces for a notebook, coloured by the processor that has each (see `picture.picture`)."""
        from taskflow.partition.picture import picture

        return Drawing(picture(self, processors))

    def __repr__(self) -> str:
        kind, words = type(self).__name__, str(self)
        return words if words.lower().startswith(kind.lower()) else f"{kind} {words}"

    def _repr_html_(self) -> str:
        return self.draw().html


def overlaps(left: Partition, right: Partition) -> Iterator[tuple[Color, Color, Rect]]:
    """Yield every pair of pieces that share points, with these points, in color order of ``left``."""
    for a in left:
        piece = left.rect(a)
        if not piece.empty:
            for b in right.overlapping(piece):
                yield a, b, piece.intersect(right.rect(b))
