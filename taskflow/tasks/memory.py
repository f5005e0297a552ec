"""Memory plan: the place of each buffer in one arena while it lives, so that memory is reused as soon as it is free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

try:
    from taskflow.tasks._places import places, places_by_time
except ImportError:  # it was not compiled
    from taskflow.tasks.places import places, places_by_time

ALIGNMENT = 64  # bytes: a cache line
NEAR = 1.02  # an arena of so many times what lives at once is good enough
MANY = 3000  # buffers that are placed by size; the time grows with the square


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A buffer of ``nbytes`` that is first written at position ``first`` of a schedule and last used at ``last``."""

    buffer: int
    nbytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Byte offset of each buffer in the arena, and the arena's size. ``peak_bytes``: the most that lives at once; no arena can
    be smaller."""

    offsets: dict[int, int]
    nbytes: int
    peak_bytes: int


def plan_memory(lifetimes: Sequence[Lifetime]) -> MemoryPlan:
    """Plan an arena in which buffers whose lifetimes overlap never share bytes (`plan_places`)."""
    ordered = sorted(lifetimes, key=lambda x: (x.first, x.buffer))
    found, top, most = plan_places([x.nbytes for x in ordered], [x.first for x in ordered], [x.last for x in ordered])
    return MemoryPlan({life.buffer: place for life, place in zip(ordered, found)}, top, most)


def plan_places(nbytes: Sequence[int], first: Sequence[int], last: Sequence[int]) -> tuple[list[int], int, int]:
    """Return the offsets of buffers that live from position ``first`` (ascending) to ``last``, the arena's size, and the most
    bytes that live at once. Places are best fits in order of first use, which puts new values where the last ones have just been.
    If that leaves holes, the same backwards in time is tried, and placing the largest buffers first, by size or by size times time
    (Pisarchyk and Lee, "Efficient memory management for deep neural net inference", arXiv 2001.03288). The smallest arena wins."""
    sizes: list[int] = np.maximum(ALIGNMENT, -(-np.array(nbytes, np.int64) // ALIGNMENT) * ALIGNMENT).tolist()
    found, top, most = places_by_time(sizes, first, last)
    if top <= NEAR * most:
        return found, top, most
    backwards, other = _backwards(sizes, first, last)
    if other < top:
        found, top = backwards, other
    for keys in (nbytes, [n * (z - a + 1) for n, a, z in zip(nbytes, first, last)]):
        better = _by_size(sizes, first, last, keys, top) if top > most else None
        if better is not None:
            found, top = better
    return found, top, most


def _backwards(sizes: Sequence[int], first: Sequence[int], last: Sequence[int]) -> tuple[list[int], int]:
    """Best fits in order of last use, from the end. Offsets and the arena's size."""
    order, end = sorted(range(len(sizes)), key=lambda i: -last[i]), max(last, default=0)
    placed, top, _ = places_by_time([sizes[i] for i in order], [end - last[i] for i in order], [end - first[i] for i in order])
    found = [0] * len(sizes)
    for i, place in zip(order, placed):
        found[i] = place
    return found, top


def _by_size(
    sizes: Sequence[int], first: Sequence[int], last: Sequence[int], keys: Sequence[int], best: int
) -> tuple[list[int], int] | None:
    """The largest by ``keys`` first, each at the lowest place that is free while it lives; of very many buffers the rest, which
    matter little, by time behind them. Offsets and the arena's size; None as soon as it is known to be no less than ``best``."""
    ordered = sorted(range(len(sizes)), key=lambda i: -keys[i])
    many, others = ordered[:MANY], sorted(ordered[MANY:])
    behind, top_behind, _ = places_by_time(*([of[i] for i in others] for of in (sizes, first, last)))
    own_sizes, own_first, own_last = ([of[i] for i in many] for of in (sizes, first, last))
    placed = places(own_sizes, own_first, own_last, best - top_behind)
    if placed is None:
        return None
    top = max((place + sizes[i] for i, place in zip(many, placed)), default=0)
    found = [0] * len(sizes)
    for i, place in zip(many, placed):
        found[i] = place
    for i, place in zip(others, behind):
        found[i] = top + place
    return found, top + top_behind
