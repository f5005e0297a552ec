"""ShownStep: a simulated step whose tasks are shown: all of them or, where they are too many, those of its first replica."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from taskflow.graph import Node
from taskflow.machine import Machine
from taskflow.mapper import Pass, Strategy, sample_dim
from taskflow.optimizer.evaluate.critical_path import PathSegment, TimelineArrays, course, critical_path
from taskflow.optimizer.evaluate.evaluator import Evaluator
from taskflow.optimizer.evaluate.folded import (
    FoldedStep,
    replica_course,
    replica_operators,
    replica_passes,
    replica_path,
)
from taskflow.optimizer.evaluate.ordered import too_many_to_show
from taskflow.regions import Rect
from taskflow.tasks import Task, TaskGraph, Timeline


@dataclass(frozen=True, slots=True)
class Shown:
    """What is shown of a machine. ``processors``: all, or those of the first replica. ``first``: for each processor of the machine
    the shown one that does the same (-1: none). ``replicas``: how many each stands for. ``images``: of things that a task
    occupies, numbered as in `resources`, those of the first replica."""

    machine: Machine
    processors: tuple[int, ...]
    first: NDArray[np.int64]
    replicas: int = 1
    images: Callable[[Iterable[int]], tuple[int, ...]] = tuple


@dataclass(frozen=True, slots=True)
class ShownStep:
    """Tasks of a step in program order; of a replica, ``tasks[n]`` is the lowered task that task n is like. ``names``: the
    operator, layer or block that each is for. ``on``: when they run. ``alike``: how many tasks of the step each stands for.
    ``passes``: each with its tasks from first to last - 1. ``lowered``: the graph that they are of. ``stands_for``: as of
    `FewerLayers`. Either ``timeline`` is of all of ``lowered``, or ``folded`` is the step of whose first replica they are."""

    shown: Shown
    tasks: Sequence[Task]
    names: Sequence[str]
    on: TimelineArrays
    alike: NDArray[np.int64]
    passes: Sequence[tuple[Pass, int, int]]
    lowered: TaskGraph
    stands_for: Mapping[str, tuple[str, ...]]
    timeline: Timeline | None = None
    folded: FoldedStep | None = None

    @property
    def makespan(self) -> float:
        return float(self.on.end.max(initial=0.0))

    def micro_batches(self) -> NDArray[np.int64]:
        """Return for each task its micro-batch plus 1; 0 for tasks without one (updates), and in a step without passes."""
        found = np.zeros(len(self.tasks), np.int64)
        for one, first, last in self.passes:
            found[first:last] = one.micro_batch + 1
        return found

    def path(self) -> tuple[PathSegment, ...]:
        """Return the critical path, of ``tasks``."""
        if self.folded is not None:
            return replica_path(self.folded, self.on)
        assert self.timeline is not None
        return critical_path(self.lowered, self.timeline, self.shown.machine)


def everything(machine: Machine) -> Shown:
    """Return all of a machine."""
    return Shown(machine, tuple(range(len(machine.processors))), np.arange(len(machine.processors)))


def shown_step(evaluator: Evaluator) -> ShownStep:
    """Return what is shown of the step that an evaluator is at. Of one with too many pieces for a timeline of all tasks
    (`too_many_to_show`) that is the first replica. Raises ValueError if replicas do not do the same."""
    folded = evaluator.folded(evaluator.strategy) if too_many_to_show(evaluator.strategy) else None
    if folded is not None:
        return replica_step(folded, evaluator.machine)
    return whole_step(*evaluator.current(), evaluator.machine)


def whole_step(tasks: TaskGraph, timeline: Timeline, machine: Machine) -> ShownStep:
    """Return all of a step."""
    return ShownStep(
        everything(machine), tasks.tasks, [task.topic.name for task in tasks], course(tasks, timeline, machine),
        np.ones(len(tasks), np.int64), tasks.passes, tasks, {}, timeline,
    )


def replica_step(step: FoldedStep, machine: Machine) -> ShownStep:
    """Return the first replica of a folded step."""
    lowered, origin = step.lowered, step.whole.origin
    first = np.full(len(machine.processors), -1)
    for processor, images in step.replicas.images.items():
        first[list(images)] = processor
    return ShownStep(
        Shown(machine, tuple(sorted(step.replicas.images)), first, step.replicas.count, step.occupies.images),
        [lowered.tasks[of] for of in origin.tolist()], replica_operators(step, [task.topic.name for task in lowered]),
        replica_course(step, machine), step.alike[origin], replica_passes(step), lowered, step.stands_for, folded=step,
    )


def piece_color(node: Node, rect: Rect, batch: int, strategy: Strategy) -> tuple[int, ...]:
    """Return the color of the piece of micro-batch ``batch`` (from 1 on; 0: none) that is as ``rect`` is in its own micro-batch: a
    lowered task may stand for several."""
    config, dim, pipeline = strategy[node.name], sample_dim(node), strategy.pipeline
    place = [bisect_right(cuts, low) - 1 for cuts, low in zip(config.partition(node).cuts, rect.lo)]
    if batch and pipeline is not None and dim is not None and config.degrees[dim] % pipeline.parts == 0:
        each = config.degrees[dim] // pipeline.micro_batches
        place[dim] = (batch - 1) * each + place[dim] % each
    return tuple(place)
