"""Age: how long what a task touches has lain untouched, and how much of it for long.

The last cache and the tables of pages are shared with programs that nobody here knows of, on a rented machine those of other
customers. There an array that lies untouched for twenty milliseconds takes up to three times as long to read as one that lies for
one, however little this step reads meanwhile (docs/benchmarks.md): so time counts beside bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log2

import numpy as np

from taskflow.graph import OperatorGraph
from taskflow.machine import Machine
from taskflow.mapper import DataParallel
from taskflow.mapper.mapper import map_graph
from taskflow.optimizer.cost_store import Measurement
from taskflow.rules import UpdateRule
from taskflow.tasks.lower import lower
from taskflow.tasks.simulate import roofline, simulate
from taskflow.tasks.task import TaskGraph

OLD = 0.1  # of a step: what was used within the last tenth counts as just used
STEPS = 16  # shares are told apart by sixteenths, so that networks share measurements
LONGEST_SECONDS = 0.032  # what lies longer is hardly slower


@dataclass(frozen=True, slots=True)
class Aged:
    """``share`` of the bytes that a task touches have lain untouched for ``seconds``; the others were just used."""

    share: float
    seconds: float

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1 or self.seconds < 0:
            raise ValueError(f"Aged: needs a share from 0 to 1 and seconds from 0 on, got {self}")

    def __str__(self) -> str:
        return f"{self.share:g} of it {self.seconds:g} s old"

    def mix(self, young: Measurement, old: Measurement) -> Measurement:
        """Of a task all of whose bytes are young, and of one with old ones."""
        seconds = (1 - self.share) * young.seconds + self.share * old.seconds
        return Measurement(seconds, max(young.spread, old.spread), young.repeats + old.repeats)


FRESH = Aged(0.0, 0.0)


def aged(graph: OperatorGraph, machine: Machine, rule: UpdateRule | None) -> Aged:
    """What a processor of ``machine`` finds in the middle of training ``graph`` with ``rule``, cut in the sample dimension: the
    share of bytes, in sixteenths, last used longer ago than a tenth of a step, and how long ago these are on the average, a power
    of two of milliseconds up to 32. By the machine's rates. Lowers and simulates one step in Python (a moment)."""
    tasks = lower(graph, map_graph(DataParallel(), graph, machine), rule)
    ages, nbytes, step = _ages(tasks, machine)
    old = ages > OLD * step
    if not old.any():
        return FRESH
    share = round(STEPS * float(nbytes[old].sum() / nbytes.sum())) / STEPS
    seconds = min(LONGEST_SECONDS, float(np.average(ages[old], weights=nbytes[old])))
    return Aged(share, 2.0 ** round(log2(max(1.0, 1e3 * seconds))) / 1e3)


def _ages(tasks: TaskGraph, machine: Machine) -> tuple[np.ndarray, np.ndarray, float]:  # type: ignore[type-arg]
    """Seconds since each read or written part's buffer was used before, on the processor with most to do, and the part's bytes;
    seconds of the step."""
    timeline = simulate(tasks, machine, roofline(machine))
    step = timeline.makespan
    work = [0.0] * len(machine.processors)
    for task in tasks.tasks:
        if not task.kind.travels:
            work[task.processor] += timeline.spans[task.number].end - timeline.spans[task.number].start
    busiest = work.index(max(work))
    mine = sorted((timeline.spans[t.number].start, t.number) for t in tasks.tasks if t.processor == busiest and not t.kind.travels)
    used: dict[int, float] = {}
    ages, nbytes = [], []
    for turn in (0, 1):  # the second step finds what the first has left
        for start, number in mine:
            task, end = tasks.tasks[number], timeline.spans[number].end
            for part in (*task.reads, *task.writes):
                if turn:
                    ages.append(max(0.0, start + step - used[part.buffer]))
                    nbytes.append(part.rect.volume * tasks.buffers[part.buffer].dtype.itemsize)
                used[part.buffer] = turn * step + end
    return np.array(ages), np.array(nbytes, dtype=float), step
