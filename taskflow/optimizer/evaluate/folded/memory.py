"""Memory of a folded step: what each processor needs, and how many bytes live at once on those of the first replica."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from taskflow.mapper import PassKind
from taskflow.optimizer.evaluate.folded.step import FoldedStep
from taskflow.optimizer.evaluate.folded.template import Segment
from taskflow.optimizer.memory import MemoryUse, kept_bytes, packed_bytes
from taskflow.tasks import ALIGNMENT, Kind, Task, rooms

Array = np.ndarray  # type: ignore[type-arg]


@dataclass(frozen=True, slots=True)
class _Lives:
    """Lifetimes: processor, bytes, and the positions of the first and the last use."""

    processor: Array
    nbytes: Array
    first: Array
    last: Array


def folded_use(step: FoldedStep, checkpoint: Callable[[], object] = lambda: None) -> tuple[MemoryUse, ...]:
    """What every processor needs, as `memory_use` says it of a whole step; ``buffers`` are `live_bytes`."""
    tasks = step.lowered
    weights, state, _ = kept_bytes(tasks)
    packed = [0] * tasks.processors
    repeats = np.bincount(step.whole.origin, minlength=len(tasks)).tolist()
    for task, repeat in zip(tasks, repeats):
        if task.kind is Kind.COPY:
            packed[task.source] += repeat * packed_bytes(tasks, task.reads[0])
            packed[task.processor] += repeat * packed_bytes(tasks, task.writes[0])
    live = live_bytes(step, checkpoint)
    found = [MemoryUse(p, 0, 0, 0, 0) for p in range(tasks.processors)]
    for p, images in step.replicas.images.items():
        for image in images:
            found[image] = MemoryUse(image, weights[p], state[p], live[p], packed[p])
    return tuple(found)


def live_bytes(step: FoldedStep, checkpoint: Callable[[], object] = lambda: None) -> dict[int, int]:
    """By processor of the first replica, the most bytes that live at once in arrays that are not kept from step to step. An
    array lives from the begin of the first task that uses it to the end of the last one. (The runtime's plan has arrays that
    are sent live until their receiver's turn, and finds each a place.)"""
    order = np.argsort(step.began, kind="stable")
    sorted_began = step.began[order]
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    until = np.maximum(position, np.searchsorted(sorted_began, step.end, "left") - 1)
    lives = _Finder(step, position, until, checkpoint).lives()
    found = dict.fromkeys(step.replicas.images, 0)
    for processor in found:
        here = lives.processor == processor
        if here.any():
            found[processor] = _peak(lives.nbytes[here], lives.first[here], lives.last[here])
    return found


def _peak(nbytes: Array, first: Array, last: Array) -> int:
    at = np.concatenate([first, last + 1])
    change = np.concatenate([nbytes, -nbytes])
    order = np.lexsort((change, at))  # what ends goes before what begins
    return int(np.cumsum(change[order]).max(initial=0))


class _Finder:
    """Finds the lifetimes of all arrays: of those that a micro-batch makes, one for each micro-batch that is like it."""

    def __init__(self, step: FoldedStep, position: Array, until: Array, checkpoint: Callable[[], object]) -> None:
        self.step, self.position, self.until, self.checkpoint = step, position, until, checkpoint
        graph = step.lowered
        self.roots = [b.number if b.base is None else b.base for b in graph.buffers]
        self.counted = [not graph.buffers[r].kept for r in self.roots]
        self.maker: dict[int, int | None] = {}  # array -> which of the lowered micro-batches makes it; None: none of them
        self.sizes: dict[int, tuple[int, int]] = {}  # array -> (processor, bytes)

    def lives(self) -> _Lives:
        template, whole, like = self.step.template, self.step.whole, self.step.template.like
        count = max(like) + 1
        numbers = [np.array([i for i, c in enumerate(like) if c == of]) for of in range(count)]
        parts: list[tuple[int | None, Segment, Array]] = [(None, template.before, np.zeros(1, np.int64))]
        for (kind, stage, of), segment in template.passes.items():
            parts.append((of, segment, self._begins(kind, stage)[numbers[of]]))
        parts.append((None, template.after, np.array([whole.end], np.int64)))
        first: dict[int, Array] = {}
        last: dict[int, Array] = {}
        for which, segment, bases in parts:
            self.checkpoint()
            self._use(which, segment, bases, numbers, first, last)
        for buffer in self.step.lowered.fetched.values():
            if self.roots[buffer] in last:
                last[self.roots[buffer]] = np.full_like(last[self.roots[buffer]], len(self.position))
        keys = list(first)
        repeats = [len(first[key]) for key in keys]
        return _Lives(
            np.repeat([self.sizes[key][0] for key in keys], repeats), np.repeat([self.sizes[key][1] for key in keys], repeats),
            np.concatenate([first[key] for key in keys]), np.concatenate([last[key] for key in keys]),
        )

    def _begins(self, kind: PassKind, stage: int) -> Array:
        return self.step.whole.begins[kind, stage]

    def _use(
        self, of: int | None, segment: Segment, bases: Array, numbers: list[Array], first: dict[int, Array], last: dict[int, Array]
    ) -> None:
        """Count the uses of a segment's tasks, which stand at ``bases``."""
        own: dict[int, list[int]] = {}  # arrays of these micro-batches -> tasks
        others: dict[int, list[int]] = {}
        for local, task in enumerate(self.step.lowered.tasks[segment.first : segment.first + segment.count]):
            for key in self._keys(task, of):
                (own if self.maker[key] == of else others).setdefault(key, []).append(local)
        for table, several in ((own, True), (others, False)):
            if not table:
                continue
            tasks = np.array([local for locals_ in table.values() for local in locals_])
            starts = np.cumsum([0, *(len(locals_) for locals_ in table.values())])[:-1]
            at = bases[:, None] + tasks
            begins = np.minimum.reduceat(self.position[at], starts, axis=1)
            ends = np.maximum.reduceat(self.until[at], starts, axis=1)
            for i, key in enumerate(table):
                low, high = begins[:, i], ends[:, i]
                if not several:
                    maker = self.maker[key]
                    copies = 1 if maker is None else len(numbers[maker])
                    low, high = np.full(copies, low.min()), np.full(copies, high.max())
                first[key] = np.minimum(first[key], low) if key in first else low
                last[key] = np.maximum(last[key], high) if key in last else high

    def _keys(self, task: Task, of: int | None) -> list[int]:
        """The arrays that a task uses, and what it wants to lay weights out in."""
        found = dict.fromkeys(self.roots[p.buffer] for p in (*task.reads, *task.writes) if self.counted[p.buffer])
        for key in found:
            if key not in self.maker:
                buffer = self.step.lowered.buffers[key]
                self.maker[key], self.sizes[key] = of, (buffer.processor, _rounded(buffer.nbytes))
        if task.kind is Kind.FORWARD:
            for buffer_number, nbytes in rooms(task.work).items():
                key = ~buffer_number
                self.maker[key], self.sizes[key] = None, (task.processor, _rounded(nbytes))
                found[key] = None
        return list(found)


def _rounded(nbytes: int) -> int:
    return max(ALIGNMENT, -(-nbytes // ALIGNMENT) * ALIGNMENT)
