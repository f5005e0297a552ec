"""Actions of a rank before and after a collective that reshards a tensor. Shares are Rects of arrays of any shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from taskflow.floats import is_narrow
from taskflow.operators.sixteen_bit import add_up
from taskflow.regions import Rect
from taskflow.runtime.program.storage import Storage
from taskflow.tasks import AllGather, AllToAll, Block, ReduceScatter, StartCollective

Action = Callable[[], object]
Copies = list[tuple[Any, Any]]  # (source, target)


def shares_gathered(storage: Storage, item: StartCollective, work: AllGather, rank: int) -> tuple[Any, Action, Action]:
    """Return the array with which a rank joins an all-gather with others, and the actions before and after it."""
    own = [n for n, owner in enumerate(item.owners) if owner == rank]
    wholes = [storage.part(work.parts[n]) for n in own]
    flat, spans = _travelling(storage, item, wholes[0], work.places)
    before = [(storage.part(work.shares[n]), spans[n]) for n in own if not work.shares[n].rect.empty]
    if not work.packed:  # the first of the parts here is what travels
        rest = [whole for n, whole in zip(own, wholes) if work.parts[n] != work.shares[n]]
        after = [(wholes[0], whole) for whole in rest if whole is not wholes[0]]
        return flat, partial(_copy, [(a, b) for a, b in before if not _same(a, b)]), partial(_copy, after)
    after = [
        (span, whole[_slices(place)]) for n, whole in zip(own, wholes) if work.parts[n] != work.shares[n]
        for span, place in zip(spans, work.places) if not place.empty
    ]
    return flat, partial(_copy, before), partial(_copy, after)


def shares_reduced(storage: Storage, item: StartCollective, work: ReduceScatter, rank: int) -> tuple[Any, Action, Action]:
    """Return the same for a reduce-scatter: this rank's parts are added before it."""
    own = [n for n, owner in enumerate(item.owners) if owner == rank]
    first, *others = (storage.part(work.parts[n]) for n in own)
    flat, spans = _travelling(storage, item, first, work.places)
    pack = [(first[_slices(place)], span) for span, place in zip(spans, work.places) if not place.empty] if work.packed else []
    after = [(spans[n], storage.part(work.shares[n])) for n in own if not work.shares[n].rect.empty]

    def before() -> None:
        add(storage, first, others)
        _copy(pack)

    return flat, before, partial(_copy, after)


def exchanged(storage: Storage, item: StartCollective, work: AllToAll, rank: int) -> tuple[Any, list[list[int]], Action, Action]:
    """Return the same for an all-to-all, and how many elements each of its ranks gives to each other one. The array has what
    this rank gives, by rank, and then what it gets, by rank. Elements that stay on this rank are copied beforehand."""
    count, ranks = len(item.ranks), {r: place for place, r in enumerate(item.ranks)}
    counts = [[0] * count for _ in range(count)]
    given: list[list[Block]] = [[] for _ in range(count)]
    got: list[list[Block]] = [[] for _ in range(count)]
    stays: Copies = []
    for block in work.blocks:
        giver, taker = item.owners[block.giver], item.owners[block.taker]
        if giver != taker:
            counts[ranks[giver]][ranks[taker]] += block.source.rect.volume
        if giver == taker == rank:
            stays.append((storage.part(block.source), storage.part(block.target)))
        elif giver == rank:
            given[ranks[taker]].append(block)
        elif taker == rank:
            got[ranks[giver]].append(block)
    ends = [(storage.part(block.source), True) for blocks in given for block in blocks]
    ends += [(storage.part(block.target), False) for blocks in got for block in blocks]
    size = sum(array.size for array, _ in ends)
    if len(item.packed) == 1:
        flat = storage.part(item.packed[0])
    else:
        flat = storage.device.xp.empty(size, storage.part(work.blocks[0].source).dtype if not ends else ends[0][0].dtype)
    cuts = pairwise(accumulate((array.size for array, _ in ends), initial=0))
    laid = [(array, flat[low:high].reshape(array.shape), goes) for (array, goes), (low, high) in zip(ends, cuts)]
    before = [(array, there) for array, there, goes in laid if goes]
    return flat, counts, partial(_copy, stays + before), partial(_copy, [(there, array) for array, there, goes in laid if not goes])


def gather_shares(storage: Storage, work: AllGather) -> Action:
    """Run an all-gather whose processors are all on this rank."""
    return partial(_copy, [
        (storage.part(share), storage.part(part)[_slices(place)])
        for part, own in zip(work.parts, work.shares) if part != own
        for share, place in zip(work.shares, work.places) if not place.empty
    ])


def reduce_shares(storage: Storage, work: ReduceScatter) -> Action:
    """Run a reduce-scatter whose processors are all on this rank."""
    parts = [storage.part(part) for part in work.parts]
    sums = [
        (storage.part(share), [part[_slices(place)] for part in parts])
        for share, place in zip(work.shares, work.places) if not place.empty
    ]
    return partial(_add_up, storage, sums)


def exchange(storage: Storage, work: AllToAll) -> Action:
    """Run an all-to-all whose processors are all on this rank."""
    return partial(_copy, [(storage.part(block.source), storage.part(block.target)) for block in work.blocks])


def _travelling(storage: Storage, item: StartCollective, whole: Any, places: Sequence[Rect]) -> tuple[Any, list[Any]]:
    """The one-dimensional array that travels, and in it what is each processor's share, in the share's shape."""
    flat = storage.part(item.packed[0]) if item.packed else whole.reshape(-1)
    cuts = pairwise(accumulate((place.volume for place in places), initial=0))
    return flat, [flat[low:high].reshape(place.shape) for place, (low, high) in zip(places, cuts)]


def _slices(place: Rect) -> tuple[slice, ...]:
    return tuple(map(slice, place.lo, place.hi))


def _same(one: Any, other: Any) -> bool:
    """True if two arrays of one shape are the same memory."""
    return bool(np.shares_memory(one, other)) if isinstance(one, np.ndarray) else one.data.ptr == other.data.ptr


def _copy(copies: Copies) -> None:
    for source, target in copies:
        np.copyto(target, source)


def _add_up(storage: Storage, sums: list[tuple[Any, list[Any]]]) -> None:
    for total, (first, second, *others) in sums:
        if is_narrow(total.dtype):
            add_up(storage.device, total, [first, second, *others], fresh=True)
            continue
        np.add(first, second, out=total)
        add(storage, total, others)


def add(storage: Storage, total: Any, others: Sequence[Any]) -> None:
    """Add arrays to the first one; those of 16-bit floats in float32, rounded once."""
    if is_narrow(total.dtype):
        add_up(storage.device, total, others)
        return
    for array in others:
        np.add(total, array, out=total)
