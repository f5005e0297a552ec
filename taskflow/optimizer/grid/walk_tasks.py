"""WalkTasks: the tasks of a walk, as arrays for the simulator: steps, and the collectives that they wait for.

There is one device, which runs its steps in order and between them the copies from and to shares, and its links. The others of
its tensor-parallel group do the same at the same time, so their links need not be looked at. Tasks are numbered as lowering does,
since of those that are ready at the same time the lower number goes first. What brings something to a step comes before it; the
reductions of what it completes come right after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from taskflow.optimizer.grid.shortened import Walk, WalkStep
from taskflow.tasks import TICKS

try:
    from taskflow.optimizer.evaluate.folded._arrays import simulate_arrays
except ImportError:  # not built: no compiler
    from taskflow.optimizer.evaluate.folded import simulate_arrays

DEVICE, OWN, APART, BOTH = 0, 1, 2, 3
"""What a task occupies: the device, its links, others that are not used for all weights, or both kinds of links."""
OCCUPIED, TOGETHER = [(DEVICE,), (OWN,), (APART,), (OWN, APART)], [False, False, False, True]


@dataclass(frozen=True, slots=True)
class Travel:
    """Seconds of a collective of weights or gradients; ``copies``: of the device's copy from its share (before a gather), or to it
    (after a reduction). ``meets``: whether it uses links that collectives of other things use, too."""

    seconds: float
    copies: float
    meets: bool


Travels = Mapping[str, Sequence[Travel]]
"""By name of weights, the collectives by which they are gathered, or their gradients reduced."""

Walked = tuple[tuple[float, float, float], list[tuple[float, float]]]
"""Seconds of a forward and a backward pass of the kept layers, and for how long the links are taken by reductions after the latter;
and of each run the seconds of one period more."""


@dataclass(frozen=True, slots=True)
class WalkShape:
    """What tasks a walk has. ``sent``: of each collective that is not of weights whether it takes time; ``gathers``, ``reduces``:
    for each name of `Walk.names` its collectives, of each whether it uses links that those others use (`Travel.meets`)."""

    sent: tuple[bool, ...]
    gathers: tuple[tuple[bool, ...], ...]
    reduces: tuple[tuple[bool, ...], ...]


class WalkTasks:
    """The tasks of a walk. ``nodes``, ``back``, ``again``: of each step, as in `WalkStep`."""

    def __init__(self, walk: Walk, shape: WalkShape) -> None:
        self.walk, self.shape = walk, shape
        self.nodes = np.array([step.node for step in walk.steps], np.int64)
        self.back = np.array([step.back for step in walk.steps], np.int64)
        self.again = np.array([step.again for step in walk.steps], np.int64)
        self._seconds: list[int] = []  # of each task, where they are among those of steps, collectives and travels
        self._places: list[int] = []
        self._after: list[list[int]] = []
        self._steps: list[int] = []  # the task of each step
        self._sent: list[int] = []  # those of reductions on links
        self._ends: dict[int, list[int]] = {}  # the tasks that a collective ends with
        self._begin = {gather: at for at, step in enumerate(walk.steps) for gather in step.begins}
        self._begin |= {sent: at for at, step in enumerate(walk.steps) for sent in step.sends}
        first = len(walk.steps) + len(walk.collectives)
        meeting = {meets for of in (shape.gathers, shape.reduces) for each in of for meets in each}
        self._others = OWN if meeting == {True} else APART
        # By name and whether reduced: where their seconds are, and what each occupies.
        self._travels: dict[tuple[str, bool], list[tuple[int, int]]] = {}
        for reduced, of in ((False, shape.gathers), (True, shape.reduces)):
            for name, each in zip(walk.names, of):
                links = [BOTH if meets and len(meeting) > 1 else OWN for meets in each]
                self._travels[name, reduced] = list(zip(range(first, first := first + 2 * len(each), 2), links))
        for step in walk.steps:
            self._step(step)
        self._arrays = [
            np.array(one, np.int64) for one in (
                self._seconds, self._places, [0, *np.cumsum([len(one) for one in self._after])], list(chain(*self._after)),
                self._steps,
            )
        ]  # fmt: skip

    def seconds(self, steps: Sequence[float], reads: Sequence[float], travels: Sequence[float]) -> Walked:
        """Return the seconds of passes over the kept layers. ``steps``: seconds of each step; ``reads``: of each collective that is
        not of weights; ``travels``: `listed` gathers and reductions."""
        source, place, offset, after, own = self._arrays
        seconds = np.ceil(np.array([*steps, *reads, *travels])[source] * TICKS) / TICKS
        _, _, ends, _ = simulate_arrays(1, OCCUPIED, TOGETHER, seconds, place, offset, after, _go_on)
        (ahead, back), periods = _added_up(self.walk, ends[own].tolist())
        taken = float(ends[self._sent[-1]]) - float(ends[own[self.walk.ends[1][0]]]) if self._sent else 0.0
        return (ahead, back, max(0.0, taken)), periods

    def _step(self, step: WalkStep) -> None:
        for number in step.waits:
            if number not in self._ends:
                self._ends[number] = self._brought(number)
        after = self._steps[-1:] + [task for number in step.waits for task in self._ends[number]]
        self._steps.append(self._add(len(self._steps), DEVICE, after))
        for number in step.reduces:
            self._ends[number] = ends = []
            travels = self._travels[str(self.walk.collectives[number]), True]
            complete = self.walk.complete.get(number, (len(self._steps) - 1,) * len(travels))
            for (at, links), ready in zip(travels, complete):
                sent = self._add(at, links, [self._steps[ready]])
                self._sent.append(sent)
                ends.append(self._add(at + 1, DEVICE, [sent]))

    def _brought(self, number: int) -> list[int]:
        """Add a gather, or another collective that is not a reduction; return the tasks that it ends with."""
        shape, what = self.shape, self.walk.collectives[number]
        after = [self._steps[self._begin[number]]] if number in self._begin else []
        if isinstance(what, str):
            copies = [(at, links, self._add(at + 1, DEVICE, after)) for at, links in self._travels[what, False]]
            return [self._add(at, links, [copy]) for at, links, copy in copies]
        return [self._add(len(self.walk.steps) + number, self._others, after)] if shape.sent[number] else []

    def _add(self, seconds: int, place: int, after: list[int]) -> int:
        self._seconds.append(seconds)
        self._places.append(place)
        self._after.append(after)
        return len(self._places) - 1


def listed(walk: Walk, *travels: Travels) -> list[float]:
    """Return the seconds of gathers, then of reductions, as `WalkTasks.seconds` takes them."""
    return [second for of in travels for name in walk.names for one in of[name] for second in (one.seconds, one.copies)]


def _go_on() -> None:
    """A walk takes too little time to be broken off."""


def _added_up(walk: Walk, ends: Sequence[float]) -> tuple[tuple[float, float], list[tuple[float, float]]]:
    """The seconds of the backward pass, and of the forward pass after it. ``ends``: of the steps."""
    tail, backward, forward = walk.ends
    last, middle = ends[tail[max(tail)]], ends[backward[0]]
    periods = []
    for run in walk.runs:
        ahead = ends[forward[run.end - 1]] - ends[forward[run.first[-1] - 1]]
        periods.append((ahead, ends[backward[run.first[0]]] - ends[backward[run.first[1]]]))
    return (ends[forward[max(forward)]] - middle, middle - last), periods
