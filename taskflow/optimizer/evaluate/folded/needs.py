"""LastNeeds: until when a task of a folded step holds the arrays that it uses, as in the runtime's plan of memory.

A task of a processor is over at its turn. A copy to another processor and a collective go on beside others: what they use is held
until just before the first task that needs what they bring (`taskflow.tasks.items`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from taskflow.optimizer.evaluate.folded.step import FoldedStep
from taskflow.tasks import Collective, Kind, Task

Array = np.ndarray  # type: ignore[type-arg]


@dataclass(frozen=True, slots=True)
class LastNeeds:
    """``last``: by task of the whole step, the position until which it holds what it uses. ``row``: its row in ``by_processor``
    if that depends on the processor (collectives), else -1. ``column``: by processor of the machine, its column there."""

    last: Array
    row: Array
    column: Array
    by_processor: Array

    def until(self, tasks: Array, processors: Array) -> Array:
        """Return positions: ``tasks[..., i]`` holds an array of ``processors[i]`` until then."""
        rows = self.row[tasks]
        if (rows < 0).all():
            return self.last[tasks]  # type: ignore[no-any-return]
        there = self.by_processor[np.maximum(rows, 0), np.broadcast_to(self.column[processors], rows.shape)]
        return np.where(rows < 0, self.last[tasks], there)  # type: ignore[no-any-return]


def last_needs(step: FoldedStep, position: Array) -> LastNeeds:
    """Return until when tasks hold arrays. ``position``: of each task of the whole step, in the order in which they begin."""
    lowered, origin, end = step.lowered.tasks, step.whole.origin, len(position)
    images: Mapping[int, object] = step.replicas.images
    column = np.zeros(step.lowered.processors, np.int64)
    column[np.array(list(images))] = np.arange(len(images))
    copies = np.array([task.kind is Kind.COPY and task.source != task.processor for task in lowered], bool)
    joint = np.array([task.kind is Kind.COLLECTIVE for task in lowered], bool)
    row = np.where(joint[origin], np.cumsum(joint[origin]) - 1, -1)
    own = np.full((int(joint[origin].sum()) + 1, len(images)), end + 1, np.int64)
    # The first task that waits for a copy where it arrives, or anywhere for a collective.
    anybody = np.full(end, end + 1, np.int64)
    later = np.repeat(np.arange(end), np.diff(step.whole.after_offset))
    before = step.whole.after
    some = (copies | joint)[origin[before]]
    later, before = later[some], before[some]
    offset, members = _members(lowered, images)
    takers = np.array([task.processor for task in lowered], np.int64)[origin[before]]
    counts = (offset[1:] - offset[:-1])[origin[later]]
    edge = np.repeat(np.arange(len(later)), counts)
    place = np.arange(len(edge)) - np.repeat(np.cumsum(counts) - counts, counts)
    at = members[offset[origin[later]][edge] + place]
    of_joint = joint[origin[before]]
    reach = edge[of_joint[edge] | (at == takers[edge])]
    np.minimum.at(anybody, before[reach], position[later[reach]])
    np.minimum.at(anybody, before[of_joint], position[later[of_joint]])
    mine = of_joint[edge]
    some = edge[mine]
    np.minimum.at(own.reshape(-1), row[before[some]] * len(images) + column[at[mine]], position[later[some]])
    which = np.flatnonzero(joint[origin])
    np.copyto(own[:-1], anybody[which][:, None], where=own[:-1] > end)
    own -= 1
    last = np.where((copies | joint)[origin], anybody - 1, position)
    return LastNeeds(last, row, column, own)


def _members(lowered: Iterable[Task], images: Mapping[int, object]) -> tuple[Array, Array]:
    """Return the processors of the first replica that each lowered task runs on, as offsets and numbers."""
    known: dict[tuple[int, ...], list[int]] = {}
    counts, found = [0], list[int]()
    for task in lowered:
        group = task.work.group if isinstance(task.work, Collective) else task.processors
        if group not in known:
            known[group] = [p for p in dict.fromkeys(group) if p in images]
        found += known[group]
        counts.append(len(known[group]))
    return np.cumsum(counts), np.array(found, np.int64)
