"""Whole arrays on rank 0, from the parts that ranks hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from taskflow.runtime.program import PersistentBuffers
from taskflow.runtime.transport import Transport
from taskflow.runtime.weights.array_layout import ArrayLayout

_TOGETHER = 32_000_000  # bytes of arrays that are sent at once: a message takes as long as a rank that sleeps needs to wake


def gathered(
    holdings: Iterable[ArrayLayout], kept: PersistentBuffers, rank_of: Callable[[int], int], transport: Transport,
    into: Mapping[str, Any] = MappingProxyType({}),
) -> Iterator[tuple[str, Any]]:
    """Yield the name and a copy (None except on rank 0) of one array after the other. Every rank iterates to the end. What rank 0
    has itself is not sent. ``into``: arrays by name whose memory rank 0 may use; new memory takes thirty times as long to fill,
    since the system must give and clear each page."""
    for group in _groups(holdings):
        of_each = [holding.distinct() for holding in group]
        parts = [held for some in of_each for held in some]
        owners = [rank_of(held.memory.processor) for held in parts]
        rooms = [holding.room(into.get(holding.name)) for holding in group]
        outs = [room if holding.is_whole(held) else None for holding, some, room in zip(group, of_each, rooms) for held in some]
        mine = {i: kept.device.to_host(parts[i].view(kept), outs[i]) for i, owner in enumerate(owners) if owner == transport.rank}
        if any(owners):
            tables = transport.gather(mine)
        else:
            tables = [mine] if transport.rank == 0 else None
        values = None if tables is None else {i: value for table in tables for i, value in table.items()}
        numbers = iter(range(len(parts)))
        for holding, some, room in zip(group, of_each, rooms):
            whole = None
            if values is not None:
                whole = holding.assemble(((held, values.pop(i)) for held, i in zip(some, numbers)), room)
            yield holding.name, whole


def _groups(holdings: Iterable[ArrayLayout]) -> Iterator[list[ArrayLayout]]:
    group: list[ArrayLayout] = []
    size = 0
    for holding in holdings:
        group.append(holding)
        size += holding.spec.nbytes
        if size >= _TOGETHER:
            yield group
            group, size = [], 0
    if group:
        yield group
