"""Algorithm 1 of the paper for a step that is given as arrays: `tasks.simulate` without task objects.

The compiled twin is _arrays.pyx; tests/optimizer/evaluate/test_folded.py holds them equal."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def simulate_arrays(
    processors: int, occupied: Sequence[tuple[int, ...]], together: Sequence[bool], seconds: Array, place: Array,
    after_offset: Array, after: Array, checkpoint: Callable[[], object],
) -> tuple[Array, Array, Array, Array]:
    """Return when each task begins to occupy each thing that it does, where its entries of these are, when it ends, and the busy
    seconds of each resource. Task t begins at ``starts[offset[t]:offset[t + 1]]``. It takes ``seconds[t]``
    (`tasks.simulate.on_grid`) and occupies ``occupied[place[t]]``: processors by number, and links, whose numbers follow those of
    the ``processors``. With ``together[place[t]]`` it reaches all of them when it is ready. It waits for
    ``after[after_offset[t]:after_offset[t + 1]]``. Raises ValueError if a task would occupy nothing."""
    if not all(occupied):
        raise ValueError("simulate_arrays: every task must occupy something")
    count = len(seconds)
    waits = np.diff(after_offset).tolist()
    followers: list[list[int]] = [[] for _ in range(count)]
    for task, (low, high) in enumerate(zip(after_offset[:-1].tolist(), after_offset[1:].tolist())):
        for before in after[low:high].tolist():
            followers[before].append(task)
    most = max((r + 1 for one in occupied for r in one), default=0)
    ready, end = np.zeros(count), np.zeros(count)
    offset = np.concatenate([[0], np.cumsum([len(occupied[of]) for of in place], dtype=np.int64)])
    starts = np.zeros(int(offset[-1]))
    free, busy = np.zeros(max(most, processors)), np.zeros(max(most, processors))
    going: dict[int, int] = {}  # tasks that have begun -> how many things they have got hold of
    queue = [(0.0, task) for task, waiting in enumerate(waits) if not waiting]
    heapq.heapify(queue)
    done = 0
    while queue:
        at, task = heapq.heappop(queue)
        if not done % 256:
            checkpoint()
        stops, cost = occupied[place[task]], float(seconds[task])
        begun, at_once, begins, first = going.get(task, 0), together[place[task]], at, int(offset[task])
        while begun < len(stops) and (at_once or begins == at):
            r = stops[begun]
            starts[first + begun] = own = max(at, float(free[r]))
            free[r] = own + cost
            busy[r] += cost
            begins = max(begins, own)
            begun += 1
        if begun < len(stops):
            going[task] = begun
            heapq.heappush(queue, (begins, task))
            continue
        done += 1
        end[task] = begins + cost
        for follower in followers[task]:
            ready[follower] = max(ready[follower], begins + cost)
            waits[follower] -= 1
            if not waits[follower]:
                heapq.heappush(queue, (float(ready[follower]), follower))
    return starts, offset, end, busy
