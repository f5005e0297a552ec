"""Grid partitions: one list of cut positions per dimension. Tile cuts evenly, Weighted in given proportions."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import product
from math import isfinite

from taskflow.partition.partition import Color, Partition
from taskflow.regions import Rect


def even_cuts(size: int, degree: int) -> tuple[int, ...]:
    """Return the ``degree + 1`` positions that cut ``size`` points into pieces whose sizes differ by at most one, larger ones
    first."""
    whole, extra = divmod(size, degree)
    at = extra * (whole + 1)
    rest = range(at, size + 1, whole) if whole else (at,) * (degree - extra + 1)
    return (*range(0, at, whole + 1), *rest)


def weighted_cuts(size: int, weights: Sequence[float]) -> tuple[int, ...]:
    """Return the positions that cut ``size`` points in proportion to ``weights``, each rounded to the nearest point."""
    total = float(sum(weights))
    cuts, running = [0], 0.0
    for weight in weights:
        running += weight
        cuts.append(round(size * running / total))
    cuts[-1] = size
    return tuple(cuts)


class Grid(Partition):
    """Partition that cuts every dimension at given positions. The pieces are the cells of the grid, so they are disjoint and
    complete.

    ``cuts[i]`` are the positions along dimension ``i``, from ``space.lo[i]`` to ``space.hi[i]``, not decreasing.
    """

    __slots__ = ("colors", "cuts", "space")

    def __init__(self, cuts: Sequence[Sequence[int]]) -> None:
        self.cuts: tuple[tuple[int, ...], ...] = tuple(tuple(c) for c in cuts)
        for i, positions in enumerate(self.cuts):
            if len(positions) < 2 or any(b < a for a, b in zip(positions, positions[1:])):
                raise ValueError(
                    f"partition: cuts of dimension {i} must be at least two positions in rising order, got {positions}"
                )
        self.space = Rect(tuple(c[0] for c in self.cuts), tuple(c[-1] for c in self.cuts))
        self.colors = tuple(len(c) - 1 for c in self.cuts)

    def rect(self, color: Color) -> Rect:
        return Rect(tuple(c[i] for c, i in zip(self.cuts, color)), tuple(c[i + 1] for c, i in zip(self.cuts, color)))

    def overlapping(self, rect: Rect) -> Iterator[Color]:
        inner = rect.intersect(self.space)
        if inner.empty:
            return iter(())
        # Cells of no width (more pieces than points) hold nothing, so they are left out of every range.
        ranges = [
            [i for i in range(bisect_right(c, lo) - 1, bisect_left(c, hi)) if c[i] < c[i + 1]]
            for c, lo, hi in zip(self.cuts, inner.lo, inner.hi)
        ]
        return product(*ranges)

    @property
    def disjoint(self) -> bool:
        return True

    @property
    def complete(self) -> bool:
        return True

    def __str__(self) -> str:
        return f"{self.space} cut {'x'.join(map(str, self.colors)) or '1'}"


def _degrees_or_fail(shape: Sequence[int], degrees: Sequence[int], who: str) -> None:
    if len(shape) != len(degrees):
        raise ValueError(f"{who}: {len(shape)} dimensions need {len(shape)} entries, got {len(degrees)}")
    if any(d < 1 for d in degrees):
        raise ValueError(f"{who}: every degree must be at least 1, got {tuple(degrees)}")
    if any(size < 0 for size in shape):
        raise ValueError(f"{who}: no size may be negative, got {tuple(shape)}")


class Tile(Grid):
    """Partition of an array of ``shape`` into ``degrees[i]`` pieces along dimension ``i``, whose sizes differ by at most one."""

    __slots__ = ()

    def __init__(self, shape: Sequence[int], degrees: Sequence[int]) -> None:
        _degrees_or_fail(shape, degrees, "Tile")
        super().__init__([even_cuts(s, d) for s, d in zip(shape, degrees)])


class Weighted(Grid):
    """Partition that cuts dimension ``i`` of ``shape`` in proportion to ``weights[i]``, for processors of unequal speed.

    A dimension that is not cut has one weight, for instance ``(1,)``.
    """

    __slots__ = ()

    def __init__(self, shape: Sequence[int], weights: Sequence[Sequence[float]]) -> None:
        _degrees_or_fail(shape, [len(w) for w in weights], "Weighted")
        if any(x < 0 or not isfinite(x) for w in weights for x in w) or any(sum(w) <= 0 for w in weights):
            raise ValueError(
                f"Weighted: weights must be finite, must not be negative and must not all be 0, got {tuple(weights)}"
            )
        super().__init__([weighted_cuts(s, w) for s, w in zip(shape, weights)])
