"""Turns: tasks wait for tasks that a processor did in turn, passes before (`Turn`): a gather of weights for an earlier layer, a
gradient for the sum of an earlier one. The schedule decides which pass that was, so it is found when all passes are known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from taskflow.optimizer.evaluate.folded.repeat import TaskPlaces
from taskflow.tasks import Turn
from taskflow.tasks.lower import NotAlikeError

Doer = tuple[str, int]  # a kind, and the processor that does it in turn


@dataclass(frozen=True, slots=True)
class Turns:
    """Turns of a segment. ``ended``: the last tasks that ended a turn, in order; ``begun``: tasks that wait for the nth last
    end of the segments before. Both are given by their places among the tasks of all layers and among the lowered tasks."""

    ended: dict[Doer, tuple[tuple[int, int], ...]]
    begun: tuple[tuple[Doer, int, int, int], ...]


def turns_of(turns: Iterable[Turn], first: int, layout: TaskPlaces, most: int) -> Turns:
    """Return the turns of a segment that begins with task ``first``. ``most``: how many ended turns are needed. Raises
    NotAlikeError if one of these is of a layer that stands for several."""
    ended: dict[Doer, list[int]] = {}
    begun: list[tuple[Doer, int, int, int]] = []

    def place(task: int) -> int:
        if layout.copies[task] > 1:
            raise NotAlikeError("a task waits for what was done many layers before, in another pass")
        return int(layout.at[task])

    for turn in turns:
        task = turn.task - first
        if turn.back:
            begun.append(((turn.kind, turn.processor), place(task), task, turn.back))
        else:
            ended.setdefault((turn.kind, turn.processor), []).append(task)
    return Turns({doer: tuple((place(task), task) for task in tasks[-most:]) for doer, tasks in ended.items()}, tuple(begun))


@dataclass(frozen=True, slots=True)
class TurnWaits:
    """``tasks[i]`` waits for ``befores[i]``, among all tasks. ``lowered``: the same for lowered tasks, for one of the
    micro-batches that each stands for."""

    tasks: np.ndarray  # type: ignore[type-arg]
    befores: np.ndarray  # type: ignore[type-arg]
    lowered: tuple[tuple[int, int], ...]


def turn_waits(segments: Iterable[tuple[Turns, int, int, bool]], most: int) -> TurnWaits:
    """Return what tasks of ``segments`` wait for. These are in order, each with the number of its first task among all and
    among the lowered tasks, and whether its waits stand for those of others like it."""
    pairs: list[tuple[int, int]] = []
    lowered: list[tuple[int, int]] = []
    last: dict[Doer, Sequence[tuple[int, int]]] = {}
    for turns, at, first, stands in segments:
        for doer, place, task, back in turns.begun:
            if len(before := last.get(doer, ())) >= back:
                pairs.append((at + place, before[-back][0]))
                if stands:
                    lowered.append((first + task, before[-back][1]))
        for doer, ended in turns.ended.items():
            last[doer] = [*last.get(doer, ()), *((at + place, first + task) for place, task in ended)][-most:]
    tasks, befores = np.array(pairs, np.int64).reshape(-1, 2).T
    return TurnWaits(tasks, befores, tuple(lowered))
