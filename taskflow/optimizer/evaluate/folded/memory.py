"""Memory of a folded step: what each processor needs, and the arena that holds the buffers of those of the first replica."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from taskflow.mapper import PassKind
from taskflow.optimizer.evaluate.folded.needs import LastNeeds, last_needs
from taskflow.optimizer.evaluate.folded.repeat import TaskPlaces, every_pair
from taskflow.optimizer.evaluate.folded.step import FoldedStep
from taskflow.optimizer.evaluate.folded.template import Segment
from taskflow.optimizer.memory import MemoryProfile, MemoryUse, kept_bytes, packed_bytes
from taskflow.tasks import ALIGNMENT, Kind, Task, plan_places, rooms

Array = np.ndarray  # type: ignore[type-arg]


@dataclass(frozen=True, slots=True)
class ArrayLives:
    """Lifetimes: processor, bytes, and the positions of the first and the last use."""

    processor: Array
    nbytes: Array
    first: Array
    last: Array


def folded_use(step: FoldedStep, checkpoint: Callable[[], object] = lambda: None) -> tuple[MemoryUse, ...]:
    """Return the memory of every processor, as `memory_use` does for a whole step."""
    tasks = step.lowered
    checkpoint()
    weights, state, _ = kept_bytes(tasks, step.template.buffer_copies)
    checkpoint()
    packed = [0] * tasks.processors
    repeats = np.bincount(step.whole.origin, minlength=len(tasks)).tolist()
    for task, repeat in zip(tasks, repeats):
        if task.kind is Kind.COPY:
            packed[task.source] += repeat * packed_bytes(tasks, task.reads[0])
            packed[task.processor] += repeat * packed_bytes(tasks, task.writes[0])
    arenas = _arenas(step, checkpoint)
    found = {
        image: MemoryUse(image, weights[p], state[p], arenas[p][1], packed[p], arenas[p][0] - arenas[p][1])
        for p, images in step.replicas.images.items() for image in images
    }
    return tuple([found[p] if p in found else MemoryUse(p, 0, 0, 0, 0) for p in range(tasks.processors)])


def folded_profile(step: FoldedStep) -> tuple[MemoryProfile, ...]:
    """Return what lives when on each processor of the first replica, as `memory_profile` does for a whole step. The time of a task
    is when it begins."""
    uses, lives = folded_use(step), _lives(step, lambda: None)
    began = np.sort(step.began)  # by position
    size = np.maximum(ALIGNMENT, -(-lives.nbytes // ALIGNMENT) * ALIGNMENT)
    found = []
    for processor in sorted(step.replicas.images):
        here, use = lives.processor == processor, uses[processor]
        at = np.concatenate([lives.first[here], lives.last[here] + 1])
        by = np.concatenate([size[here], -size[here]])
        times, which = np.unique(np.append(0, at), return_inverse=True)
        change = np.bincount(which[1:], by, len(times)).astype(np.int64)
        live = use.nbytes - use.buffers + np.cumsum(change)
        found.append(MemoryProfile(use, began[np.minimum(times, len(began) - 1)] if len(began) else times * 0.0, live))
    return tuple(found)


def _lives(step: FoldedStep, checkpoint: Callable[[], object]) -> ArrayLives:
    position = _positions(step)
    return _Finder(step, position, last_needs(step, position), checkpoint).lives()


def _arenas(step: FoldedStep, checkpoint: Callable[[], object]) -> dict[int, tuple[int, int]]:
    """Return, by processor of the first replica, the bytes of the arena for arrays that are not kept from step to step, and the
    most of them that live at once. An array lives as in the runtime's plan (`taskflow.tasks.lifetimes`): from the turn of the
    first task that uses it to that of the last one. What is sent, and what a collective takes, lives until the first task that
    needs the result."""
    lives = _lives(step, checkpoint)
    found = {}
    small = lives.processor.astype(np.uint16 if step.lowered.processors < 1 << 16 else np.int64)  # which is soon sorted
    by_processor = np.argsort(small, kind="stable")
    ends = np.cumsum(np.bincount(lives.processor, minlength=step.lowered.processors))
    for processor in step.replicas.images:
        checkpoint()
        here = by_processor[ends[processor - 1] if processor else 0 : ends[processor]]
        here = here[np.argsort(lives.first[here], kind="stable")]
        _, arena, most = plan_places(*(of[here] for of in (lives.nbytes, lives.first, lives.last)))
        found[processor] = arena, most
    return found


def _positions(step: FoldedStep) -> Array:
    """Return the place of each task of the whole step in the order in which they begin, near to that of `Timeline.begun`. Among
    equals what travels comes first. No task comes before one that it waits for, which begins when it does if it takes no time."""
    whole, began = step.whole, step.began
    later, before = np.repeat(np.arange(len(began)), np.diff(whole.after_offset)), whole.after
    equal = began[later] == began[before]
    later, before = later[equal], before[equal]
    behind = np.zeros(len(began), np.int64)  # how many tasks of a chain of equals are before it
    while (short := behind[later] <= behind[before]).any():
        np.maximum.at(behind, later[short], behind[before[short]] + 1)
    travels = np.array([task.kind.travels for task in step.lowered], bool)[whole.origin]
    order = np.lexsort((~travels, behind, began))
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    return position


Instance = tuple[int, int]  # an array, and for which of its layers
NOWHERE = (np.zeros(0, np.int64),) * 2


class _Finder:
    """Finds the lifetimes of all arrays: those of a micro-batch once for each micro-batch like it, those of a layer once for
    each layer like it."""

    def __init__(self, step: FoldedStep, position: Array, needed: LastNeeds, checkpoint: Callable[[], object]) -> None:
        self.step, self.position, self.needed, self.checkpoint = step, position, needed, checkpoint
        graph = step.lowered
        self.roots = [b.number if b.base is None else b.base for b in graph.buffers]
        self.counted = [not graph.buffers[r].kept for r in self.roots]
        self.maker: dict[int, int | None] = {}  # array -> which of the lowered micro-batches makes it; None: none of them
        self.sizes: dict[int, tuple[int, int]] = {}  # array -> (processor, bytes)
        self.layer: dict[int, tuple[int, int]] = {}  # array -> the label of its layer, and for how many layers it is
        self.twin: dict[int, int] = {}  # array of a second layer -> the third one's that is like it
        self.first: dict[Instance, Array] = {}  # by micro-batch of those that are like its maker
        self.last: dict[Instance, Array] = {}

    def lives(self) -> ArrayLives:
        template, whole, like = self.step.template, self.step.whole, self.step.template.like
        count = max(like) + 1
        numbers = [np.array([i for i, c in enumerate(like) if c == of]) for of in range(count)]
        parts: list[tuple[int | None, Segment, Array]] = [(None, template.before, np.zeros(1, np.int64))]
        for (kind, stage, of), segment in template.passes.items():
            parts.append((of, segment, self._begins(kind, stage)[numbers[of]]))
        parts.append((None, template.after, np.array([whole.end], np.int64)))
        for which, segment, bases in parts:
            self.checkpoint()
            self._use(which, segment, bases, numbers)
        fetched = {self.roots[buffer] for buffer in self.step.lowered.fetched.values()}
        for one in self.last:
            if one[0] in fetched:
                self.last[one] = np.full_like(self.last[one], len(self.position))
        repeats = [len(first) for first in self.first.values()]
        sizes = [self.sizes[key] for key, _ in self.first]
        return ArrayLives(
            np.repeat([processor for processor, _ in sizes], repeats), np.repeat([nbytes for _, nbytes in sizes], repeats),
            np.concatenate(list(self.first.values())), np.concatenate([self.last[one] for one in self.first]),
        )

    def _begins(self, kind: PassKind, stage: int) -> Array:
        return self.step.whole.begins[kind, stage]

    def _use(self, of: int | None, segment: Segment, bases: Array, numbers: list[Array]) -> None:
        """Record the uses by a segment's tasks, which are placed at ``bases``."""
        uses: list[tuple[int, int]] = []  # tasks and arrays
        new_of_task: list[list[int]] = []  # by task
        for local, task in enumerate(self.step.lowered.tasks[segment.first : segment.first + segment.count]):
            keys, new = self._keys(task, of, segment, local)
            uses += [(local, key) for key in keys]
            new_of_task.append(new)
        for local in np.flatnonzero(segment.layout.twin >= 0).tolist():
            self.twin.update(zip(new_of_task[local], new_of_task[segment.layout.twin[local]]))
        for own in (True, False):
            some = [use for use in uses if (self.maker[use[1]] == of) == own]
            if some:
                self._add(some, segment, bases, None if own else numbers)

    def _add(
        self, uses: Sequence[tuple[int, int]], segment: Segment, bases: Array, numbers: list[Array] | None
    ) -> None:
        """Record uses of arrays by a segment's tasks: arrays of the same micro-batches or, with ``numbers``, of others."""
        keys = list(dict.fromkeys(key for _, key in uses))
        keys = list(dict.fromkeys([*keys, *(self.twin[key] for key in keys if key in self.twin)]))
        dense = {key: i for i, key in enumerate(keys)}
        labels = [self.layer[key] for key in keys]
        arrays = TaskPlaces(
            np.array([label for label, _ in labels]), np.array([dense.get(self.twin.get(key, -1), -1) for key in keys]),
            np.array([copies for _, copies in labels]), *NOWHERE, 0,
        )
        which, used = np.array(uses).T
        tasks, task_copy, of_array, copy = every_pair(
            segment.layout, which, arrays, np.array([dense[key] for key in used.tolist()]), strict=False
        )
        order = np.lexsort((copy, of_array))
        of_array, copy = of_array[order], copy[order]
        starts = np.flatnonzero(np.concatenate([[True], (np.diff(of_array) != 0) | (np.diff(copy) != 0)]))
        at = bases[:, None] + segment.layout.place(tasks, task_copy)[order]
        begins = np.minimum.reduceat(self.position[at], starts, axis=1)
        here = np.array([self.sizes[key][0] for key in keys])[of_array]
        ends = np.maximum.reduceat(self.needed.until(at, here), starts, axis=1)
        for i, one in enumerate(zip([keys[k] for k in of_array[starts].tolist()], copy[starts].tolist())):
            low, high = begins[:, i], ends[:, i]
            if numbers is not None:
                maker = self.maker[one[0]]
                count = 1 if maker is None else len(numbers[maker])
                low, high = np.full(count, low.min()), np.full(count, high.max())
            self.first[one] = np.minimum(self.first[one], low) if one in self.first else low
            self.last[one] = np.maximum(self.last[one], high) if one in self.last else high

    def _keys(self, task: Task, of: int | None, segment: Segment, local: int) -> tuple[list[int], list[int]]:
        """The arrays that a task uses, including those in which it lays out weights, and which of these are new."""
        layer = int(segment.layout.label[local]), int(segment.layout.copies[local])
        found = dict.fromkeys(self.roots[p.buffer] for p in (*task.reads, *task.writes) if self.counted[p.buffer])
        new = [key for key in found if key not in self.maker]
        for key in new:
            buffer = self.step.lowered.buffers[key]
            self.maker[key], self.sizes[key], self.layer[key] = of, (buffer.processor, buffer.nbytes), layer
        if task.kind is Kind.FORWARD:
            for buffer_number, nbytes in rooms(task.work).items():
                key = ~buffer_number
                self.maker[key], self.sizes[key], self.layer[key] = None, (task.processor, nbytes), layer
                found[key] = None
        return list(found), new
