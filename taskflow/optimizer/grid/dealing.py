"""Dealing: distributes layers over stages and samples over replicas, in proportion to speed and within the memory."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from math import inf

from taskflow.optimizer.space import whole_shares


def deal_layers(
    layers: int, each: Sequence[float], ends: tuple[float, float], virtual: int, most: Sequence[int]
) -> list[int] | None:
    """Return how many layers each rank has, such that the slowest rank is as fast as possible: each layer goes to the rank that
    would then be least slow. ``each``: seconds of a layer on each rank; ``ends``: extra seconds of the first and the last rank;
    ``most``: the layers that fit each rank. Each rank gets at least ``virtual``. None if they do not fit."""
    ranks = len(each)
    counts = [virtual] * ranks
    besides = [0.0] * ranks
    besides[0] += ends[0]
    besides[-1] += ends[1]
    if layers < virtual * ranks or any(c > m for c, m in zip(counts, most)):
        return None
    queue = [(besides[r] + (virtual + 1) * each[r], r) for r in range(ranks)]
    heapify(queue)
    for _ in range(layers - virtual * ranks):
        while True:
            if not queue:
                return None
            seconds, rank = heappop(queue)
            if counts[rank] < most[rank]:
                break
        counts[rank] += 1
        heappush(queue, (seconds + each[rank], rank))
    return counts


def in_stages(counts: Sequence[int], virtual: int) -> tuple[int, ...]:
    """Return layers by stage for ranks with ``virtual`` stages each; a rank's first stages are the larger ones."""
    return tuple(count // virtual + (chunk < count % virtual) for chunk in range(virtual) for count in counts)


def deal_samples(total: int, speeds: Sequence[float], most: Sequence[int]) -> tuple[int, ...] | None:
    """Divide ``total`` samples among replicas in proportion to ``speeds``, at least one and at most ``most`` each. Replicas of
    equal speed have equal shares if that is no slower. None if there are too few samples or too little memory."""
    count = len(speeds)
    if total < count or sum(most) < total or min(most) < 1:
        return None
    found = _bounded(whole_shares(speeds, total), most, speeds)
    kinds = sorted(set(zip(speeds, most)))
    if len(kinds) == 2:
        numbers = [sum((s, m) == kind for s, m in zip(speeds, most)) for kind in kinds]
        best, least = None, _slowest(found, speeds) * (1 + 1e-9)
        for first in range(1, min(kinds[0][1], total // numbers[0]) + 1):
            second, rest = divmod(total - first * numbers[0], numbers[1])
            if rest or not 1 <= second <= kinds[1][1]:
                continue
            if (slowest := max(first / kinds[0][0], second / kinds[1][0])) <= least:
                best, least = (first, second), slowest
        if best is not None:
            return tuple(best[kinds.index((s, m))] for s, m in zip(speeds, most))
    return found


def _slowest(shares: Sequence[int], speeds: Sequence[float]) -> float:
    return max(share / speed if speed else inf for share, speed in zip(shares, speeds))


def _bounded(shares: Sequence[int], most: Sequence[int], speeds: Sequence[float]) -> tuple[int, ...]:
    """The shares limited to 1 to ``most``; the excess goes to replicas that are then the least slow."""
    found = [min(max(share, 1), m) for share, m in zip(shares, most)]
    while (left := sum(shares) - sum(found)) != 0:
        step = 1 if left > 0 else -1
        free = [r for r, m in enumerate(most) if (found[r] < m if step > 0 else found[r] > 1)]
        rank = (min if step > 0 else max)(free, key=lambda r: ((found[r] + max(step, 0)) / speeds[r], r))
        found[rank] += step
    return tuple(found)
