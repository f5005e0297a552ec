"""Schedule: one rank's part of a step, as a list of items in order. Pure: no memory is touched and nothing is sent.

`taskflow.tasks.items` defines the items and the lifetimes of memory; here buffers get places in memory, and waits for sends are
added.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from taskflow.regions import Rect
from taskflow.tasks import (
    Item,
    Leave,
    Lifetime,
    MemoryPlan,
    Part,
    Placement,
    Receive,
    RunTask,
    Send,
    StartCollective,
    TaskGraph,
    WaitReceive,
    WaitSend,
    items_of,
    lifetimes,
    plan_memory,
    rooms,
    root_of,
    uses,
)


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes ``low`` to ``high`` of the arena (space -1) or of a persistent buffer (space: its number)."""

    space: int
    low: int
    high: int

    def meets(self, other: ByteRange) -> bool:
        """True if the ranges share a byte."""
        return self.space == other.space and self.low < other.high and other.low < self.high


class PendingSends:
    """Set of the sends that are under way. Send i reads ``spans[i]``.

    A tree over the sends, sorted by the beginning of their spans, stores at every node the farthest end of the pending sends
    below it. So the sends that a span meets are found without looking at the others.
    """

    def __init__(self, spans: Sequence[ByteRange]) -> None:
        self._order = sorted(range(len(spans)), key=lambda i: (spans[i].space, spans[i].low))
        self._begins = [(spans[i].space, spans[i].low) for i in self._order]
        self._ends = [(spans[i].space, spans[i].high) for i in self._order]
        self._places = {number: place for place, number in enumerate(self._order)}
        self._width = 1
        while self._width < len(spans):
            self._width *= 2
        self._farthest = [_NOWHERE] * (2 * self._width)
        self._begun: dict[int, int] = {}  # send -> when it began, by a counter
        self._clock = 0

    def __contains__(self, send: int) -> bool:
        return send in self._begun

    def begin(self, send: int) -> None:
        """Mark a send as under way."""
        self._clock += 1
        self._begun.setdefault(send, self._clock)
        place = self._places[send]
        self._put(place, self._ends[place])

    def meeting(self, span: ByteRange) -> list[int]:
        """Return the pending sends whose span meets this one, in the order in which they began, and mark them as over."""
        if not self._begun:
            return []
        below = bisect_left(self._begins, (span.space, span.high))  # those that begin before the span ends
        found: list[int] = []
        self._find(1, 0, self._width, below, (span.space, span.low), found)
        numbers = sorted((self._order[place] for place in found), key=self._begun.__getitem__)
        for place in found:
            self._put(place, _NOWHERE)
        for number in numbers:
            del self._begun[number]
        return numbers

    def _find(
        self, node: int, first: int, width: int, below: int, after: tuple[int, int], found: list[int]
    ) -> None:
        """Collect the places from ``first`` of ``width`` that are less than ``below`` and whose end lies ``after``."""
        if first >= below or self._farthest[node] <= after:
            return
        if width == 1:
            found.append(first)
            return
        half = width // 2
        self._find(2 * node, first, half, below, after, found)
        self._find(2 * node + 1, first + half, half, below, after, found)

    def _put(self, place: int, end: tuple[int, int]) -> None:
        farthest, node = self._farthest, self._width + place
        farthest[node] = end
        while node > 1:
            node //= 2
            best = max(farthest[2 * node], farthest[2 * node + 1])
            if farthest[node] == best:
                return
            farthest[node] = best


_NOWHERE = (-2, 0)


@dataclass(frozen=True, slots=True)
class RankSchedule:
    """One rank's items in order, and its memory plan. ``tags``: the message tag of each copy it sends or receives, counted from
    0 for each pair of ranks. ``tag_count``: the number of tags that the busiest pair of ranks needs."""

    rank: int
    items: tuple[Item, ...]
    memory: MemoryPlan
    tags: dict[int, int]
    tag_count: int


def schedule(
    graph: TaskGraph, order: Sequence[int], placement: Placement, rank: int, *, reuse_memory: bool = True
) -> RankSchedule:
    """Return the part of ``rank`` in the global ``order`` (a topological order of all tasks)."""
    items = items_of(graph, order, placement, rank)
    lives = lifetimes(graph, items, set(placement.local(rank)))
    if not reuse_memory:
        lives = [Lifetime(life.buffer, life.nbytes, 0, len(items)) for life in lives]
    memory = plan_memory(lives)
    doing = [item for item in items if not isinstance(item, Leave)]
    return RankSchedule(rank, tuple(_with_flushes(graph, doing, memory)), memory, *_tags(graph, placement, rank))


def _tags(graph: TaskGraph, placement: Placement, rank: int) -> tuple[dict[int, int], int]:
    """Tags by task number. Every rank counts all copies, so both ends of a message give it the same tag."""
    ranks = [placement.rank(p) for p in range(placement.processors)]
    used: dict[tuple[int, int], int] = {}
    tags: dict[int, int] = {}
    for task in graph.tasks:
        pair = ranks[task.source], ranks[task.processor]
        if pair[0] != pair[1]:
            if rank in pair:
                tags[task.number] = used.get(pair, 0)
            used[pair] = used.get(pair, 0) + 1
    return tags, max(used.values(), default=0)


def _with_flushes(graph: TaskGraph, items: Sequence[Item], memory: MemoryPlan) -> list[Item]:
    """Insert the waits for sends. The list is walked twice, since what one step sends the next one may overwrite."""
    sends = [item.task for item in items if isinstance(item, Send)]
    if not sends:
        return list(items)
    numbers = {task.number: i for i, task in enumerate(sends)}
    leaving = PendingSends([_span(graph, memory, task.reads[0]) for task in sends])
    written = [
        () if isinstance(item, WaitReceive) else
        (*(_span(graph, memory, part) for part in uses(item)[1]), *_rooms(item, memory)) for item in items
    ]
    result: list[Item] = []
    for again in (False, True):
        for item, spans in zip(items, written):
            assert not isinstance(item, WaitSend)
            for span in spans:
                for send in leaving.meeting(span):
                    if again:
                        assert not isinstance(item, WaitReceive)
                        result.append(WaitSend(sends[send], item.task))
            if isinstance(item, Send):
                # Restarting a send needs the previous one to be over, whoever overwrites its source.
                if again and numbers[item.task.number] in leaving:
                    result.append(WaitSend(item.task, item.task))
                leaving.begin(numbers[item.task.number])
            if again:
                result.append(item)
    return result


def _rooms(item: Item, memory: MemoryPlan) -> Iterator[ByteRange]:
    """Return what a task may write beside its arrays."""
    if isinstance(item, RunTask):
        for buffer, nbytes in rooms(item.task.work).items():
            if (offset := memory.offsets.get(~buffer)) is not None:
                yield ByteRange(-1, offset, offset + nbytes)


def _span(graph: TaskGraph, memory: MemoryPlan, part: Part) -> ByteRange:
    """The bytes from the first to the last element of a part."""
    buffer = graph.buffers[part.buffer]
    root = root_of(graph, part.buffer)
    size = root.dtype.itemsize
    low, high = _hull(part.rect, buffer.shape)
    if buffer.part is not None:
        start, _ = _hull(buffer.part, root.shape)
        low, high = low + start, high + start
    if root.kept:
        return ByteRange(root.number, low * size, high * size)
    offset = memory.offsets[root.number]
    return ByteRange(-1, offset + low * size, offset + high * size)


def _hull(rect: Rect, shape: Sequence[int]) -> tuple[int, int]:
    """Row-major positions of the first element of a Rect and after its last."""
    if rect.empty:
        return 0, 0
    low = high = 0
    for a, b, size in zip(rect.lo, rect.hi, shape):
        low, high = low * size + a, high * size + b - 1
    return low, high + 1


__all__ = [
    "Item",
    "Placement",
    "RankSchedule",
    "Receive",
    "RunTask",
    "Send",
    "StartCollective",
    "WaitReceive",
    "WaitSend",
    "root_of",
    "schedule",
]
