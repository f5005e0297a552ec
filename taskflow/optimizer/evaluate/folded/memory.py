"""Memory of a folded step: what each processor needs, and the arena that holds the buffers of those of the first replica."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from taskflow.mapper import PassKind
from taskflow.optimizer.evaluate.folded.needs import LastNeeds, last_needs
from taskflow.optimizer.evaluate.folded.repeat import NONE, TaskPlaces, every_copy, every_pair
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


NO_PLACES = (np.zeros(0, np.int64),) * 2
NEVER = np.iinfo(np.int64).max  # the first use of what is not used
Uses = tuple[Array, Array]  # which of a segment's tasks, and which array it uses


class _Finder:
    """Finds the lifetimes of all arrays: those of a micro-batch once for each micro-batch like it, those of a layer once for
    each layer like it. Arrays are numbered in the order in which tasks use them first."""

    def __init__(self, step: FoldedStep, position: Array, needed: LastNeeds, checkpoint: Callable[[], object]) -> None:
        self.step, self.position, self.needed, self.checkpoint = step, position, needed, checkpoint
        graph = step.lowered
        self.roots = [b.number if b.base is None else b.base for b in graph.buffers]
        self.counted = [not graph.buffers[r].kept for r in self.roots]
        self.number: dict[int, int] = {}  # of arrays, by their buffer; of rooms for weights, by ~buffer
        self.maker: list[int] = []  # by array: which of the lowered micro-batches makes it; NONE: none of them
        self.sizes: list[tuple[int, int]] = []  # by array: processor and bytes
        self.layer: list[tuple[int, int]] = []  # by array: the label of its layer, and for how many layers it is
        self.twin: dict[int, int] = {}  # array of a second layer -> the third one's that is like it

    def lives(self) -> ArrayLives:
        template, whole, like = self.step.template, self.step.whole, self.step.template.like
        numbers = [np.array([i for i, c in enumerate(like) if c == of]) for of in range(max(like) + 1)]
        parts: list[tuple[int, Segment, Array]] = [(NONE, template.before, np.zeros(1, np.int64))]
        for (kind, stage, of), segment in template.passes.items():
            parts.append((of, segment, self._begins(kind, stage)[numbers[of]]))
        parts.append((NONE, template.after, np.array([whole.end], np.int64)))
        uses = [self._uses(of, segment) for of, segment, _ in parts]
        room = _Room(self.maker, self.layer, self.twin, [len(of) for of in numbers])
        processor, nbytes = np.array(self.sizes, np.int64).reshape(-1, 2).T
        for (of, segment, bases), (tasks, arrays) in zip(parts, uses):
            self.checkpoint()
            own = room.maker[arrays] == of
            for some in (own, ~own):
                if some.any():
                    self._add(tasks[some], arrays[some], segment, bases, room, processor, some is own)
        fetched = [self.number.get(self.roots[buffer]) for buffer in self.step.lowered.fetched.values()]
        room.last[np.isin(room.array, [number for number in fetched if number is not None])] = len(self.position)
        used = room.first < NEVER
        array = room.array[used]
        return ArrayLives(processor[array], nbytes[array], room.first[used], room.last[used])

    def _begins(self, kind: PassKind, stage: int) -> Array:
        return self.step.whole.begins[kind, stage]

    def _uses(self, of: int, segment: Segment) -> Uses:
        """Return the uses by a segment's tasks."""
        tasks: list[int] = []
        arrays: list[int] = []
        new_of_task: list[list[int]] = []  # by task
        for local, task in enumerate(self.step.lowered.tasks[segment.first : segment.first + segment.count]):
            found, new = self._arrays(task, of, segment, local)
            tasks += [local] * len(found)
            arrays += found
            new_of_task.append(new)
        for local in np.flatnonzero(segment.layout.twin >= 0).tolist():
            self.twin.update(zip(new_of_task[local], new_of_task[segment.layout.twin[local]]))
        return np.array(tasks, np.int64), np.array(arrays, np.int64)

    def _add(
        self, which: Array, used: Array, segment: Segment, bases: Array, room: _Room, processor: Array, own: bool
    ) -> None:
        """Record uses of arrays by a segment's tasks, which are placed at ``bases``: of arrays of the same micro-batches
        (``own``) or of others."""
        tasks, task_copy, arrays, copy = every_pair(segment.layout, which, room.arrays, used, strict=False)
        order = np.lexsort((copy, arrays))
        arrays, copy = arrays[order], copy[order]
        starts = np.flatnonzero(np.concatenate([[True], (np.diff(arrays) != 0) | (np.diff(copy) != 0)]))
        at = bases[:, None] + segment.layout.place(tasks, task_copy)[order]
        begins = np.minimum.reduceat(self.position[at], starts, axis=1)
        ends = np.maximum.reduceat(self.needed.until(at, processor[arrays]), starts, axis=1)
        if not own:
            begins, ends = begins.min(axis=0, keepdims=True), ends.max(axis=0, keepdims=True)
        room.widen(arrays[starts], copy[starts], begins, ends)

    def _arrays(self, task: Task, of: int, segment: Segment, local: int) -> tuple[list[int], list[int]]:
        """The arrays that a task uses, including those in which it lays out weights, and which of these are new."""
        layer = int(segment.layout.label[local]), int(segment.layout.copies[local])
        found = dict.fromkeys(self.roots[p.buffer] for p in (*task.reads, *task.writes) if self.counted[p.buffer])
        new = []
        for key in found:
            if key not in self.number:
                buffer = self.step.lowered.buffers[key]
                new.append(self._numbered(key, of, (buffer.processor, buffer.nbytes), layer))
        if task.kind is Kind.FORWARD:
            for buffer_number, nbytes in rooms(task.work).items():
                if (key := ~buffer_number) not in self.number:
                    self._numbered(key, NONE, (task.processor, nbytes), layer)
                found[key] = None
        return [self.number[key] for key in found], new

    def _numbered(self, key: int, maker: int, size: tuple[int, int], layer: tuple[int, int]) -> int:
        self.maker.append(maker)
        self.sizes.append(size)
        self.layer.append(layer)
        return self.number.setdefault(key, len(self.number))


class _Room:
    """First and last uses of arrays: of each array for each of its layers, there for each micro-batch like its maker. ``array``:
    by entry."""

    def __init__(
        self, maker: Sequence[int], layer: Sequence[tuple[int, int]], twin: Mapping[int, int], alike: Sequence[int]
    ) -> None:
        label, copies = np.array(layer, np.int64).reshape(-1, 2).T
        like = np.full(len(label), NONE)
        if twin:
            like[[*twin]] = [*twin.values()]
        self.maker = np.array(maker, np.int64)
        self.arrays = TaskPlaces(label, like, copies, *NO_PLACES, 0)
        self._width = np.array([*alike, 1], np.int64)[self.maker]  # NONE is the last
        self._start = np.cumsum(copies * self._width) - copies * self._width
        self.array = np.repeat(np.arange(len(label)), copies * self._width)
        self.first, self.last = np.full(len(self.array), NEVER), np.full(len(self.array), NONE)

    def widen(self, array: Array, copy: Array, begins: Array, ends: Array) -> None:
        """Let copies of arrays live from ``begins`` to ``ends``: a row for each micro-batch, or one for all."""
        width = self._width[array]
        at, within = every_copy(self._start[array] + copy * width, width)
        at += within
        columns, rows = np.repeat(np.arange(len(array)), width), within if len(begins) > 1 else 0
        self.first[at] = np.minimum(self.first[at], begins[rows, columns])
        self.last[at] = np.maximum(self.last[at], ends[rows, columns])
