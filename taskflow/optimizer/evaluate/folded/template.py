"""StepTemplate: the tasks of a few micro-batches of a step, and how those of any number of micro-batches follow from them.

Micro-batches 0, 1, 2 and the last one are lowered. The first may begin something that later ones continue, such as sums of
gradients, and the last may end it. All between are like number 2, which waits for number 1 as number 3 does for number 2. It is
verified that 1 and 2 have the same tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType

import numpy as np

from taskflow.mapper import Pass, PassKind
from taskflow.optimizer.evaluate.folded.layers import Label
from taskflow.optimizer.evaluate.folded.repeat import NONE, TaskPlaces, every_pair, lay_out
from taskflow.optimizer.evaluate.folded.turns import Turns, TurnWaits, turn_waits, turns_of
from taskflow.tasks import Compute, Filling, Summation, Task, TaskGraph, Turn
from taskflow.tasks.lower import ADDED, LOWERED, NotAlikeError

NO_LABELS: Mapping[str, Label] = MappingProxyType({})


class Which(Enum):
    """The micro-batches whose pass a task waits for."""

    __hash__ = object.__hash__

    OWN = "own"
    BEFORE = "the one before"
    MIDDLE = "all between the second and the last"
    THAT = "the one that is named"


@dataclass(frozen=True, slots=True)
class Waits:
    """Tasks ``tasks[i]`` of a segment wait for task ``befores[i]`` of another one: of the pass ``kind`` of ``stage``, for the
    micro-batches ``which`` (THAT: number ``number``). If ``kind`` is None, of the tasks before all passes (``stage`` 0) or
    after them (1)."""

    which: Which
    kind: PassKind | None
    stage: int
    number: int
    tasks: np.ndarray  # type: ignore[type-arg]
    befores: np.ndarray  # type: ignore[type-arg]


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive tasks: those of a pass, or those before or after all passes. ``first``: the number of its first task in the
    lowered graph. ``ends``: by processor, the first and the last operator's task, counted from the first task; ``fills``: the
    fills before its first one. ``layout``: the tasks' places among those of all layers. ``turns``: tasks that wait for other
    passes than the previous one."""

    first: int
    count: int
    waits: tuple[Waits, ...]
    ends: dict[int, tuple[int, int]]
    fills: tuple[tuple[int, int], ...]
    layout: TaskPlaces
    turns: Turns

    @property
    def bounds(self) -> dict[int, tuple[int, int]]:
        """Return `ends` for all layers."""
        at, step, copies = self.layout.at, self.layout.step, self.layout.copies
        return {
            processor: (
                int(at[first] + min(0, (copies[first] - 1) * step[first])), int(at[last] + max(0, (copies[last] - 1) * step[last]))
            )
            for processor, (first, last) in self.ends.items()
        }


@dataclass(frozen=True, slots=True)
class StepTemplate:
    """``passes``: by kind, stage and number of the lowered micro-batch. ``tasks``: the lowered ones, with the sizes of the
    whole step. ``bases``: for each buffer the one that it is a part of, or itself. ``most_turns``: how far back tasks wait
    (`Turns`)."""

    micro_batches: int
    before: Segment
    passes: dict[tuple[PassKind, int, int], Segment]
    after: Segment
    tasks: list[Task]
    bases: list[int]
    most_turns: int

    def awaited(self, wait: Waits, own: int) -> Segment:
        """Return a segment for which tasks of lowered micro-batch ``own`` wait, or one with the same layout."""
        if wait.kind is None:
            return self.after if wait.stage else self.before
        which = {Which.OWN: own, Which.THAT: kept(self.micro_batches).index(wait.number) if wait.which is Which.THAT else 0}
        return self.passes[wait.kind, wait.stage, which.get(wait.which, 2)]

    def a_micro_batch_before(self, task: int) -> int:
        """Return the lowered task of the second micro-batch that is like this one of the third; any other task is returned
        unchanged."""
        for (kind, stage, class_), segment in self.passes.items():
            if class_ == 2 and 0 <= task - segment.first < segment.count:
                return task - segment.first + self.passes[kind, stage, 1].first
        return task

    @property
    def copies(self) -> list[int]:
        """Return, for each lowered task, the number of layers that it stands for in a micro-batch."""
        segments = sorted((self.before, *self.passes.values(), self.after), key=lambda segment: segment.first)
        return np.concatenate([segment.layout.copies for segment in segments]).tolist()  # type: ignore[no-any-return]

    @property
    def buffer_copies(self) -> dict[int, int]:
        """Return, for buffers that only tasks of a third layer use, the number of layers that they stand for."""
        found: dict[int, int] = {}
        for task, copies in zip(self.tasks, self.copies):
            for part in (*task.reads, *task.writes):
                base = self.bases[part.buffer]
                found[base] = min(copies, found.get(base, copies))
        return found

    @property
    def like(self) -> list[int]:
        """Return, for each micro-batch, which of the lowered ones it is like."""
        m = self.micro_batches
        return list(range(m)) if m <= LOWERED else [min(i, 2) for i in range(m - 1)] + [LOWERED - 1]


def kept(micro_batches: int) -> tuple[int, ...]:
    """Return the micro-batches of a step that are lowered."""
    return tuple(range(micro_batches)) if micro_batches <= LOWERED else (*range(LOWERED - 1), micro_batches - 1)


def make_template(
    graph: TaskGraph, micro_batches: int, labels: Mapping[str, Label] = NO_LABELS, copies: Sequence[int] = (),
    checkpoint: Callable[[], object] = lambda: None,
) -> StepTemplate:
    """Return the template of a step that was lowered in part (`StepPart`, with `kept`), perhaps with fewer layers
    (`FewerLayers`). Raises NotAlikeError if its micro-batches or layers differ in more than they may."""
    return _Maker(graph, micro_batches, labels, copies, checkpoint).template()


@dataclass(frozen=True, slots=True)
class _Place:
    """Place of a lowered task: its pass (None: before or after all), the number of its lowered micro-batch, and its offset
    there."""

    key: tuple[PassKind, int] | None
    class_: int
    local: int


class _Maker:
    def __init__(
        self, graph: TaskGraph, micro_batches: int, labels: Mapping[str, Label], copies: Sequence[int],
        checkpoint: Callable[[], object],
    ) -> None:
        self.graph, self.micro_batches, self.checkpoint = graph, micro_batches, checkpoint
        self.labels, self.copies = labels, copies
        self.makers: dict[int, int] = {}  # buffer -> the first task that writes it
        for task in graph:
            for part in task.writes:
                self.makers.setdefault(part.buffer, task.number)
        self.numbers = {number: i for i, number in enumerate(kept(micro_batches))}
        self.repeats = micro_batches > LOWERED
        spans = [(self._key(one), first, last) for one, first, last in graph.passes]
        self.start = spans[0][1] if spans else len(graph)
        self.end = spans[-1][2] if spans else len(graph)
        self.spans = spans
        self.place: list[_Place] = [_Place(None, 0, i) for i in range(self.start)]
        for (kind, stage, class_), first, last in spans:
            self.place += [_Place((kind, stage), class_, i) for i in range(last - first)]
        self.place += [_Place(None, 1, i) for i in range(len(graph) - self.end)]
        self.turns: dict[tuple[object, int], list[Turn]] = {}  # by segment
        self.in_turn = {turn.task for turn in graph.turns if turn.back and turn.kind.startswith(ADDED)}
        self.most_turns = max((turn.back for turn in graph.turns), default=1)
        for turn in graph.turns:
            at = self.place[turn.task]
            self.turns.setdefault((at.key, at.class_), []).append(turn)

    def _key(self, one: Pass) -> tuple[PassKind, int, int]:
        return one.kind, one.stage, self.numbers[one.micro_batch]

    def template(self) -> StepTemplate:
        passes = {key: self._segment(first, last, key[2]) for key, first, last in self.spans}
        if self.repeats:
            for (kind, stage, class_), segment in passes.items():
                if class_ == 2 and not self._same(passes[kind, stage, 1], segment):
                    raise NotAlikeError(f"micro-batches differ in pass {kind.value} of stage {stage}")
        return StepTemplate(
            self.micro_batches, self._segment(0, self.start, None), passes, self._segment(self.end, len(self.graph), None),
            [self._whole(task) for task in self.graph],
            [buffer.number if buffer.base is None else buffer.base for buffer in self.graph.buffers], self.most_turns,
        )

    def _same(self, one: Segment, other: Segment) -> bool:
        def signs(segment: Segment) -> Iterable[object]:
            for task in self.graph.tasks[segment.first : segment.first + segment.count]:
                yield task.kind, task.processor, task.source, task.flops, task.nbytes, task.runs, task.topic

        return one.count == other.count and one.turns == other.turns and all(a == b for a, b in zip(signs(one), signs(other)))

    def _segment(self, first: int, last: int, class_: int | None) -> Segment:
        found: dict[tuple[Which, PassKind | None, int, int], tuple[list[int], list[int]]] = {}
        ends: dict[int, tuple[int, int]] = {}
        fills: list[tuple[int, int]] = []
        for task in self.graph.tasks[first:last]:
            local = task.number - first
            for key, before in self._waits(task, class_):
                tasks, befores = found.setdefault(key, ([], []))
                tasks.append(local)
                befores.append(before)
            if isinstance(task.work, Compute):
                ends[task.processor] = ends.get(task.processor, (local, local))[0], local
            elif class_ is not None and isinstance(task.work, Filling) and task.processor not in ends:
                fills.append((task.processor, local))
        waits = tuple(Waits(*key, np.array(t, np.int64), np.array(b, np.int64)) for key, (t, b) in found.items())
        self.checkpoint()
        layout = lay_out(self.graph.tasks[first:last], self.labels, self.copies)
        at = self.place[first] if first < last else _Place(None, NONE, 0)
        turns = turns_of(self.turns.get((at.key, at.class_), ()), first, layout, self.most_turns)
        return Segment(first, last - first, waits, ends, tuple(fills), layout, turns)

    def _waits(
        self, task: Task, class_: int | None
    ) -> Iterable[tuple[tuple[Which, PassKind | None, int, int], int]]:
        of_others: dict[tuple[PassKind, int, int], set[int]] = {}  # pass and task -> which micro-batches
        for before in task.after:
            at = self.place[before]
            if at.key is None:
                yield (Which.OWN, None, at.class_, 0), at.local
            elif at.class_ == class_:
                yield (Which.OWN, *at.key, 0), at.local
            elif class_ is None or not self._chained(task, self.graph.tasks[before]):
                of_others.setdefault((*at.key, at.local), set()).add(at.class_)
        for (kind, stage, local), classes in of_others.items():
            for other in sorted(classes):
                yield (*self._which(task, class_, other, classes, kind, stage), local)  # type: ignore[misc]

    def _chained(self, task: Task, before: Task) -> bool:
        """True if a task of a pass comes after one of another pass anyway: operators' tasks on a processor follow each other
        (`_chains`), as do additions to a share (`Turn`). Stages on one rank that share a weight add to one gradient."""
        if task.number in self.in_turn and task.writes == before.writes:
            return True
        return isinstance(task.work, Compute) and isinstance(before.work, Compute) and task.processor == before.processor

    def _which(
        self, task: Task, class_: int | None, other: int, classes: set[int], kind: PassKind, stage: int
    ) -> tuple[tuple[Which, PassKind | None, int, int]]:
        number = list(self.numbers)[other]
        if not self.repeats:
            return ((Which.THAT, kind, stage, number),)
        if class_ is not None and other > class_:
            raise NotAlikeError(f"{task} waits for a later micro-batch")
        if class_ == 2 and other == 1:
            if 0 in classes:
                raise NotAlikeError(f"{task} waits for all micro-batches before it")
            return ((Which.BEFORE, kind, stage, 0),)
        if other == 2:
            if 1 in classes:
                return ((Which.MIDDLE, kind, stage, 0),)
            if class_ is None:
                raise NotAlikeError(f"{task} waits for one micro-batch between others")
            return ((Which.BEFORE, kind, stage, 0),)
        return ((Which.THAT, kind, stage, number),)

    def _whole(self, task: Task) -> Task:
        """A task with the size that it has in the whole step: a sum over all micro-batches has more sources."""
        if not self.repeats or not isinstance(task.work, Summation):
            return task
        classes = [self._class_of(part.buffer) for part in task.work.sources]
        if not {1, 2} <= set(classes):
            return task
        more = (self.micro_batches - LOWERED) * classes.count(2)
        size = task.work.target.rect.volume
        itemsize = self.graph.buffers[task.work.target.buffer].dtype.itemsize
        return replace(task, flops=task.flops + more * size, nbytes=task.nbytes + more * size * itemsize)

    def _class_of(self, buffer: int) -> int | None:
        at = self.place[self.makers[buffer]]
        return None if at.key is None else at.class_


# ---- the whole step --------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class WholeStep:
    """All tasks of a step as arrays. ``origin``: the number of the lowered task for each; it waits for
    ``after[after_offset[t]:after_offset[t + 1]]``. ``begins``: by kind and stage of a pass, its first task for each
    micro-batch; ``end``: the first task after all passes. ``turns``: additional dependencies of lowered tasks (`TurnWaits`)."""

    origin: np.ndarray  # type: ignore[type-arg]
    after_offset: np.ndarray  # type: ignore[type-arg]
    after: np.ndarray  # type: ignore[type-arg]
    begins: dict[tuple[PassKind, int], np.ndarray]  # type: ignore[type-arg]
    end: int
    turns: tuple[tuple[int, int], ...]


def expand(template: StepTemplate, passes: Sequence[Pass], checkpoint: Callable[[], object]) -> WholeStep:
    """Return the tasks of all ``passes``, in that order. Operators' tasks on a processor follow each other."""
    m, class_of = template.micro_batches, template.like
    base: dict[tuple[PassKind, int], np.ndarray] = {}  # type: ignore[type-arg]  # by micro-batch
    total = template.before.layout.count
    for one in passes:
        base.setdefault((one.kind, one.stage), np.zeros(m, np.int64))[one.micro_batch] = total
        total += template.passes[one.kind, one.stage, class_of[one.micro_batch]].layout.count
    end = total
    total += template.after.layout.count
    origin = np.empty(total, np.int64)
    edges: list[tuple[np.ndarray, np.ndarray]] = []  # type: ignore[type-arg]

    def place(segment: Segment, at: np.ndarray, numbers: np.ndarray, own: int = 0) -> None:  # type: ignore[type-arg]
        checkpoint()
        layout = segment.layout
        origin[(at[:, None] + np.arange(layout.count)).ravel()] = np.tile(segment.first + layout.origin, len(at))
        for wait in segment.waits:
            other = template.awaited(wait, own).layout
            which_tasks, copies, which_befores, before_copies = every_pair(layout, wait.tasks, other, wait.befores)
            tasks = at[:, None] + layout.place(which_tasks, copies)
            befores = other.place(which_befores, before_copies)
            if wait.kind is None:
                edges.append((tasks, np.broadcast_to((0 if wait.stage == 0 else end) + befores, tasks.shape)))
                continue
            bases = base[wait.kind, wait.stage]
            if wait.which is Which.MIDDLE:
                for number in range(2, m - 1):
                    edges.append((tasks, np.broadcast_to(bases[number] + befores, tasks.shape)))
                continue
            which = {Which.OWN: numbers, Which.BEFORE: numbers - 1, Which.THAT: np.full_like(numbers, wait.number)}[wait.which]
            edges.append((tasks, bases[which][:, None] + befores))
        if segment.turns.within:
            tasks, befores = np.array(segment.turns.within, np.int64).T
            edges.append((at[:, None] + tasks, at[:, None] + befores))

    place(template.before, np.zeros(1, np.int64), np.zeros(1, np.int64))
    for (kind, stage, class_), segment in template.passes.items():
        numbers = np.array([i for i in range(m) if class_of[i] == class_], np.int64)
        place(segment, base[kind, stage][numbers], numbers, class_)
    place(template.after, np.array([end], np.int64), np.zeros(1, np.int64))
    edges.append(_chains(template, passes, class_of, base, end))
    waits = _turn_waits(template, passes, class_of, base, end)
    edges.append((waits.tasks, waits.befores))
    tasks = np.concatenate([t.ravel() for t, _ in edges])
    befores = np.concatenate([b.ravel() for _, b in edges])
    order = np.argsort(tasks, kind="stable")
    offsets = np.zeros(total + 1, np.int64)
    np.cumsum(np.bincount(tasks, minlength=total), out=offsets[1:])
    return WholeStep(origin, offsets, befores[order], base, end, waits.lowered)


def _chains(
    template: StepTemplate, passes: Sequence[Pass], class_of: Sequence[int],
    base: dict[tuple[PassKind, int], np.ndarray], end: int,  # type: ignore[type-arg]
) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    """Dependencies of each pass's first operator task on a processor, and of the fills before it, on the last operator task
    before it there."""
    tasks: list[int] = []
    befores: list[int] = []
    last = {processor: local for processor, (_, local) in template.before.bounds.items()}

    def follow(segment: Segment, at: int) -> None:
        for processor, local in segment.fills:
            if processor in last:
                tasks.append(at + int(segment.layout.at[local]))
                befores.append(last[processor])
        for processor, (first, final) in segment.bounds.items():
            if processor in last:
                tasks.append(at + first)
                befores.append(last[processor])
            last[processor] = at + final

    for one in passes:
        follow(template.passes[one.kind, one.stage, class_of[one.micro_batch]], int(base[one.kind, one.stage][one.micro_batch]))
    follow(template.after, end)
    return np.array(tasks, np.int64), np.array(befores, np.int64)


def _turn_waits(
    template: StepTemplate, passes: Sequence[Pass], class_of: Sequence[int],
    base: dict[tuple[PassKind, int], np.ndarray], end: int,  # type: ignore[type-arg]
) -> TurnWaits:
    """Dependencies on tasks of earlier passes. Of the micro-batches that are alike, one in the middle stands for all."""
    middle = template.micro_batches // 2

    def segments() -> Iterable[tuple[Turns, int, int, bool]]:
        yield template.before.turns, 0, template.before.first, True
        for one in passes:
            key = one.kind, one.stage
            class_ = class_of[one.micro_batch]
            stands = one.micro_batch == middle or class_ != class_of[middle]
            segment = template.passes[(*key, class_)]
            yield segment.turns, int(base[key][one.micro_batch]), segment.first, stands
        yield template.after.turns, end, template.after.first, True

    return turn_waits(segments(), template.most_turns)
