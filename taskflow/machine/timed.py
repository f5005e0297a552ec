"""Timed: seconds of an operator by its size, as they were measured, and between the measured sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, combinations
from typing import NamedTuple

import numpy as np

NEAR = 5e-3
"""Sizes whose logarithms differ by less are one: a bias more or less."""


class TimedPoint(NamedTuple):
    """A measured size: operations and bytes of forward, seconds of the device, and of the host to start it."""

    flops: float
    nbytes: float
    seconds: float
    host_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Timed:
    """Measured times of an operator by its ``name`` (of a ``group`` of operators that work alike) in one direction and type.

    A measured size takes what it took. Between sizes counts a + b flops + c bytes, fitted to all of them, times by how much the
    measured ones differ from that. The nearer ones count more (Shepard, "A two-dimensional interpolation function for
    irregularly-spaced data", 1968, over the logarithms)."""

    name: str
    group: str
    backward: bool
    dtype: str
    points: tuple[TimedPoint, ...]

    def seconds(self, flops: float, nbytes: float) -> float:
        """Return the seconds of the device for a size."""
        return _between(self.points, 2, flops, nbytes)

    def host_seconds(self, flops: float, nbytes: float) -> float:
        """Return the seconds of the host's thread for it."""
        return _between(self.points, 3, flops, nbytes)


@lru_cache(1 << 16)
def _between(points: tuple[TimedPoint, ...], of: int, flops: float, nbytes: float) -> float:
    line = fitted(points, of)
    if not any(line):
        return 0.0
    base = line[0] + line[1] * flops + line[2] * nbytes
    weights = total = 0.0
    for point in points:
        apart = _apart(point.flops, flops) + _apart(point.nbytes, nbytes)
        if apart < NEAR**2:
            return float(point[of])
        weight = 1 / apart
        weights += weight
        total += weight * float(np.log(max(point[of], 1e-9) / (line[0] + line[1] * point.flops + line[2] * point.nbytes)))
    return base * float(np.exp(total / weights))


def _apart(a: float, b: float) -> float:
    return float(np.log((a + 1) / (b + 1)) ** 2)


@lru_cache(1 << 12)
def fitted(points: tuple[TimedPoint, ...], of: int = 2) -> tuple[float, float, float]:
    """Return a, b and c, none negative, of a + b flops + c bytes: those with the least squares of relative errors."""
    sizes = np.array([(1.0, point.flops, point.nbytes) for point in points])
    took = np.array([max(point[of], 0.0) for point in points])
    if not took.any():
        return (0.0, 0.0, 0.0)
    took = np.maximum(took, 1e-9)
    rows = sizes / took[:, None]
    best, least = np.zeros(3), np.inf
    for used in chain.from_iterable(combinations(range(3), count) for count in (1, 2, 3)):
        found = np.linalg.lstsq(rows[:, used], np.ones(len(rows)), rcond=None)[0]
        error = float(((rows[:, used] @ found - 1) ** 2).sum())
        if (found >= 0).all() and error < least - 1e-12:
            best, least = np.zeros(3), error
            best[list(used)] = found
    return (float(best[0]), float(best[1]), float(best[2]))


def left_out_errors(points: Sequence[TimedPoint]) -> list[float]:
    """Return the relative error of each point as the others tell it."""
    found = []
    for i, point in enumerate(points):
        others = (*points[:i], *points[i + 1 :])
        if others:
            found.append(_between(others, 2, point.flops, point.nbytes) / point.seconds - 1)
    return found
