"""Torus: chips whose links lead to their neighbours alone, as TPUs' do, and what groups of them reach.

A chip has two links along each axis. A collective goes along all axes that its group spans at once, both ways where an axis is
closed to a ring ("How To Scale Your Model", jax-ml.github.io/scaling-book, parts 2 and 3). Groups that lie between one another's
chips share the links, since all groups of a plan do the same at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, prod
from typing import Annotated

from msgspec import Meta

from taskflow.machine.library import Source
from taskflow.reading import Count, NotNegative, Positive


@dataclass(frozen=True, slots=True)
class Slice:
    """Shape in which a torus is sold. Raises ValueError for axes without chips, or if ``wraps`` does not have one entry for
    each axis."""

    sizes: Annotated[tuple[Count, ...], Meta(min_length=1, description="Chips along each axis.")]
    wraps: Annotated[tuple[bool, ...], Meta(min_length=1, description="Whether each axis is closed to a ring.")]

    def __post_init__(self) -> None:
        if len(self.sizes) != len(self.wraps) or not self.sizes or min(self.sizes) < 1:
            raise ValueError(f"torus: needs one or more chips along each axis and 'wraps' for each, got {self.sizes}, {self.wraps}")

    @property
    def count(self) -> int:
        """Number of chips."""
        return prod(self.sizes)


@dataclass(frozen=True, slots=True)
class Torus(Slice):
    """Torus of a node's chips, which are numbered along the last axis first."""

    bytes_per_second: Annotated[Positive, Meta(description="Of a link between neighbours, each way.")]
    hop_seconds: Annotated[NotNegative, Meta(description="From a chip to its neighbour.")]
    slices: Annotated[tuple[Slice, ...], Meta(description="Other shapes that there are, for other numbers of processors.")] = ()
    source: Source = ""

    def sliced(self, chips: int) -> Torus:
        """Return the torus of the smallest slice of at least so many chips, or else of the largest slice."""
        known = sorted({*self.slices, Slice(self.sizes, self.wraps)}, key=lambda one: (one.count, one.sizes))
        found = next((one for one in known if one.count >= chips), known[-1])
        return replace(self, sizes=found.sizes, wraps=found.wraps)

    def around(self, places: Sequence[int]) -> tuple[float, int]:
        """Return the bytes a second that each chip of a group sends in an all-gather, and how many messages wait for another.
        ``places``: of the chips. A group that is no box goes around one ring over single links."""
        axes = self._axes(places)
        if axes is None:
            return self.bytes_per_second, len(places) - 1
        rate = sum((1 + closed) * self.bytes_per_second / apart for _, apart, closed in axes)
        return rate, sum(count // 2 if closed else count - 1 for count, _, closed in axes)

    def exchanged(self, places: Sequence[int]) -> float:
        """Return the bytes a second of all messages of an all-to-all together. The links in the middle of an axis have the most to
        carry: what goes from each half of the group to the other."""
        axes, all_of = self._axes(places), len(places)
        if axes is None:
            return self.bytes_per_second
        rate = inf
        for count, apart, closed in axes:
            beside = all_of // count
            crossing = count // 2 * (count - count // 2) * beside**2
            width = (1 + closed) * beside * self.bytes_per_second / apart
            rate = min(rate, width * all_of * (all_of - 1) / crossing)
        return rate

    def _axes(self, places: Sequence[int]) -> list[tuple[int, int, bool]] | None:
        """Of each axis that a group spans: how many places it has there, how far these are apart, and whether they are a ring. None
        if the group is no box of evenly spaced places."""
        rest, along = sorted(places), list[set[int]]()
        for size in reversed(self.sizes):
            along.insert(0, {place % size for place in rest})
            rest = [place // size for place in rest]
        if prod(map(len, along)) != len(places):
            return None
        found = []
        for there, size, wraps in zip(along, self.sizes, self.wraps):
            if len(there) > 1:
                apart = (max(there) - min(there)) // (len(there) - 1)
                if there != set(range(min(there), max(there) + 1, apart)):
                    return None
                found.append((len(there), apart, wraps and len(there) * apart == size))
        return found
