"""critical_path: the chain of tasks that determines a step's time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from taskflow.machine import Machine
from taskflow.tasks import TaskGraph, Timeline, resources, together


@dataclass(frozen=True, slots=True)
class PathSegment:
    """Task on the critical path, from ``start`` (counted from the start of the step) for ``seconds``. Of a copy's route, it
    shows the resource for which the copy waited, or else the first. ``because``: what the task waited for: ``start`` (nothing),
    ``needs`` (the end of the previous task on the path) or ``busy`` (that task occupied its processor or link, for ``waited``
    seconds after this one was ready for it)."""

    task: int
    start: float
    seconds: float
    because: str
    waited: float

    @property
    def end(self) -> float:
        return self.start + self.seconds


@dataclass(frozen=True, slots=True)
class TimelineArrays:
    """Simulated step as arrays by task: ``ready``, ``start`` and ``end`` in seconds. Task n occupies ``resource[k]`` (numbered
    as in `taskflow.tasks.simulate.resources`) from ``starts[k]``, for k from ``place[n]`` to before ``place[n + 1]``;
    ``together[n]``: it reached all of them when it was ready."""

    ready: NDArray[np.float64]
    start: NDArray[np.float64]
    end: NDArray[np.float64]
    place: NDArray[np.int64]
    starts: NDArray[np.float64]
    resource: NDArray[np.int64]
    together: NDArray[np.bool_]


Needed = Callable[[int, float], int]
"""A task that a task waited for until it ended at that time; -1 if there is none."""


def critical_path(tasks: TaskGraph, timeline: Timeline, machine: Machine) -> tuple[PathSegment, ...]:
    """Return a chain of tasks without gaps: the first starts with the step, the last ends it, and each starts when the previous
    one ends, because it needs that task or a resource that the task held. So their seconds add up to the step's. Ties between
    last tasks, or needed ones, go to the lowest number."""
    spans = timeline.spans

    def needed(task: int, at: float) -> int:
        return min((n for n in tasks.tasks[task].after if spans[n].end == at), default=-1)

    return walk(course(tasks, timeline, machine), needed)


def course(tasks: TaskGraph, timeline: Timeline, machine: Machine) -> TimelineArrays:
    """Return a timeline as arrays."""
    spans = timeline.spans
    occupied = [resources(task, machine) for task in tasks]
    # A message between processors that no link parts occupies nothing.
    each = [span.starts or (span.start,) * len(there) for span, there in zip(spans, occupied)]
    return TimelineArrays(
        np.array([span.ready for span in spans]), np.array([span.start for span in spans]), np.array([span.end for span in spans]),
        np.concatenate([[0], np.cumsum([len(starts) for starts in each], dtype=np.int64)]),
        np.array([start for starts in each for start in starts]), np.array([r for there in occupied for r in there], np.int64),
        np.array([together(task.kind, there, machine) for task, there in zip(tasks, occupied)], np.bool_),
    )  # fmt: skip


def walk(on: TimelineArrays, needed: Needed) -> tuple[PathSegment, ...]:
    """Return the critical path, found backwards from the last task. A task that ``needed`` returns is preferred to one that
    held the same resource."""
    count = len(on.end)
    if not count:
        return ()
    owner = np.repeat(np.arange(count), np.diff(on.place))
    before = _before(on)
    number, hop = int(np.flatnonzero(on.end == on.end.max())[0]), -1  # hop: the thing for which it waited until it ended
    path: list[PathSegment] = []
    while number >= 0:
        first = int(on.place[number])
        starts = on.starts[first : on.place[number + 1]].tolist() or [float(on.start[number])]
        at_once = bool(on.together[number])
        hop = starts.index(max(starts)) if at_once and hop < 0 else hop % len(starts)
        while hop and starts[hop] == starts[hop - 1] and not at_once:
            hop -= 1
        start, arrival = starts[hop], starts[hop - 1] if hop and not at_once else float(on.ready[number])
        seconds = float(on.end[number] - on.start[number])
        if start > arrival:
            path.append(PathSegment(number, start, seconds, "busy", start - arrival))
            stay = int(before[first + hop])
            number = int(owner[stay])
            hop = stay - int(on.place[number])
        else:
            path.append(PathSegment(number, start, seconds, "needs" if start > 0 else "start", 0.0))
            number, hop = needed(number, start) if start > 0 else -1, -1
    return tuple(path[::-1])


def _before(on: TimelineArrays) -> NDArray[np.int64]:
    """For every entry of ``starts``, the one that occupied the same resource just before; -1 if there is none. Among entries
    that begin at the same moment, those that take no time, such as views, come first."""
    until = on.starts + np.repeat(on.end - on.start, np.diff(on.place))
    order = np.lexsort((np.arange(len(on.starts)), until, on.starts, on.resource))
    same = on.resource[order][1:] == on.resource[order][:-1]
    before = np.full(len(on.starts), -1, np.int64)
    before[order[1:][same]] = order[:-1][same]
    return before
