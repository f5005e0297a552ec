"""Needs of a launch as the physical analysis finds them: copies, sums and clears, and the Plan that collects them."""

from __future__ import annotations

from dataclasses import dataclass, field

from taskflow.regions.rect import Rect
from taskflow.regions.region import Instance, LogicalRegion

INITIAL = -1
"""Stands for the launch that made a region's initial contents, and for the processor that they are on."""


@dataclass(frozen=True, slots=True)
class CopyNeed:
    """Copy ``rect`` from instance ``origin`` to instance ``target`` before the launch that asks for it runs.

    ``source``: the launch that made the values, by its task or by a sum made for it; or INITIAL for the region's initial
    contents, whose origin is the whole region on processor INITIAL. The copy waits for launch ``source`` if its task made the
    values; if a sum did, the sum is in the movements ``after``, for which the copy waits.
    """

    number: int
    rect: Rect
    source: int
    origin: Instance
    target: Instance
    after: tuple[int, ...] = ()

    @property
    def region(self) -> LogicalRegion:
        return self.target.region

    @property
    def source_processor(self) -> int:
        return self.origin.processor

    @property
    def target_processor(self) -> int:
        return self.target.processor

    @property
    def nbytes(self) -> int:
        return self.rect.volume * self.region.dtype.itemsize

    def __str__(self) -> str:
        return f"copy {self.number}: {self.region.name}{self.rect} of {self.source}, {self.origin} -> {self.target}"


@dataclass(frozen=True, slots=True)
class Contribution:
    """Partial sums in ``rect`` of the partial ``instance``, to which ``launches`` have added, one after the other."""

    rect: Rect
    instance: Instance
    launches: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReduceNeed:
    """Add the contributions, in this order, to the values in ``target``, before the launch that asks for it runs.

    ``rect``: what that launch reads; its points in no contribution stay as they are. The sum waits for the contributions'
    launches and for the movements ``after``, which brought the values to add to. Contributions are in the order of their first
    launch, so the order of every point's sum depends only on program order.
    """

    number: int
    rect: Rect
    target: Instance
    contributions: tuple[Contribution, ...]
    after: tuple[int, ...] = ()

    @property
    def region(self) -> LogicalRegion:
        return self.target.region

    @property
    def target_processor(self) -> int:
        return self.target.processor

    def __str__(self) -> str:
        parts = " + ".join(f"{c.instance.region.name}{c.rect} @ {c.instance.processor}" for c in self.contributions)
        return f"sum {self.number}: {self.target} += {parts}"


@dataclass(frozen=True, slots=True)
class Contents:
    """Values of a region: each Rect of ``owners`` as its instance has it (INITIAL: the initial contents), plus the ``pending``
    contributions, added in this order, as a reader's sum would add them."""

    owners: tuple[tuple[Rect, Instance], ...]
    pending: tuple[Contribution, ...]


@dataclass(frozen=True, slots=True)
class Clear:
    """Zeroing of ``rect`` of the partial ``instance``, before the launch that needs it adds to it."""

    rect: Rect
    instance: Instance


@dataclass(slots=True)
class Plan:
    """Needs of one launch, filled in requirement by requirement. Movements are numbered from ``first``."""

    launch: int
    processor: int
    first: int
    copies: list[CopyNeed] = field(default_factory=list)
    reductions: list[ReduceNeed] = field(default_factory=list)
    clears: list[Clear] = field(default_factory=list)
    shares: set[int] = field(default_factory=set)
    orders: list[tuple[int, LogicalRegion, Rect]] = field(default_factory=list)

    @property
    def next(self) -> int:
        """Number of the next movement."""
        return self.first + len(self.copies) + len(self.reductions)
