"""Collectives: performance of a collective library such as NCCL, as its own measurements tell it."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, sqrt

TREE = 0.9
"""Of the rate of rings that trees reach between nodes (NCCL's own estimate: src/graph/tuning.cc)."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Performance of one operation within a node. ``start_seconds``: of the shortest message. ``step_seconds``: added by each
    message that waits for the one before. ``ramp_seconds``: how slowly the full rate is reached: what takes x seconds at the
    full rate takes sqrt(ramp x) longer. ``link_share``: the fraction of a link's rate that the payload gets.
    ``copy_bytes_per_second``: rate at which a processor adds arriving data to its own, or copies it, counted in bytes of the
    array of an all-reduce. ``short_share``: a protocol for short arrays has no ramp and gets this fraction of a link's rate; the
    other one then starts ``long_seconds`` later. The faster one is used. 0: there is one protocol (NCCL has three: LL, LL128,
    Simple).

    The square root is that of a pipeline. An array goes through it in chunks, and each costs a fixed time more. It is late by
    the least if their number grows as the square root of its length.
    """

    start_seconds: float
    step_seconds: float
    ramp_seconds: float
    link_share: float
    copy_bytes_per_second: float = inf
    long_seconds: float = 0.0
    short_share: float = 0.0

    def quickest(self, short: float, long: float) -> float:
        """Return what an array takes beyond starts and steps: the lesser of the seconds at ``short_share`` and at the full rate,
        with the ramp."""
        return min(short, self.long_seconds + long) if self.short_share else long


@dataclass(frozen=True, slots=True)
class SwitchSums:
    """Performance of all-reduces that the switch between a node's processors adds up (NVLink SHARP). Each processor sends its
    array once, however many there are. ``members``: the least number of processors for which the library uses it. Others: as
    of a `Curve`; ``link_share`` of the link's rate goes to the array, since sums come back over the same link."""

    members: int
    start_seconds: float
    ramp_seconds: float
    link_share: float


@dataclass(frozen=True, slots=True)
class Collectives:
    """Performance of a machine's collective library. ``start_seconds``: what a training program's call adds to that of a
    curve, or without curves from the call until the first byte moves. ``step_seconds``: latency of each message within a node
    that waits for the one before; ``network_step_seconds``: of each between nodes. ``link_share`` and ``network_share``: the
    fraction of a link's rate that the payload gets. ``copy_bytes_per_second``, ``ramp_seconds``: as of a `Curve`;
    ``network_ramp_seconds``: the same between nodes.

    ``all_reduce``, ``halves`` (a reduce-scatter or an all-gather, which measure alike) and ``all_to_all``: curves of their
    own within a node; what has none has the figures above. ``switch``: sums within the switch. ``at_most``: pairs of a number of
    members and the payload rate of each in groups of so many or more within a node, where links do not tell it (PCIe).
    ``blocks``: a processor computes nothing until a call is done (gloo).
    """

    start_seconds: float
    step_seconds: float
    network_step_seconds: float
    link_share: float
    network_share: float
    copy_bytes_per_second: float
    source: str = ""
    network_ramp_seconds: float = 0.0
    all_reduce: Curve | None = None
    halves: Curve | None = None
    all_to_all: Curve | None = None
    switch: SwitchSums | None = None
    at_most: tuple[tuple[int, float], ...] = ()
    blocks: bool = False

    def curve(self, halves: int) -> Curve:
        """Return the curve of an all-reduce (2), of one of its halves (1) or of an all-to-all (0)."""
        own = (self.all_to_all, self.halves, self.all_reduce)[halves]
        if own is not None:
            return own
        return Curve(0.0, self.step_seconds * (halves > 0), 0.0, self.link_share, self.copy_bytes_per_second if halves else inf)

    def limited(self, bytes_per_second: float, members: int) -> float:
        """Return the payload rate of each member of a group within a node, given that of its links alone."""
        return min([bytes_per_second, *(rate for least, rate in self.at_most if members >= least)])


def ramped(seconds: float, ramp: float) -> float:
    """Return the duration of what takes so long at the full rate, as a `Curve` has it."""
    return seconds + sqrt(ramp * seconds)
