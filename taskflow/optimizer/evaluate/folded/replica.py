"""The timeline of a folded step's first replica, in the form in which critical paths are found."""

from __future__ import annotations

import numpy as np

from taskflow.machine import Machine
from taskflow.mapper import Pass
from taskflow.optimizer.evaluate.critical_path import PathSegment, TimelineArrays, walk
from taskflow.optimizer.evaluate.folded.step import FoldedStep
from taskflow.optimizer.evaluate.folded.template import StepTemplate, WholeStep
from taskflow.tasks import together

Array = np.ndarray  # type: ignore[type-arg]


def replica_path(step: FoldedStep, on: TimelineArrays) -> tuple[PathSegment, ...]:
    """Return the `critical_path` of the first replica, whose timeline is ``on``; its tasks are those of ``step.whole``."""
    whole = step.whole

    def needed(task: int, at: float) -> int:
        before = whole.after[whole.after_offset[task] : whole.after_offset[task + 1]]
        return min(before[on.end[before] == at].tolist(), default=-1)

    return walk(on, needed)


def replica_course(step: FoldedStep, machine: Machine) -> TimelineArrays:
    """Return the first replica's timeline as arrays. What its images use, too, has the number of the first one."""
    whole = step.whole
    occupied = [step.occupies.of(task) for task in step.template.tasks]
    at_once = [together(task.kind, there, machine) for task, there in zip(step.template.tasks, occupied)]
    many = np.array([len(there) for there in occupied], np.int64)
    resources = np.array([r for there in occupied for r in there], np.int64)
    first, count = (np.cumsum(many) - many)[whole.origin], np.diff(step.place)
    resource = resources[np.repeat(first - step.place[:-1], count) + np.arange(len(step.starts))]
    waits = np.diff(whole.after_offset) > 0
    ready = np.zeros(len(step.end))
    ready[waits] = np.maximum.reduceat(step.end[whole.after], whole.after_offset[:-1][waits])
    return TimelineArrays(
        ready, step.end - step.seconds, step.end, step.place, step.starts, resource, np.array(at_once, np.bool_)[whole.origin]
    )


def replica_operators(step: FoldedStep, names: list[str]) -> list[str]:
    """Return for each task of the first replica the operator that it is of. ``names``: of lowered tasks, which in layers that were
    lowered as one are those of the first of them."""
    copies, origin = _copies(step.template, step.whole), step.whole.origin.tolist()
    stands_for = [step.stands_for.get(name) for name in names]
    return [
        names[of] if (every := stands_for[of]) is None else every[copy] for of, copy in zip(origin, copies.tolist())
    ]


def replica_passes(step: FoldedStep) -> list[tuple[Pass, int, int]]:
    """Return the passes of the first replica, each with its tasks from first to last - 1."""
    template, begins = step.template, step.whole.begins
    return [
        (Pass(kind, number, stage), first, first + template.passes[kind, stage, of].layout.count)
        for (kind, stage), at in begins.items() for number, (first, of) in enumerate(zip(at.tolist(), template.like))
    ]


def _copies(template: StepTemplate, whole: WholeStep) -> Array:
    """Return for each task which copy of its lowered task it is."""
    found, like = np.zeros(len(whole.origin), np.int64), np.array(template.like)
    found[: template.before.layout.count] = template.before.layout.copy
    for (kind, stage, which), segment in template.passes.items():
        at = whole.begins[kind, stage][like == which]
        found[(at[:, None] + np.arange(segment.layout.count)).ravel()] = np.tile(segment.layout.copy, len(at))
    found[whole.end :] = template.after.layout.copy
    return found
