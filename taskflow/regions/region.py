"""LogicalRegion: an index space with a type, without memory. Instance: memory on one processor for a Rect of a region."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from taskflow.regions.rect import Rect


@dataclass(frozen=True, slots=True, eq=False)
class LogicalRegion:
    """Named n-dimensional collection of values. Two regions are the same only if they are the same object."""

    name: str
    rect: Rect
    dtype: np.dtype[np.generic]

    @property
    def nbytes(self) -> int:
        return self.rect.volume * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.name}{self.rect} {self.dtype}"


@dataclass(frozen=True, slots=True)
class Instance:
    """Memory on ``processor`` that holds ``rect`` of ``region``: values, or (if ``partial``) sums that are still to be added to
    values."""

    region: LogicalRegion
    rect: Rect
    processor: int
    partial: bool = False

    @property
    def nbytes(self) -> int:
        return self.rect.volume * self.region.dtype.itemsize

    def __str__(self) -> str:
        return f"{'+' if self.partial else ''}{self.region.name}{self.rect} @ {self.processor}"
