"""Bubble: how long the devices of a pipeline wait between its first and last pass, and how much of that is unavoidable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum

from taskflow.mapper import Pipeline
from taskflow.tasks import Compute, Task


@dataclass(frozen=True, slots=True)
class Bubble:
    """Idle time of a pipeline. ``seconds``: from the first pass's start to the last one's end. ``idle``: for each device that
    runs passes, by number, how long it runs none of its operators' tasks meanwhile. ``closed_form``: the share that would be
    idle if all stages took equally long and transfers took no time (Narayanan et al., arXiv 2104.04473, section 2.2)."""

    pipeline: Pipeline
    seconds: float
    idle: dict[int, float]
    closed_form: float

    @property
    def share(self) -> float:
        """Mean idle share."""
        whole = self.seconds * len(self.idle)
        return fsum(self.idle.values()) / whole if whole > 0 else 0.0

    @property
    def fullest(self) -> int:
        """Device with the shortest idle time: one of the heaviest stage."""
        return min(self.idle, key=lambda device: (self.idle[device], device))


def closed_form(pipeline: Pipeline) -> float:
    """Return the idle share of equal stages without transfers; for zero bubble, with forward, backward and weight passes
    equally long. With few micro-batches these schedules have too few weight passes to fill the bubble."""
    p, v, m = pipeline.ranks, pipeline.count // pipeline.ranks, pipeline.micro_batches
    work, idle = v * m, p - 1
    if pipeline.schedule.weights_apart:  # in passes, of which there are three
        work, idle = 3 * work, max(idle, v * (2 * (p - 1) - (m - 1)))
    return idle / (work + idle)


def bubble_of(
    pipeline: Pipeline | None, tasks: Sequence[Task], starts: Sequence[float], ends: Sequence[float]
) -> Bubble | None:
    """Return the bubble of a simulated step's tasks, which start and end at these times; None unless it has several stages."""
    if pipeline is None or pipeline.count == 1:
        return None
    busy: dict[int, float] = {}
    own = [(task.processor, start, end) for task, start, end in zip(tasks, starts, ends) if isinstance(task.work, Compute)]
    for processor, start, end in own:
        busy[processor] = busy.get(processor, 0.0) + end - start
    seconds = max(end for _, _, end in own) - min(start for _, start, _ in own)
    return Bubble(pipeline, seconds, {p: max(0.0, seconds - busy[p]) for p in sorted(busy)}, closed_form(pipeline))
