"""Turns: tasks wait for tasks that a processor did in turn, some turns before (`Turn`): a gather of weights for an earlier layer, a
gradient for the sum of an earlier one.

If that was in another pass, the schedule decides which one, so it is found when all passes are known. If it was two blocks before,
the blocks between are not lowered (`fewer_layers`), so it is found when the places of all layers are known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from taskflow.optimizer.evaluate.folded.repeat import TaskPlaces
from taskflow.tasks import Turn
from taskflow.tasks.lower import NotAlikeError

Doer = tuple[str, int]  # a kind, and the processor that does it in turn


@dataclass(frozen=True, slots=True)
class Turns:
    """Turns of a segment. ``ended``: the last tasks that ended a turn, in order; ``begun``: tasks that wait for the nth last
    end of the segments before. Both are given by their places among the tasks of all layers and among the lowered tasks.
    ``within``: tasks that wait for others of this segment, both among the tasks of all layers; ``lowered``: the same among those
    that are lowered."""

    ended: dict[Doer, tuple[tuple[int, int], ...]]
    begun: tuple[tuple[Doer, int, int, int], ...]
    within: tuple[tuple[int, int], ...] = ()
    lowered: tuple[tuple[int, int], ...] = ()


def turns_of(turns: Iterable[Turn], first: int, layout: TaskPlaces, most: int) -> Turns:
    """Return the turns of a segment that begins with task ``first``. ``most``: how many ended turns are needed. Raises
    NotAlikeError if a task of a layer that stands for several waits for another pass, or for a turn of others."""
    ended: dict[Doer, list[int]] = {}
    seen: dict[int, int] = {}  # instead of a task that ended a turn, for waits within the segment
    begun: list[tuple[Doer, int, int, int]] = []
    inner: list[tuple[Doer, int, int, int]] = []  # who, task, number of its turn, and how far back
    for turn in turns:
        doer, task = (turn.kind, turn.processor), turn.task - first
        if not turn.back:
            ended.setdefault(doer, []).append(task)
            if turn.seen is not None and turn.seen != turn.task:
                seen[task] = turn.seen - first
                if max(layout.copies[task], layout.copies[seen[task]]) > 1:
                    raise NotAlikeError("weights of a layer that stands for several are read again later in a pass")
        elif turn.own is not None:
            inner.append((doer, task, turn.own, turn.back))
        elif layout.copies[task] > 1:
            raise NotAlikeError("a task waits for what was done many layers before, in another pass")
        else:
            begun.append((doer, int(layout.at[task]), task, turn.back))
    every = {doer: _every_turn(tasks, layout) for doer, tasks in ended.items()}
    places = {doer: _numbers(turns) for doer, turns in every.items()}
    within: list[tuple[int, int]] = []
    lowered: list[tuple[int, int]] = []
    for doer, task, own, back in inner:
        numbers = places.get(doer, {}).get(own)
        if numbers is None or len(numbers) != layout.copies[task]:
            raise NotAlikeError("a task waits for turns that are not its own layer's")
        for copy, number in numbers:
            place = int(layout.at[task] + copy * layout.step[task])
            if number >= back:
                before, ends, *_ = every[doer][number - back]
                within.append((place, int(layout.at[seen[ends]]) if ends in seen else before))
            else:
                begun.append((doer, place, task, back - number))
        if own >= back:
            before = ended[doer][own - back]
            lowered.append((task, seen.get(before, before)))
    last = {doer: tuple((place, task) for place, task, *_ in turns[-most:]) for doer, turns in every.items()}
    return Turns(last, tuple(begun), tuple(within), tuple(lowered))


def _every_turn(tasks: Sequence[int], layout: TaskPlaces) -> list[tuple[int, int, int, int]]:
    """Return the turns of all layers, in order, of the lowered ``tasks`` that end them: place, lowered task, the number of its
    turn, and which copy. Consecutive ones of a third layer repeat together."""
    found: list[tuple[int, int, int, int]] = []
    for (many, _), some in groupby(enumerate(tasks), key=lambda one: (int(layout.copies[one[1]]), int(layout.label[one[1]]))):
        own = list(some)
        down = layout.step[own[0][1]] < 0
        for copy in reversed(range(many)) if down else range(many):
            found += [(int(layout.at[task] + copy * layout.step[task]), task, number, copy) for number, task in own]
    return found


def _numbers(turns: Sequence[tuple[int, int, int, int]]) -> dict[int, list[tuple[int, int]]]:
    """Return, by lowered turn, its copies with their numbers among the turns of all layers."""
    found: dict[int, list[tuple[int, int]]] = {}
    for number, (_, _, own, copy) in enumerate(turns):
        found.setdefault(own, []).append((copy, number))
    return found


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
        if stands:
            lowered += [(first + task, first + before) for task, before in turns.lowered]
        for doer, place, task, back in turns.begun:
            if len(before := last.get(doer, ())) >= back:
                pairs.append((at + place, before[-back][0]))
                if stands:
                    lowered.append((first + task, before[-back][1]))
        for doer, ended in turns.ended.items():
            last[doer] = [*last.get(doer, ()), *((at + place, first + task) for place, task in ended)][-most:]
    tasks, befores = np.array(pairs, np.int64).reshape(-1, 2).T
    return TurnWaits(tasks, befores, tuple(lowered))
