"""Schedule: one rank's part of a step, as a list of things to do in order. Pure: no memory is touched and nothing sent.

Every rank walks the same global order of tasks and takes what concerns its processors. A copy to another rank is a Send;
from another rank a Post (the receive may begin) and, before the first task that needs it, an Arrive (wait for it). Before
memory is written whose earlier contents may still be on their way out, a Flush waits for those sends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from taskflow.regions import Rect
from taskflow.runtime.memory import Lifetime, MemoryPlan, plan_memory
from taskflow.tasks.task import Buffer, Kind, Part, Task, TaskGraph


@dataclass(frozen=True, slots=True)
class Run:
    """Run a task on a processor of this rank (also a copy between two of them)."""

    task: Task


@dataclass(frozen=True, slots=True)
class Send:
    """Start sending a copy's source to ``rank``."""

    task: Task
    rank: int


@dataclass(frozen=True, slots=True)
class Post:
    """Start receiving a copy's target from ``rank``."""

    task: Task
    rank: int


@dataclass(frozen=True, slots=True)
class Arrive:
    """Wait until the copy has arrived; ``needed_by`` is the task that needs it (None: the end of the step)."""

    copy: Task
    needed_by: Task | None


@dataclass(frozen=True, slots=True)
class Flush:
    """Wait until the copy, perhaps of the step before, has left; ``needed_by`` overwrites its source."""

    copy: Task
    needed_by: Task


Item = Run | Send | Post | Arrive | Flush


@dataclass(frozen=True, slots=True)
class Placement:
    """Which rank drives which processor: neighbouring ones share a rank when there are more processors than ranks."""

    processors: int
    ranks: int

    def __post_init__(self) -> None:
        if self.processors < self.ranks:
            raise ValueError(
                f"{self.ranks} ranks need at least as many processors, got {self.processors}; start fewer ranks"
            )

    def rank(self, processor: int) -> int:
        """The rank that drives ``processor``."""
        return processor * self.ranks // self.processors

    def local(self, rank: int) -> list[int]:
        """The processors of a rank."""
        return [p for p in range(self.processors) if self.rank(p) == rank]


@dataclass(frozen=True, slots=True)
class Schedule:
    """One rank's items in order, and its memory plan. ``tags``: the message tag of each copy it sends or receives, counted
    from 0 for each pair of ranks; ``tag_count``: how many tags the busiest pair of all ranks needs."""

    rank: int
    items: tuple[Item, ...]
    memory: MemoryPlan
    tags: dict[int, int]
    tag_count: int


def schedule(
    graph: TaskGraph, order: Sequence[int], placement: Placement, rank: int, *, reuse_memory: bool = True
) -> Schedule:
    """The part of ``rank`` in the global ``order`` (a topological order of all tasks)."""
    items = _with_arrivals(graph, _own(graph, order, placement, rank))
    lifetimes = _lifetimes(graph, items, set(placement.local(rank)))
    if not reuse_memory:
        lifetimes = [Lifetime(life.buffer, life.nbytes, 0, len(items)) for life in lifetimes]
    memory = plan_memory(lifetimes)
    return Schedule(rank, tuple(_with_flushes(graph, items, memory)), memory, *_tags(graph, placement, rank))


def _tags(graph: TaskGraph, placement: Placement, rank: int) -> tuple[dict[int, int], int]:
    """Tags by task number. Every rank counts all copies, so both ends of a message give it the same tag."""
    used: dict[tuple[int, int], int] = {}
    tags: dict[int, int] = {}
    for task in graph.tasks:
        pair = placement.rank(task.source), placement.rank(task.processor)
        if pair[0] != pair[1]:
            if rank in pair:
                tags[task.number] = used.get(pair, 0)
            used[pair] = used.get(pair, 0) + 1
    return tags, max(used.values(), default=0)


def _own(graph: TaskGraph, order: Sequence[int], placement: Placement, rank: int) -> list[Item]:
    items: list[Item] = []
    for number in order:
        task = graph.tasks[number]
        here, giver = placement.rank(task.processor), placement.rank(task.source)
        if here == rank and giver == rank:
            items.append(Run(task))
        elif giver == rank:
            items.append(Send(task, here))
        elif here == rank:
            items.append(Post(task, giver))
    return items


def _with_arrivals(graph: TaskGraph, items: Sequence[Item]) -> list[Item]:
    """Wait for each received copy before the first item that depends on it, at the latest at the end of the step."""
    result: list[Item] = []
    pending: dict[int, Task] = {}
    for item in items:
        assert isinstance(item, (Run, Send, Post))
        for before in item.task.after:
            if before in pending:
                result.append(Arrive(pending.pop(before), item.task))
        result.append(item)
        if isinstance(item, Post):
            pending[item.task.number] = item.task
    result.extend(Arrive(task, None) for task in pending.values())
    return result


def _uses(item: Item) -> tuple[Sequence[Part], Sequence[Part]]:
    """The parts of this rank's memory that an item reads and writes."""
    match item:
        case Run(task):
            return task.reads, task.writes
        case Send(task, _):
            return task.reads, ()
        case Post(task, _):
            return (), task.writes
        case Arrive(copy, _):
            return (), copy.writes
        case Flush():
            return (), ()


def root_of(graph: TaskGraph, buffer: int) -> Buffer:
    """The buffer whose memory this one is."""
    of = graph.buffers[buffer]
    return of if of.base is None else graph.buffers[of.base]


def _lifetimes(graph: TaskGraph, items: Sequence[Item], local: set[int]) -> list[Lifetime]:
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for position, item in enumerate(items):
        for parts in _uses(item):
            for part in parts:
                root = root_of(graph, part.buffer)
                if not root.kept and root.processor in local:
                    first.setdefault(root.number, position)
                    last[root.number] = position
    for buffer in graph.fetched.values():
        root = root_of(graph, buffer)
        if root.number in last:
            last[root.number] = len(items)
    return [Lifetime(b, graph.buffers[b].nbytes, first[b], last[b]) for b in first]


def _with_flushes(graph: TaskGraph, items: Sequence[Item], memory: MemoryPlan) -> list[Item]:
    """Insert the waits for sends. The list is walked twice, since what one step sends the next one may overwrite."""
    result: list[Item] = []
    leaving: dict[int, tuple[Task, _Span]] = {}
    for again in (False, True):
        for item in items:
            _, writes = _uses(item)
            if leaving and not isinstance(item, Arrive):
                assert isinstance(item, (Run, Send, Post))
                for part in writes:
                    span = _span(graph, memory, part)
                    for number in [n for n, (_, other) in leaving.items() if other.meets(span)]:
                        copy, _ = leaving.pop(number)
                        if again:
                            result.append(Flush(copy, item.task))
            if isinstance(item, Send):
                # Restarting a send needs the previous one to be over, whoever overwrites its source.
                if again and item.task.number in leaving:
                    result.append(Flush(item.task, item.task))
                leaving[item.task.number] = (item.task, _span(graph, memory, item.task.reads[0]))
            if again:
                result.append(item)
    return result


@dataclass(frozen=True, slots=True)
class _Span:
    """Bytes ``low`` to ``high`` of the arena (space -1) or of a kept buffer (space: its number)."""

    space: int
    low: int
    high: int

    def meets(self, other: _Span) -> bool:
        return self.space == other.space and self.low < other.high and other.low < self.high


def _span(graph: TaskGraph, memory: MemoryPlan, part: Part) -> _Span:
    """The bytes from the first to the last element of a part."""
    buffer = graph.buffers[part.buffer]
    root = root_of(graph, part.buffer)
    size = root.dtype.itemsize
    low, high = _hull(part.rect, buffer.shape)
    if buffer.part is not None:
        start, _ = _hull(buffer.part, root.shape)
        low, high = low + start, high + start
    if root.kept:
        return _Span(root.number, low * size, high * size)
    offset = memory.offsets[root.number]
    return _Span(-1, offset + low * size, offset + high * size)


def _hull(rect: Rect, shape: Sequence[int]) -> tuple[int, int]:
    """Row-major positions of the first element of a Rect and after its last."""
    if rect.empty:
        return 0, 0
    low = high = 0
    for a, b, size in zip(rect.lo, rect.hi, shape):
        low, high = low * size + a, high * size + b - 1
    return low, high + 1


def kinds(items: Sequence[Item]) -> dict[str, int]:
    """How many items of each class, for messages."""
    count: dict[str, int] = {}
    for item in items:
        name = item.task.kind.value if isinstance(item, Run) else type(item).__name__.lower()
        count[name] = count.get(name, 0) + 1
    return count


__all__ = ["Arrive", "Flush", "Item", "Kind", "Placement", "Post", "Run", "Schedule", "Send", "kinds", "schedule"]
