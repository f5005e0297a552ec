"""Sums of partial values between processors: at an owner by messages, or everywhere by a collective."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from taskflow.regions import Rect
from taskflow.tasks.lower.emit import Emitter
from taskflow.tasks.lower.exchange import Held, Places, reduce
from taskflow.tasks.task import Part

HeldPart = tuple[int, Part]  # (processor, its part)


def reduce_all(emit: Emitter, groups: Sequence[tuple[str, Sequence[HeldPart]]]) -> None:
    """Sum each named group of parts (equal shapes) into its first part, in a fixed order: everybody sends to that part's
    processor, which adds in the order given. Parts of one processor are added there before anything is sent. Messages of all
    groups are emitted together, so that groups with different owners do not delay each other.
    """
    copies: list[tuple[str, Part, Part]] = []
    sums: list[tuple[str, list[Part], Part]] = []
    for name, parts in groups:
        (owner, target), *others = _local_first(emit, name, parts)
        arrived = [_staging(emit, name, owner, target) for _ in others]
        copies += [(name, part, staging) for (_, part), staging in zip(others, arrived)]
        if arrived:
            sums.append((name, arrived, target))
    emit.transfers(copies)
    for name, arrived, target in sums:
        emit.sum(name, arrived, target)


def all_reduce_all(
    emit: Emitter, groups: Sequence[tuple[str, Sequence[HeldPart]]], among: Sequence[Sequence[int] | None]
) -> None:
    """All-reduce each named group of parts (equal shapes, on two or more processors) by one collective; the sum is in the
    buffer of each processor's first part. Parts of one processor are added there first. ``among``: by group, the participants,
    if not only the parts' processors."""
    for (name, parts), members in zip(groups, among):
        emit.all_reduce(name, [part for _, part in _local_first(emit, name, parts)], members)


def reduce_scatter_all(
    emit: Emitter, groups: Sequence[tuple[Rect, str, Sequence[HeldPart], Mapping[int, Held], Places | None]]
) -> None:
    """Reduce-scatter each group by one collective. A group is the Rect that all parts are of, its name, and its parts, on two
    or more processors. Each processor's share of the sum, if it has one, goes to the given buffer. Parts of one processor are
    added there first. The last: all participants and their places, if some are not lowered."""
    for rect, name, parts, shares, places in groups:
        reduce(emit, name, rect, dict(_local_first(emit, name, parts)), shares, places)


def _staging(emit: Emitter, name: str, owner: int, like: Part) -> Part:
    dtype = emit.graph.buffers[like.buffer].dtype
    return emit.whole(emit.buffer(f"{name} arriving", Rect.of(like.rect.shape), owner, dtype))


def _local_first(emit: Emitter, name: str, parts: Sequence[HeldPart]) -> list[HeldPart]:
    """One part a processor: parts that are on the same one are added there, in order."""
    kept: dict[int, Part] = {}
    more: dict[int, list[Part]] = {}
    for processor, part in parts:
        if processor in kept:
            more.setdefault(processor, []).append(part)
        else:
            kept[processor] = part
    for processor, extra in more.items():
        emit.sum(name, extra, kept[processor])
    return list(kept.items())
