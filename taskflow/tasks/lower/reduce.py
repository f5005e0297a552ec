"""Sums and broadcasts between processors as explicit messages: straight to the owner, along a binomial tree, or a ring."""

from __future__ import annotations

from collections.abc import Sequence

from taskflow.mapper import SyncAlgorithm
from taskflow.regions import Rect
from taskflow.tasks.lower.emit import Emitter
from taskflow.tasks.task import Part

Held = tuple[int, Part]  # (processor, its part)


def reduce_all(emit: Emitter, groups: Sequence[tuple[str, Sequence[Held]]], travel: SyncAlgorithm) -> None:
    """In each named group add all parts (equal shapes) into the first one's, in a fixed order.

    OWNER: everybody sends to the first, which adds in the order given. TREE: binomial, log2 rounds. RING: the last sends to
    the one before it, and so on down to the first. Parts of one processor are added there before anything is sent, and
    the parts of the others are overwritten by TREE and RING. Messages of OWNER go together for all groups, so that groups
    with different owners do not stand in each other's way.
    """
    if travel is not SyncAlgorithm.OWNER:
        for name, parts in groups:
            _reduce(emit, name, _local_first(emit, name, parts), travel)
        return
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


def all_reduce_all(emit: Emitter, groups: Sequence[tuple[str, Sequence[Held]]]) -> None:
    """In each named group all parts (equal shapes, on two or more processors) become the sum of all, in the buffer of each
    processor's first part: one collective a group. Parts of one processor are added there first."""
    for name, parts in groups:
        emit.all_reduce(name, [part for _, part in _local_first(emit, name, parts)])


def _reduce(emit: Emitter, name: str, parts: Sequence[Held], travel: SyncAlgorithm) -> None:
    if travel is SyncAlgorithm.TREE:
        step = 1
        while step < len(parts):
            for i in range(0, len(parts) - step, 2 * step):
                owner, target = parts[i]
                emit.sum(name, [_send(emit, name, parts[i + step][1], owner, target)], target)
            step *= 2
    else:
        for i in range(len(parts) - 1, 0, -1):
            owner, target = parts[i - 1]
            emit.sum(name, [_send(emit, name, parts[i][1], owner, target)], target)


def broadcast_all(emit: Emitter, groups: Sequence[tuple[str, Sequence[Held]]], travel: SyncAlgorithm) -> None:
    """In each group copy the first part into all others; the routes are those of `reduce_all`, the other way round."""
    if travel is SyncAlgorithm.OWNER:
        emit.transfers([(name, parts[0][1], part) for name, parts in groups for _, part in parts[1:]])
    else:
        for name, parts in groups:
            _broadcast(emit, name, parts, travel)


def _broadcast(emit: Emitter, name: str, parts: Sequence[Held], travel: SyncAlgorithm) -> None:
    if travel is SyncAlgorithm.TREE:
        step = 1
        while step < len(parts):
            step *= 2
        while step > 1:
            step //= 2
            for i in range(0, len(parts) - step, 2 * step):
                emit.transfer(name, parts[i][1], parts[i + step][1])
    else:
        for (_, source), (_, target) in zip(parts, parts[1:]):
            emit.transfer(name, source, target)


def _send(emit: Emitter, name: str, source: Part, owner: int, like: Part) -> Part:
    """Copy a part to a new buffer on ``owner``."""
    staging = _staging(emit, name, owner, like)
    emit.transfer(name, source, staging)
    return staging


def _staging(emit: Emitter, name: str, owner: int, like: Part) -> Part:
    dtype = emit.graph.buffers[like.buffer].dtype
    return emit.whole(emit.buffer(f"{name} arriving", Rect.of(like.rect.shape), owner, dtype))


def _local_first(emit: Emitter, name: str, parts: Sequence[Held]) -> list[Held]:
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
