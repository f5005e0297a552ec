"""The predicted timeline as trace events: a process for each processor, beside its rank's, and one for the links."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from taskflow.runtime.profiler.recording import Subject, microseconds, thread
from taskflow.tasks import TaskGraph, Timeline, stays

Event = dict[str, Any]
PREDICTED = "predicted"
"""How the names of these processes begin, and the category of their spans."""
_COMPUTE, _COPYING = 1, 2


def predicted_events(
    tasks: TaskGraph, timeline: Timeline, subject: Subject, starts: Mapping[int, int],
    arguments: Sequence[Event], first_pid: int, ranks: Sequence[int],
) -> list[Event]:
    """Return the events of the timeline, once for each step of ``starts`` (step -> when it began, in nanoseconds; see
    `shown_from`). ``arguments``: by task number, what the viewer shows. ``first_pid``: the first free process number."""
    machine = subject.machine
    count = len(machine.processors)
    starts = shown_from(starts, timeline)
    events: list[Event] = []
    used_links: set[int] = set()
    copying: set[int] = set()
    for resource, there in stays(tasks, timeline, machine).items():
        ended = 0  # to the nanosecond no two overlap either
        for stay in there:
            task = tasks.tasks[stay.task]
            if resource >= count:
                place = first_pid + count, resource - count + 1
                used_links.add(resource - count)
            else:
                place = first_pid + resource, _COPYING if task.kind.travels else _COMPUTE
                if task.kind.travels:
                    copying.add(resource)
            begin, end = max(ended, round(stay.start * 1e9)), round(stay.end * 1e9)
            ended = max(ended, end)
            for step, start in starts.items():
                events.append({
                    "name": task.name, "cat": PREDICTED, "ph": "X", "ts": microseconds(start + begin),
                    "dur": microseconds(max(0, end - begin)), "pid": place[0], "tid": thread(*place),
                    "args": {"step": step + 1, **arguments[stay.task]},
                })  # fmt: skip
    names = list(_names(subject, first_pid, copying))
    if used_links:
        links = {link.number: link.name for a in range(count) for b in range(count) for link in machine.route(a, b)}
        names += process_names(first_pid + count, "predicted links", 2 * len(ranks) + 1)
        names += [thread_name(first_pid + count, link + 1, links[link]) for link in sorted(used_links)]
    return names + events


def shown_from(starts: Mapping[int, int], timeline: Timeline) -> dict[int, int]:
    """Return when each step's prediction begins in the trace: at the step's start, or at the end of the previous step's
    prediction if that is later, since viewers drop spans that overlap."""
    lasts, free, found = round(timeline.makespan * 1e9), 0, {}
    for step, start in starts.items():
        found[step] = max(start, free)
        free = found[step] + lasts
    return found


def _names(subject: Subject, first_pid: int, copying: set[int]) -> Iterator[Event]:
    for processor in range(len(subject.machine.processors)):
        pid = first_pid + processor
        # Right below the rank that runs it.
        yield from process_names(pid, f"predicted processor {processor}", 2 * subject.placement.rank(processor) + 1)
        yield thread_name(pid, _COMPUTE, "compute")
        if processor in copying:
            yield thread_name(pid, _COPYING, "copies that it makes itself")


def process_names(pid: int, name: str, place: int) -> list[Event]:
    """Return the events that name a process of the trace and say which place it has among them."""
    return [
        {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}},
        {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": place}},
    ]


def thread_name(pid: int, tid: int, name: str) -> Event:
    """Return the event that names a track of a process."""
    return {"ph": "M", "name": "thread_name", "pid": pid, "tid": thread(pid, tid), "args": {"name": name}}
