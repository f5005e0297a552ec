"""JSON form of what a machine file says of its collective library."""

from __future__ import annotations

from math import inf, isinf
from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from taskflow.machine.library import Collectives, Curve, SwitchSums
from taskflow.reading import LEAST, Count, Entry, NotNegative, Positive

Source = Annotated[str, Meta(description="Where the figures are from.")]
Reached = Annotated[float, Meta(ge=LEAST, le=1)]


class CurveEntry(Entry, frozen=True, kw_only=True):
    """Performance of one operation of the collective library within a node."""

    start_seconds: Annotated[NotNegative, Meta(description="Of the shortest message.")]
    step_seconds: Annotated[NotNegative, Meta(description="Of a message that waits for the one before.")] = 0.0
    ramp_seconds: Annotated[NotNegative, Meta(description="What takes x at the full rate takes sqrt(ramp x) longer.")] = 0.0
    link_share: Annotated[Reached, Meta(description="Part of a link's rate that the payload gets.")]
    copy_bytes_per_second: Annotated[
        Positive, Meta(description="How fast a processor adds what arrives to what it has. Without it: at once.")
    ] | UnsetType = UNSET
    short_share: Annotated[
        float, Meta(ge=0, le=1, description="Part of a link's rate that a protocol for short arrays gets; 0: there is none.")
    ] = 0.0
    long_seconds: Annotated[NotNegative, Meta(description="What the other protocol takes more to start.")] = 0.0


class SwitchEntry(Entry, frozen=True, kw_only=True):
    """All-reduces that the switch within a node adds up."""

    members: Annotated[Count, Meta(description="The least number of processors for which the library uses it.")]
    start_seconds: Annotated[NotNegative, Meta(description="Of the shortest message.")]
    ramp_seconds: Annotated[NotNegative, Meta(description="As of a curve.")] = 0.0
    link_share: Annotated[Reached, Meta(description="Part of a link's rate at which each processor's array is summed.")]


class AtMostEntry(Entry, frozen=True, kw_only=True):
    """Rate that large groups within a node reach."""

    members: Annotated[Count, Meta(description="Groups of so many or more.")]
    bytes_per_second: Annotated[Positive, Meta(description="What each member sends at most.")]


class CollectivesEntry(Entry, frozen=True, kw_only=True):
    """Performance of the collective library."""

    start_seconds: Annotated[NotNegative, Meta(description="From the call until the first byte moves; added to that of a curve.")]
    step_seconds: Annotated[NotNegative, Meta(description="Of a message within a node that waits for the one before.")]
    network_step_seconds: Annotated[NotNegative, Meta(description="Of a message between nodes that waits for the one before.")]
    link_share: Annotated[Reached, Meta(description="Part of a link's rate within a node that the payload gets.")]
    network_share: Annotated[Reached, Meta(description="Part of a link's rate between nodes that the payload gets.")]
    copy_bytes_per_second: Annotated[Positive, Meta(description="How fast a processor adds what arrives to what it has.")]
    network_ramp_seconds: Annotated[NotNegative, Meta(description="The ramp of a curve, between nodes.")] = 0.0
    all_reduce: Annotated[CurveEntry, Meta(description="Of an all-reduce. Without it: from the figures above.")] | UnsetType = UNSET
    halves: Annotated[CurveEntry, Meta(description="Of a reduce-scatter or an all-gather.")] | UnsetType = UNSET
    all_to_all: Annotated[CurveEntry, Meta(description="Of an all-to-all.")] | UnsetType = UNSET
    switch: Annotated[SwitchEntry, Meta(description="Of all-reduces that the switch sums.")] | UnsetType = UNSET
    at_most: Annotated[list[AtMostEntry], Meta(description="Rates that links do not tell.")] = []  # noqa: RUF012
    blocks: Annotated[
        bool, Meta(description="Whether processors compute nothing until a call is done. Without it: false.")
    ] | UnsetType = UNSET
    source: Source | UnsetType = UNSET


def collectives_of(entry: CollectivesEntry) -> Collectives:
    """Return what an entry says."""
    switch = entry.switch
    return Collectives(
        entry.start_seconds, entry.step_seconds, entry.network_step_seconds, entry.link_share, entry.network_share,
        entry.copy_bytes_per_second, entry.source or "", entry.network_ramp_seconds,
        _curve(entry.all_reduce), _curve(entry.halves), _curve(entry.all_to_all),
        SwitchSums(switch.members, switch.start_seconds, switch.ramp_seconds, switch.link_share) if switch else None,
        tuple([(limit.members, limit.bytes_per_second) for limit in entry.at_most]), bool(entry.blocks),
    )  # fmt: skip


def _curve(entry: CurveEntry | UnsetType) -> Curve | None:
    if not entry:
        return None
    return Curve(
        entry.start_seconds, entry.step_seconds, entry.ramp_seconds, entry.link_share, entry.copy_bytes_per_second or inf,
        entry.long_seconds, entry.short_share,
    )


def entry_of(library: Collectives) -> CollectivesEntry:
    """Return the entry that says it."""
    switch = library.switch
    return CollectivesEntry(
        start_seconds=library.start_seconds, step_seconds=library.step_seconds, network_step_seconds=library.network_step_seconds,
        link_share=library.link_share, network_share=library.network_share,
        copy_bytes_per_second=library.copy_bytes_per_second, source=library.source or UNSET,
        network_ramp_seconds=library.network_ramp_seconds, all_reduce=_entry(library.all_reduce), halves=_entry(library.halves),
        all_to_all=_entry(library.all_to_all),
        switch=UNSET if switch is None else SwitchEntry(
            members=switch.members, start_seconds=switch.start_seconds, ramp_seconds=switch.ramp_seconds,
            link_share=switch.link_share,
        ),
        at_most=[AtMostEntry(members=members, bytes_per_second=rate) for members, rate in library.at_most],
        blocks=library.blocks or UNSET,
    )  # fmt: skip


def _entry(curve: Curve | None) -> CurveEntry | UnsetType:
    if curve is None:
        return UNSET
    copy = curve.copy_bytes_per_second
    return CurveEntry(
        start_seconds=curve.start_seconds, step_seconds=curve.step_seconds, ramp_seconds=curve.ramp_seconds,
        link_share=curve.link_share, copy_bytes_per_second=UNSET if isinf(copy) else copy,
        short_share=curve.short_share, long_seconds=curve.long_seconds,
    )
