"""critical_path: why a step takes as long as it does, task by task."""

from __future__ import annotations

from dataclasses import dataclass

from taskflow.machine import Machine
from taskflow.tasks.simulate import Timeline, resources, stays
from taskflow.tasks.task import TaskGraph


@dataclass(frozen=True, slots=True)
class Lap:
    """A task on the critical path, from ``start`` on (from the start of the step) for ``seconds``. A copy is there with the one
    thing of its route that it waited for, or else the first. ``because``: what it waited for before: ``start`` (nothing),
    ``needs`` (the end of the task before it on the path) or ``busy`` (that task occupied a processor or link, for
    ``waited`` seconds after this one had come there)."""

    task: int
    start: float
    seconds: float
    because: str
    waited: float

    @property
    def end(self) -> float:
        return self.start + self.seconds


def critical_path(tasks: TaskGraph, timeline: Timeline, machine: Machine) -> tuple[Lap, ...]:
    """Tasks of which the first starts with the step, the last ends it, and each starts the moment the one before it ends,
    because it needs that one or what that one occupied. So their seconds add up to the step's. Of several last or
    needed tasks the one with the lowest number."""
    spans = timeline.spans
    there = stays(tasks, timeline, machine)
    place = {(stay.task, r): k for r, found in there.items() for k, stay in enumerate(found)}
    number = max(range(len(spans)), key=lambda n: (spans[n].end, -n), default=-1)
    hop = -1  # the last thing that a task occupies
    path: list[Lap] = []
    while number >= 0:
        span, occupied = spans[number], resources(tasks.tasks[number], machine)
        starts = span.starts or (span.start,)
        hop %= len(starts)
        while hop and starts[hop] == starts[hop - 1]:
            hop -= 1
        start, arrival = starts[hop], starts[hop - 1] if hop else span.ready
        seconds = span.end - span.start
        if start > arrival:
            r = occupied[hop]
            path.append(Lap(number, start, seconds, "busy", start - arrival))
            number = there[r][place[number, r] - 1].task
            hop = resources(tasks.tasks[number], machine).index(r)
        else:
            path.append(Lap(number, start, seconds, "needs" if start > 0 else "start", 0.0))
            number = min((n for n in tasks.tasks[number].after if spans[n].end == start), default=-1) if start > 0 else -1
            hop = -1
    return tuple(path[::-1])
