"""Bubble: how long the devices of a pipeline wait between its first pass and its last, and what would be unavoidable."""

from __future__ import annotations

from dataclasses import dataclass
from math import fsum

from taskflow.mapper import Pipeline
from taskflow.tasks import Compute, TaskGraph, Timeline


@dataclass(frozen=True, slots=True)
class Bubble:
    """``seconds``: from the first pass's start to the last one's end. ``idle``: of the devices that run passes, by number, how long
    each runs none of its operators' tasks meanwhile. ``closed_form``: the share that would be idle if all stages took
    equally long and nothing had to travel (Narayanan et al., arXiv 2104.04473, section 2.2)."""

    pipeline: Pipeline
    seconds: float
    idle: dict[int, float]
    closed_form: float

    @property
    def share(self) -> float:
        """The mean idle share."""
        whole = self.seconds * len(self.idle)
        return fsum(self.idle.values()) / whole if whole > 0 else 0.0

    @property
    def fullest(self) -> int:
        """The device that is idle for the shortest time: that of the heaviest stage."""
        return min(self.idle, key=lambda device: (self.idle[device], device))


def closed_form(pipeline: Pipeline) -> float:
    """The idle share of equal stages without transfers; of zero bubble with forward, backward and weights' passes equally long. A
    zero-bubble schedule of few micro-batches has too few gradients of weights to fill the time in which they come back."""
    p, v, m = pipeline.ranks, pipeline.count // pipeline.ranks, pipeline.micro_batches
    work, idle = v * m, p - 1
    if pipeline.schedule.weights_apart:  # in passes, of which there are three
        work, idle = 3 * work, max(idle, v * (2 * (p - 1) - (m - 1)))
    return idle / (work + idle)


def bubble(pipeline: Pipeline | None, tasks: TaskGraph, timeline: Timeline) -> Bubble | None:
    """The bubble of a simulated step; None without several stages."""
    if pipeline is None or pipeline.count == 1:
        return None
    busy: dict[int, float] = {}
    own = [task for task in tasks if isinstance(task.work, Compute)]
    spans = [timeline.spans[task.number] for task in own]
    for task, span in zip(own, spans):
        busy[task.processor] = busy.get(task.processor, 0.0) + span.end - span.start
    seconds = max(span.end for span in spans) - min(span.start for span in spans)
    return Bubble(pipeline, seconds, {p: max(0.0, seconds - busy[p]) for p in sorted(busy)}, closed_form(pipeline))
