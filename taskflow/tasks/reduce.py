"""Sums and broadcasts between processors as explicit messages: straight to the owner, along a binomial tree, or a ring."""

from __future__ import annotations

from collections.abc import Sequence

from taskflow.mapper.config import Travel
from taskflow.regions import Rect
from taskflow.tasks.emit import Emitter
from taskflow.tasks.task import Part

Held = tuple[int, Part]  # (processor, its part)


def reduce_to(emit: Emitter, name: str, parts: Sequence[Held], travel: Travel) -> None:
    """Add all parts (equal shapes) into the first one's, in a fixed order.

    OWNER: everybody sends to the first, which adds in the order given. TREE: binomial, log2 rounds. RING: the last sends to
    the one before it, and so on down to the first. Parts of one processor are added there before anything is sent, and
    the parts of the others are overwritten by TREE and RING.
    """
    parts = _local_first(emit, name, parts)
    if travel is Travel.OWNER:
        owner, target = parts[0]
        arrived = [_send(emit, f"{name}", part, owner, target) for _, part in parts[1:]]
        if arrived:
            emit.sum(name, arrived, target)
    elif travel is Travel.TREE:
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


def broadcast_from(emit: Emitter, name: str, parts: Sequence[Held], travel: Travel) -> None:
    """Copy the first part into all others; the routes are those of `reduce_to`, the other way round."""
    if travel is Travel.OWNER:
        for _, part in parts[1:]:
            emit.transfer(name, parts[0][1], part)
    elif travel is Travel.TREE:
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
    dtype = emit.graph.buffers[like.buffer].dtype
    staging = emit.buffer(f"{name} arriving", Rect.of(like.rect.shape), owner, dtype)
    emit.transfer(name, source, emit.whole(staging))
    return emit.whole(staging)


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
