"""Whole arrays on rank 0, from the parts that ranks hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from taskflow.runtime.program import PersistentBuffers
from taskflow.runtime.transport import Transport
from taskflow.runtime.weights.array_layout import ArrayLayout

_TOGETHER = 32_000_000  # bytes of arrays that are sent at once: a message takes as long as a rank that sleeps needs to wake


def gathered(
    holdings: Iterable[ArrayLayout], kept: PersistentBuffers, rank_of: Callable[[int], int], transport: Transport
) -> Iterator[tuple[str, Any]]:
    """Yield the name and a copy (None except on rank 0) of one array after the other. Every rank iterates to the end. What rank 0
    has itself is not sent."""
    for group in _groups(holdings):
        parts = [(k, held) for k, holding in enumerate(group) for held in holding.distinct()]
        owners = [rank_of(held.memory.processor) for _, held in parts]
        mine = {
            i: kept.device.to_host(held.view(kept)) for i, (_, held) in enumerate(parts) if owners[i] == transport.rank
        }
        if any(owners):
            tables = transport.gather(mine)
        else:
            tables = [mine] if transport.rank == 0 else None
        values = None if tables is None else {i: value for table in tables for i, value in table.items()}
        for k, holding in enumerate(group):
            whole = None
            if values is not None:
                whole = holding.assemble((held, values.pop(i)) for i, (of, held) in enumerate(parts) if of == k)
            yield holding.name, whole


def _groups(holdings: Iterable[ArrayLayout]) -> Iterator[list[ArrayLayout]]:
    group: list[ArrayLayout] = []
    for holding in holdings:
        group.append(holding)
        if sum(one.spec.nbytes for one in group) >= _TOGETHER:
            yield group
            group = []
    if group:
        yield group
