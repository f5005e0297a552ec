"""Collectives: performance of a collective library such as NCCL, as its own measurements tell it."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, sqrt
from typing import Annotated

from msgspec import Meta

from taskflow.reading import LEAST, Count, NotNegative, Positive

TREE = 0.9
"""Of the rate of rings that trees reach between nodes (NCCL's own estimate: src/graph/tuning.cc)."""

Reached = Annotated[float, Meta(ge=LEAST, le=1)]
Source = Annotated[str, Meta(description="Where the figures are from.")]


@dataclass(frozen=True, slots=True)
class Curve:
    """Performance of one operation of the collective library within a node. A protocol for short arrays has no ramp; the faster one
    is used (NCCL has three: LL, LL128, Simple). ``copy_bytes_per_second`` counts bytes of the array of an all-reduce.

    The square root is that of a pipeline. An array goes through it in chunks, and each costs a fixed time more. It is late by
    the least if their number grows as the square root of its length.
    """

    start_seconds: Annotated[NotNegative, Meta(description="Of the shortest message.")]
    link_share: Annotated[Reached, Meta(description="Part of a link's rate that the payload gets.")]
    step_seconds: Annotated[NotNegative, Meta(description="Of a message that waits for the one before.")] = 0.0
    ramp_seconds: Annotated[NotNegative, Meta(description="What takes x at the full rate takes sqrt(ramp x) longer.")] = 0.0
    copy_bytes_per_second: Annotated[
        Positive, Meta(description="How fast a processor adds what arrives to what it has. Without it: at once.")
    ] = inf
    long_seconds: Annotated[NotNegative, Meta(description="What the other protocol takes more to start.")] = 0.0
    short_share: Annotated[
        float, Meta(ge=0, le=1, description="Part of a link's rate that a protocol for short arrays gets; 0: there is none.")
    ] = 0.0

    def quickest(self, short: float, long: float) -> float:
        """Return what an array takes beyond starts and steps: the lesser of the seconds at ``short_share`` and at the full rate,
        with the ramp."""
        return min(short, self.long_seconds + long) if self.short_share else long


@dataclass(frozen=True, slots=True)
class SwitchSums:
    """All-reduces that the switch within a node adds up (NVLink SHARP). Each processor sends its array once, however many there
    are. ``link_share`` of the link's rate goes to the array, since sums come back over the same link."""

    members: Annotated[Count, Meta(description="The least number of processors for which the library uses it.")]
    start_seconds: Annotated[NotNegative, Meta(description="Of the shortest message.")]
    link_share: Annotated[Reached, Meta(description="Part of a link's rate at which each processor's array is summed.")]
    ramp_seconds: Annotated[NotNegative, Meta(description="As of a curve.")] = 0.0


@dataclass(frozen=True, slots=True)
class LargeGroups:
    """Rate that large groups within a node reach, where links do not tell it (PCIe)."""

    members: Annotated[Count, Meta(description="Groups of so many or more.")]
    bytes_per_second: Annotated[Positive, Meta(description="What each member sends at most.")]


@dataclass(frozen=True, slots=True)
class Collectives:
    """Performance of the collective library. ``start_seconds``: what a training program's call adds to that of a curve, or without
    curves from the call until the first byte moves. Operations without a curve have the figures that are given here."""

    start_seconds: Annotated[NotNegative, Meta(description="From the call until the first byte moves; added to that of a curve.")]
    step_seconds: Annotated[NotNegative, Meta(description="Of a message within a node that waits for the one before.")]
    network_step_seconds: Annotated[NotNegative, Meta(description="Of a message between nodes that waits for the one before.")]
    link_share: Annotated[Reached, Meta(description="Part of a link's rate within a node that the payload gets.")]
    network_share: Annotated[Reached, Meta(description="Part of a link's rate between nodes that the payload gets.")]
    copy_bytes_per_second: Annotated[Positive, Meta(description="How fast a processor adds what arrives to what it has.")]
    source: Source = ""
    network_ramp_seconds: Annotated[NotNegative, Meta(description="The ramp of a curve, between nodes.")] = 0.0
    all_reduce: Annotated[Curve | None, Meta(description="Of an all-reduce. Without it: from the figures above.")] = None
    halves: Annotated[Curve | None, Meta(description="Of a reduce-scatter or an all-gather.")] = None
    all_to_all: Annotated[Curve | None, Meta(description="Of an all-to-all.")] = None
    switch: Annotated[SwitchSums | None, Meta(description="Of all-reduces that the switch sums.")] = None
    at_most: Annotated[tuple[LargeGroups, ...], Meta(description="Rates that links do not tell.")] = ()
    blocks: Annotated[bool, Meta(description="Whether processors compute nothing until a call is done (gloo).")] = False

    def curve(self, halves: int) -> Curve:
        """Return the curve of an all-reduce (2), of one of its halves (1) or of an all-to-all (0)."""
        own = (self.all_to_all, self.halves, self.all_reduce)[halves]
        if own is not None:
            return own
        copies = self.copy_bytes_per_second if halves else inf
        return Curve(0.0, self.link_share, self.step_seconds * (halves > 0), copy_bytes_per_second=copies)

    def limited(self, bytes_per_second: float, members: int) -> float:
        """Return the payload rate of each member of a group within a node, given that of its links alone."""
        return min([bytes_per_second, *(one.bytes_per_second for one in self.at_most if members >= one.members)])


def ramped(seconds: float, ramp: float) -> float:
    """Return the duration of what takes so long at the full rate, as a `Curve` has it."""
    return seconds + sqrt(ramp * seconds)
