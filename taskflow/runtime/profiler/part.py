"""The predicted step of some devices that stand for all others, as a trace: of a plan with too many tasks for all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from taskflow.runtime.profiler.events import arguments_of
from taskflow.runtime.profiler.predicted import PREDICTED, process_names, thread_name
from taskflow.runtime.profiler.recording import HEADER, microseconds, thread
from taskflow.tasks import Task

Event = dict[str, Any]
Timed = tuple[Task, float, float]  # a task, and the seconds at which it begins and ends
COMPUTE, TRAVELS = 1, 2  # tracks; what travels at the same time has one more track each


def part_document(tasks: Iterable[Timed], images: Mapping[int, int], facts: Mapping[str, Any]) -> Event:
    """Return the trace. ``images``: for each processor of the tasks, how many do the same, itself among them."""
    events, free = list[Event](), dict[int, list[int]]()  # by processor: until when its tracks are taken, in nanoseconds
    seconds = 0.0
    for task, began, end in sorted(tasks, key=lambda timed: (timed[1], timed[2])):
        begin, ends = round(began * 1e9), round(end * 1e9)
        track = _track(free.setdefault(task.processor, [0]), task.kind.travels, begin, ends)
        pid = task.processor + 1
        events.append({
            "name": task.name, "cat": PREDICTED, "ph": "X", "ts": microseconds(begin), "dur": microseconds(ends - begin),
            "pid": pid, "tid": thread(pid, track), "args": {"step": 1, **arguments_of(task)},
        })  # fmt: skip
        seconds = max(seconds, end)
    names: list[Event] = []
    for processor, tracks in sorted(free.items()):
        alike = f", and {images[processor] - 1:,} like it" if images.get(processor, 1) > 1 else ""
        names += process_names(processor + 1, f"{PREDICTED} processor {processor}{alike}", processor)
        names.append(thread_name(processor + 1, COMPUTE, "compute"))
        names += [thread_name(processor + 1, TRAVELS + i, "copies and collectives") for i in range(len(tracks) - 1)]
    head = {**HEADER, **facts, "steps": [], "step_seconds": [], "predicted_step_seconds": seconds, "processors_shown": len(free)}
    return {"traceEvents": names + events, "displayTimeUnit": "ms", "otherData": head}


def _track(taken: list[int], travels: bool, begin: int, end: int) -> int:
    """The track of a task, which is taken from then on. Spans of one track must not overlap; computation never does."""
    at = next((i for i, until in enumerate(taken) if i and until <= begin), len(taken)) if travels else 0
    if at == len(taken):
        taken.append(0)
    taken[at] = end
    return at + 1
