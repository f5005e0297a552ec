"""Explain: why a step takes as long as it does: its critical path, what each operator costs, and what limits it.

Everything is derived from the simulated timeline of the task graph that the runtime would execute.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import fsum, isclose

import numpy as np
from numpy.typing import NDArray

from taskflow.machine import Machine
from taskflow.optimizer.evaluate import Evaluator, PathSegment, ShownStep, shown_step
from taskflow.optimizer.evaluate.folded import FoldedResources
from taskflow.optimizer.explain.bubble import Bubble, bubble_of
from taskflow.optimizer.explain.labels import Label, TaskPurpose, labels
from taskflow.tasks import Task, link_names, resources

Times = NDArray[np.float64]

SHORT = 0.01  # of a step: what is shorter, and stands between two stretches of one kind, does not part them


@dataclass(frozen=True, slots=True)
class Step:
    """Consecutive tasks on the critical path with the same purpose. ``processors``: where they run (of a transfer: from and
    to). ``links``: what they occupy. ``waited``: how long one of them was ready while its processor or link was busy with the
    previous step; it is no additional time, since that step fills it."""

    label: Label
    start: float
    seconds: float
    tasks: int
    nbytes: int
    processors: tuple[int, ...]
    links: tuple[str, ...]
    waited: float


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive steps of one kind: ``forward``, ``backward``, ``transfers``, or ``synchronisation`` with updates.
    ``operators``: (name, seconds) of these steps' operators, the longest first. ``others``: (kind, seconds) of short steps of
    other kinds between them, which are included in ``seconds``."""

    kind: str
    start: float
    seconds: float
    operators: tuple[tuple[str, float], ...]
    tasks: int
    nbytes: int
    processors: tuple[int, ...]
    links: tuple[str, ...]
    others: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class OperatorCost:
    """Sums over one operator's tasks, on all processors and links. ``seconds``: by purpose. ``waiting``: seconds between when
    tasks were ready and when they started. ``transfer_bytes`` and ``sync_bytes``: moved between processors by transfers and by
    synchronisation. ``critical``: seconds on the critical path."""

    operator: str
    seconds: Mapping[TaskPurpose, float]
    waiting: float
    transfer_bytes: int
    sync_bytes: int
    tasks: int
    critical: float


@dataclass(frozen=True, slots=True)
class Busy:
    """Time for which a processor or link is in use, and of which step."""

    name: str
    seconds: float
    link: bool


@dataclass(frozen=True, slots=True)
class Explanation:
    """Explanation of a plan. ``steps``: the critical path. ``stretches``: the same, condensed. ``shares``: its seconds by
    purpose. All three add up to ``seconds``, the step's time. ``busy``: every processor and link in use, the busiest first.
    ``bubble``: of a plan with several stages. ``devices``: how many the machine has. ``explained``: of how many the path, ``busy``
    and ``bubble`` are: all, or the first replica's, which stand for all others."""

    seconds: float
    steps: tuple[Step, ...]
    stretches: tuple[Stretch, ...]
    shares: Mapping[TaskPurpose, float]
    operators: tuple[OperatorCost, ...]
    busy: tuple[Busy, ...]
    bubble: Bubble | None = None
    devices: int = 0
    explained: int = 0

    @property
    def limit(self) -> Busy:
        """Processor or link that is in use longest."""
        return self.busy[0]


def explain(evaluator: Evaluator) -> Explanation:
    """Explain the evaluator's current strategy. One of too many pieces for a timeline of all tasks (`too_many_to_show`) is
    explained by its first replica. Raises ValueError if replicas do not do the same."""
    step = shown_step(evaluator)
    found, path, machine, times = step_labels(step), step.path(), evaluator.machine, step.on
    verify(path, step.makespan)
    steps = contract(path, step.tasks, machine, found)
    seconds = (times.end - times.start if step.folded is None else step.folded.seconds).tolist()
    return Explanation(
        step.makespan, steps, stretches(steps, step.makespan), shares(path, found),
        operator_costs(
            [node.name for node in evaluator.graph], step.tasks, np.array([times.ready, times.start, times.end]), found, path,
            step.alike.tolist(),
        ),
        busiest(step.tasks, seconds, machine, None if step.folded is None else step.folded.occupies),
        bubble_of(evaluator.strategy.pipeline, step.tasks, times.start.tolist(), times.end.tolist()),
        len(machine.processors), len(step.shown.processors),
    )


def step_labels(step: ShownStep) -> list[Label]:
    """Return a label for every task of a step."""
    known: dict[tuple[Label, str], Label] = {}
    found = []
    for label, name in zip(labels(step.tasks), step.names):
        if (label, name) not in known:
            known[label, name] = replace(label, operator=name) if label.operator else label
        found.append(known[label, name])
    return found


def verify(path: Sequence[PathSegment], whole: float) -> None:
    """Raise AssertionError unless the path fills the step of so many seconds without a gap, so that its own add up to these."""
    assert not path or (path[0].start == 0.0 and isclose(path[-1].end, whole)), "the path must be as long as the step"
    for before, after in zip(path, path[1:]):  # of a copy that left a link before it arrived, the end is rounded
        assert isclose(before.end, after.start, rel_tol=1e-12), f"gap between tasks {before.task} and {after.task}"
    total = fsum(lap.seconds for lap in path)
    assert isclose(total, whole, rel_tol=1e-9), f"the path takes {total} s, the step {whole}"


def shares(path: Sequence[PathSegment], found: Sequence[Label]) -> dict[TaskPurpose, float]:
    """Return the path's seconds by purpose."""
    return {work: fsum(lap.seconds for lap in path if found[lap.task].work is work) for work in TaskPurpose}


def contract(
    path: Sequence[PathSegment], tasks: Sequence[Task], machine: Machine, found: Sequence[Label]
) -> tuple[Step, ...]:
    """Return the path with consecutive tasks of the same label joined into one step."""
    return tuple(_step(list(laps), tasks, machine, found) for _, laps in groupby(path, key=lambda lap: found[lap.task]))


def _step(group: Sequence[PathSegment], tasks: Sequence[Task], machine: Machine, found: Sequence[Label]) -> Step:
    chosen = [tasks[lap.task] for lap in group]
    copies = [task for task in chosen if task.kind.travels]
    links = dict.fromkeys(name for task in copies for name in link_names(task, machine).values())
    processors = dict.fromkeys(p for task in chosen for p in task.processors)
    return Step(
        found[group[0].task], group[0].start, fsum(lap.seconds for lap in group), len(chosen),
        sum(task.nbytes for task in copies), tuple(processors), tuple(links), fsum(lap.waited for lap in group),
    )


def stretches(steps: Sequence[Step], whole: float) -> tuple[Stretch, ...]:
    """Return the path, condensed: consecutive steps of one kind are joined, whatever operators they belong to. So is a step
    shorter than SHORT of the ``whole`` between two others of one kind."""
    runs = [(kind, list(run)) for kind, run in groupby(steps, key=lambda step: _kind(step.label))]
    merged: list[tuple[str, list[Step]]] = []
    for i, (kind, run) in enumerate(runs):
        short = fsum(step.seconds for step in run) < SHORT * whole
        if merged and (kind == merged[-1][0] or (short and i + 1 < len(runs) and runs[i + 1][0] == merged[-1][0])):
            merged[-1][1].extend(run)
        else:
            merged.append((kind, list(run)))
    return tuple(_stretch(kind, run) for kind, run in merged)


def _kind(label: Label) -> str:
    if label.work is TaskPurpose.TRANSFER:
        return "transfers"
    if label.work is not TaskPurpose.COMPUTE:
        return "synchronisation"
    return "backward" if label.what in ("backward", "sums of gradients") else "forward"


def _stretch(kind: str, run: Sequence[Step]) -> Stretch:
    own = [step for step in run if _kind(step.label) == kind]
    return Stretch(
        kind, run[0].start, fsum(s.seconds for s in run), _ranked((s.label.operator, s.seconds) for s in own),
        sum(s.tasks for s in run), sum(s.nbytes for s in run), tuple(dict.fromkeys(p for s in own for p in s.processors)),
        tuple(dict.fromkeys(k for s in own for k in s.links)),
        _ranked((_kind(s.label), s.seconds) for s in run if _kind(s.label) != kind),
    )


def _ranked(amounts: Iterable[tuple[str, float]]) -> tuple[tuple[str, float], ...]:
    """The sum of each name, the largest first."""
    sums: dict[str, float] = {}
    for name, seconds in amounts:
        sums[name] = sums.get(name, 0.0) + seconds
    return tuple(sorted(sums.items(), key=lambda item: -item[1]))


def operator_costs(
    names: Sequence[str], tasks: Sequence[Task], times: Times, found: Sequence[Label], path: Sequence[PathSegment],
    alike: Sequence[int],
) -> tuple[OperatorCost, ...]:
    """Return what each operator costs, in the order of ``names``, then buckets of gradients and weights; what belongs to none comes
    last, under the name ``(step)``. ``alike``: how many tasks each task stands for."""
    seconds: dict[str, dict[TaskPurpose, float]] = {}
    waiting: dict[str, float] = {}
    sent: dict[tuple[str, TaskPurpose], int] = {}
    count: dict[str, int] = {}
    for task, label, many, (ready, start, end) in zip(tasks, found, alike, times.T.tolist()):
        of = seconds.setdefault(label.operator, dict.fromkeys(TaskPurpose, 0.0))
        of[label.work] += (end - start) * many
        waiting[label.operator] = waiting.get(label.operator, 0.0) + (start - ready) * many
        count[label.operator] = count.get(label.operator, 0) + many
        if task.kind.travels:
            key = (label.operator, label.work)
            sent[key] = sent.get(key, 0) + task.nbytes * many
    critical_seconds: dict[str, float] = {}
    for lap in path:
        operator = found[lap.task].operator
        critical_seconds[operator] = critical_seconds.get(operator, 0.0) + lap.seconds
    of_graph = set(names)
    every = [name for name in names if name in seconds] + [name for name in seconds if name and name not in of_graph]
    every += [""] * ("" in seconds)
    return tuple(
        OperatorCost(
            name or "(step)", seconds[name], waiting[name], sent.get((name, TaskPurpose.TRANSFER), 0),
            sent.get((name, TaskPurpose.SYNC), 0), count[name], critical_seconds.get(name, 0.0),
        )
        for name in every
    )


def busiest(
    tasks: Sequence[Task], seconds: Sequence[float], machine: Machine, folded: FoldedResources | None = None
) -> tuple[Busy, ...]:
    """Return every processor and link in use with its busy seconds, the busiest first. They include messages that a processor
    copies by itself. ``seconds``: of each task; ``folded``: what those of a replica occupy, a link for all that are used alike."""
    count = len(machine.processors)
    used: dict[int, float] = {}
    names = {p.number: f"device {p.number}" for p in machine.processors}
    known: dict[object, tuple[int, ...]] = {}
    for task, takes in zip(tasks, seconds):
        key = task.kind, task.source, task.processors, type(task.work)
        if key not in known:
            for link, name in link_names(task, machine).items():
                names.setdefault(link if folded is None else folded.images((link,))[0], name)
            known[key] = resources(task, machine) if folded is None else folded.of(task)
        for resource in known[key]:
            used[resource] = used.get(resource, 0.0) + takes
    ranked = sorted(used.items(), key=lambda item: (-item[1], item[0]))
    return tuple(Busy(names[r], seconds, r >= count) for r, seconds in ranked)
