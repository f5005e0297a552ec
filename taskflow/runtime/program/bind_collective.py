"""Collectives within a rank: complete ones, and what a rank with several processors does before and after one with other ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from taskflow.runtime.program.bind_exchange import add, exchange, gather_shares, reduce_shares
from taskflow.runtime.program.storage import Storage
from taskflow.tasks import AllGather, AllReduce, AllToAll, Collective, Part, ReduceScatter

Action = Callable[[], object]
Around = tuple[Any, Action | None, Action | None]
"""The array of a rank that joins a collective with others, and what is done before and after it."""


def bind_collective(work: Collective, storage: Storage) -> Action:
    """Return the action of a collective whose processors all belong to this rank."""
    match work:
        case AllReduce(_, parts):
            return partial(_all_reduce, storage, [storage.part(part) for part in parts])
        case AllToAll():
            return exchange(storage, work)
        case ReduceScatter() if work.places:
            return reduce_shares(storage, work)
        case AllGather() if work.places:
            return gather_shares(storage, work)
        case ReduceScatter(_, parts, shares):
            return partial(_reduce_scatter, storage, [storage.part(part) for part in parts], _places(parts, shares))
        case AllGather(_, parts, shares):
            return partial(_all_gather, [storage.part(part) for part in parts], _places(parts, shares))


def all_reduced(storage: Storage, parts: Sequence[Part]) -> Around:
    """Reduce within the rank around an all-reduce: the first array gets the sum of this rank's arrays, then of all ranks; the
    others copy it."""
    total, *others = (storage.part(part) for part in parts)
    if not others:
        return total, None, None
    return total, partial(add, storage, total, others), partial(_spread, total, others)


def reduce_scattered(storage: Storage, parts: Sequence[Part], shares: Sequence[Part]) -> Around:
    """Reduce within the rank around a reduce-scatter: the first array gets the sum of this rank's arrays, then, of the total
    over all ranks, the shares of these processors; each copies its own."""
    total, *others = (storage.part(part) for part in parts)
    if not others:
        return total, None, None
    places = _places(parts, shares)[1:]
    return total, partial(add, storage, total, others), partial(_hand_out, total, others, places)


def all_gathered(storage: Storage, parts: Sequence[Part], shares: Sequence[Part]) -> Around:
    """Gather within the rank around an all-gather: the first array gets the shares of this rank, then those of all ranks; the
    others copy it."""
    whole, *others = (storage.part(part) for part in parts)
    if not others:
        return whole, None, None
    places = _places(parts, shares)[1:]
    return whole, partial(_take_in, whole, others, places), partial(_spread, whole, others)


def _places(parts: Sequence[Part], shares: Sequence[Part]) -> list[slice]:
    """Place of each one-dimensional part's share in its array."""
    starts = [part.rect.lo[0] for part in parts]
    return [slice(share.rect.lo[0] - start, share.rect.hi[0] - start) for start, share in zip(starts, shares)]


def _spread(whole: Any, others: list[Any]) -> None:
    for array in others:
        np.copyto(array, whole)


def _hand_out(total: Any, others: list[Any], places: list[slice]) -> None:
    for array, place in zip(others, places):
        np.copyto(array[place], total[place])


def _take_in(whole: Any, others: list[Any], places: list[slice]) -> None:
    for array, place in zip(others, places):
        np.copyto(whole[place], array[place])


def _all_reduce(storage: Storage, parts: list[Any]) -> None:
    total, *others = parts
    add(storage, total, others)
    _spread(total, others)


def _reduce_scatter(storage: Storage, parts: list[Any], places: list[slice]) -> None:
    for own, (total, place) in enumerate(zip(parts, places)):
        add(storage, total[place], [part[place] for number, part in enumerate(parts) if number != own])


def _all_gather(parts: list[Any], places: list[slice]) -> None:
    for own, (whole, place) in enumerate(zip(parts, places)):
        _spread(whole[place], [part[place] for number, part in enumerate(parts) if number != own])
