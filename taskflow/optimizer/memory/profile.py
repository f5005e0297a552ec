"""memory_profile: how many bytes live on each processor after each task, as the runtime's memory planner counts them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from taskflow.optimizer.memory.peak import MemoryUse, kept_bytes, orders, use_of
from taskflow.tasks import (
    ALIGNMENT,
    Leave,
    Lifetime,
    Placement,
    Planned,
    TaskGraph,
    Timeline,
    WaitReceive,
    WaitSend,
    items_of,
    lifetimes,
)


@dataclass(frozen=True, slots=True)
class MemoryProfile:
    """Memory over time: ``nbytes[i]`` live on the processor from ``seconds[i]`` to ``seconds[i + 1]`` (the last one to the end
    of the step), including what is kept from step to step, packed messages and holes between buffers. The largest equals
    ``use.nbytes``."""

    use: MemoryUse
    seconds: NDArray[np.float64]
    nbytes: NDArray[np.int64]


def memory_profile(tasks: TaskGraph, timeline: Timeline) -> tuple[MemoryProfile, ...]:
    """Return one profile for each processor, with one rank for each. A buffer lives from the item that first writes it to the
    item that last uses it, in the order in which the runtime takes them. The time of a task is its start, of a send when it may
    leave, and of an arrival when the message is there; but never before the time of the previous item."""
    placement = Placement(tasks.processors, tasks.processors)
    kept = kept_bytes(tasks)
    profiles = []
    for processor, order in enumerate(orders(tasks, timeline.begun(tasks))):
        items = items_of(tasks, order, placement, processor)
        lives = lifetimes(tasks, items, {processor})
        use = use_of(processor, kept, lives)
        constant = use.nbytes - use.buffers
        profiles.append(MemoryProfile(use, _times(items, timeline), constant + _live(lives, len(items))))
    return tuple(profiles)


def _live(lives: list[Lifetime], items: int) -> NDArray[np.int64]:
    """Bytes that live at each item, rounded up to cache lines as the planner does."""
    changes = np.zeros(items + 2, np.int64)
    for life in lives:
        size = max(ALIGNMENT, -(-life.nbytes // ALIGNMENT) * ALIGNMENT)
        changes[life.first] += size
        changes[life.last + 1] -= size
    return np.cumsum(changes[: max(1, items)])


def _times(items: list[Planned], timeline: Timeline) -> NDArray[np.float64]:
    at = [0.0]
    for item in items:
        if isinstance(item, (WaitReceive, Leave, WaitSend)):  # a message is there, or has left
            at.append(timeline.spans[item.copy.number].end)
        else:
            span = timeline.spans[item.task.number]
            at.append(span.start if len(item.task.processors) == 1 else span.ready)
    return np.maximum.accumulate(np.array(at[1:] or [0.0]))
