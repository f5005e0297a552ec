"""Repetition of layers: the places of the tasks of layers that were not lowered, and what they wait for (`fewer_layers`).

Tasks of a third layer stand for those of all layers between the second and the last. The third layer shows what each of these
waits for in the previous layer, and the second what it waits for in the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from taskflow.optimizer.evaluate.folded.layers import KEPT, Label
from taskflow.tasks import Task
from taskflow.tasks.lower import NotAlikeError

Array = np.ndarray  # type: ignore[type-arg]
FIRST, SECOND, THIRD, LAST = 0, 1, 2, 3  # of the layers that are kept
NONE = -1  # no task


@dataclass(frozen=True, slots=True)
class TaskPlaces:
    """A list of tasks, or of arrays, some of which stand for several. ``label``: KEPT times the group of layers, plus the
    number of the kept layer; or NONE. ``twin``: for an entry of a second layer, the entry of the third that is like it, else
    NONE. ``copies``: for how many each entry stands. Copy j of entry i is at ``at[i] + j * step[i]`` among the ``count`` places
    of all."""

    label: Array
    twin: Array
    copies: Array
    at: Array
    step: Array
    count: int

    def place(self, which: Array, copy: Array) -> Array:
        """Return the places of copies."""
        return self.at[which] + copy * self.step[which]  # type: ignore[no-any-return]

    @property
    def origin(self) -> Array:
        """Return the entry at each place."""
        return self._at_places(lambda which, copy: which)

    @property
    def copy(self) -> Array:
        """Return which copy of its entry is at each place: of a third layer's, how many layers it comes after that."""
        return self._at_places(lambda which, copy: copy)

    def _at_places(self, of: Callable[[Array, Array], Array]) -> Array:
        found = np.empty(self.count, np.int64)
        which, copy = every_copy(np.arange(len(self.at)), self.copies)
        found[self.place(which, copy)] = of(which, copy)
        return found


def every_copy(which: Array, copies: Array) -> tuple[Array, Array]:
    """Return the number of each entry once for each of its copies, and the numbers of the copies."""
    repeated = np.repeat(which, copies)
    return repeated, np.arange(len(repeated)) - np.repeat(np.cumsum(copies) - copies, copies)


def lay_out(tasks: Sequence[Task], labels: Mapping[str, Label], copies: Sequence[int]) -> TaskPlaces:
    """Return the places of consecutive tasks, including those that were not lowered. The copies of each stretch of a third
    layer's tasks follow each other, in the direction in which the layers do there. Raises NotAlikeError if a second layer's
    tasks are not like a third one's."""
    coded = {name: KEPT * group + kept for name, (group, kept) in labels.items()}
    label = np.array([coded.get(task.topic.name, NONE) for task in tasks], np.int64)
    count = len(tasks)
    twin = np.full(count, NONE, np.int64)
    for group in range(len(copies)):
        second, third = (np.flatnonzero(label == KEPT * group + kept) for kept in (SECOND, THIRD))
        if len(second) != len(third) or any(
            _sign(tasks[a]) != _sign(tasks[b]) for a, b in zip(second.tolist(), third.tolist())
        ):
            raise NotAlikeError(f"layers differ in what {tasks[0].topic if tasks else ''} and others are for")
        twin[second] = third
    third = np.flatnonzero((label >= 0) & (label % KEPT == THIRD))
    many = np.ones(count, np.int64)
    many[third] = np.array(copies, np.int64)[label[third] // KEPT] if len(third) else 1
    at, step = np.cumsum(many) - many, np.zeros(count, np.int64)
    for low, high in _stretches(label, third):
        n, length, begin = int(many[low]), high - low, int(at[low])
        within = np.arange(length)
        down = _next_kept(label, low, high) == SECOND
        at[low:high] = begin + within + (length * (n - 1) if down else 0)
        step[low:high] = -length if down else length
    return TaskPlaces(label, twin, many, at, step, int(many.sum()))


def _sign(task: Task) -> tuple[object, ...]:
    return task.kind, task.processor, task.source, task.flops, task.nbytes, task.runs, task.topic.purpose


def _stretches(label: Array, third: Array) -> list[tuple[int, int]]:
    """Stretches of consecutive tasks of third layers, as (from, to)."""
    if not len(third):
        return []
    ends = np.flatnonzero((np.diff(third) > 1) | (np.diff(label[third]) != 0))
    lows, highs = third[np.concatenate([[0], ends + 1])], third[np.concatenate([ends, [len(third) - 1]])] + 1
    return [(int(low), int(high)) for low, high in zip(lows, highs)]


def _next_kept(label: Array, low: int, high: int) -> int:
    """The kept layer of the group that comes after a stretch. If none does: the second layer if the last one comes before the
    stretch, else the last."""
    group = label[low] // KEPT
    after = [int(one) % KEPT for one in label[high:] if one >= 0 and one // KEPT == group and one % KEPT != THIRD][:1]
    before = [int(one) % KEPT for one in label[:low][::-1] if one >= 0 and one // KEPT == group and one % KEPT != THIRD][:1]
    if after:
        return after[0]
    return SECOND if before == [LAST] else LAST


Pairs = tuple[Array, Array, Array, Array]  # tasks and their copies, what they wait for (or use) and its copies


def every_pair(tasks: TaskPlaces, which: Array, others: TaskPlaces, befores: Array, strict: bool = True) -> Pairs:
    """Return all pairs of copies in which ``which[i]`` waits for ``befores[i]``. Raises NotAlikeError (if ``strict``) if layers
    wait for others than the next, or some for something that others do not wait for."""
    a, b = tasks.label[which], others.label[befores]
    kept, of = np.where(a >= 0, a % KEPT, NONE), np.where(b >= 0, b % KEPT, NONE)
    together = (a >= 0) & (b >= 0) & (a // KEPT == b // KEPT)
    third, for_third = kept == THIRD, of == THIRD
    if strict and ((a >= 0) | (b >= 0)).any():
        _verify(tasks, which, others, befores, kept, of, together)
    if not third.any() and not for_third.any():
        zero = np.zeros(len(which), np.int64)
        return which, zero, befores, zero
    n = np.maximum(tasks.copies[which], others.copies[befores])
    second_first = together & (kept == SECOND) & for_third
    last_first = together & (kept == LAST) & for_third
    own = together & third & for_third
    to_second, to_last = together & third & (of == SECOND), together & third & (of == LAST)
    found: list[Pairs] = []

    def add(mask: Array, task_copy: Array | int, before_copy: Array | int) -> None:
        rows = np.flatnonzero(mask)
        zero = np.zeros(len(rows), np.int64)
        found.append((which[rows], zero + task_copy, befores[rows], zero + before_copy))

    def add_all(mask: Array, task_moves: bool, before_moves: bool) -> None:
        rows = np.flatnonzero(mask)
        rows, j = every_copy(rows, n[rows])
        found.append((which[rows], j * task_moves, befores[rows], j * before_moves))

    add((~third & ~for_third) | second_first | to_second, 0, 0)
    add(last_first, 0, n[last_first] - 1)
    add(to_last, n[to_last] - 1, 0)
    add_all(own, True, True)
    add_all(third & ~own & ~to_second & ~to_last, True, False)
    add_all(for_third & ~own & ~second_first & ~last_first, False, True)
    # From one copy to the next: a later one waits as the third does for the second, an earlier one as the second for the third.
    rows = np.flatnonzero(to_second & (others.twin[befores] != NONE))
    rows, j = every_copy(rows, n[rows] - 1)
    found.append((which[rows], j + 1, others.twin[befores[rows]], j))
    rows = np.flatnonzero(second_first & (tasks.twin[which] != NONE))
    rows, j = every_copy(rows, n[rows] - 1)
    found.append((tasks.twin[which[rows]], j, befores[rows], j + 1))
    a, i, b, k = (np.concatenate([one[part] for one in found]) for part in range(4))
    return a, i, b, k


def _verify(
    tasks: TaskPlaces, which: Array, others: TaskPlaces, befores: Array, kept: Array, of: Array, together: Array
) -> None:
    """Raise NotAlikeError unless layers wait for the next ones only, and the second and the third for the same."""
    far, size = together & (abs(kept - of) == THIRD), len(others.label)
    # But all of them may wait for the first one, as sums of gradients do that begin when the last backward pass has ended.
    of_seconds = together & (kept == SECOND) & (of == FIRST)
    for_first = np.isin(which * size + befores, tasks.twin[which[of_seconds]] * size + befores[of_seconds])
    if (far & ~(for_first & (of == FIRST))).any():
        raise NotAlikeError("layers wait for others than the next")
    if (~together & (kept == THIRD) & (of == THIRD)).any():
        raise NotAlikeError("layers of one group wait for those of another")

    def same(second: Array, third: Array, map_task: bool, map_before: bool) -> None:
        task = tasks.twin[which[second]] if map_task else which[second]
        before = others.twin[befores[second]] if map_before else befores[second]
        if not np.array_equal(np.unique(task * size + before), np.unique(which[third] * size + befores[third])):
            raise NotAlikeError("a layer waits for what another one does not wait for")

    same(together & (kept == SECOND) & (of == SECOND), together & (kept == THIRD) & (of == THIRD), True, True)
    same(~together & (kept == SECOND), ~together & (kept == THIRD), True, False)
    same(~together & (of == SECOND), ~together & (of == THIRD), False, True)
