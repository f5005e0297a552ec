"""Emitter: adds tasks in program order, and derives from the parts that each reads and writes which tasks it must wait for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from taskflow.collector import quick
from taskflow.machine import ring_bytes
from taskflow.regions import Rect
from taskflow.tasks.lower.contiguous import contiguous, position, runs
from taskflow.tasks.lower.history import History, RectNumbers
from taskflow.tasks.task import (
    AllGather,
    AllReduce,
    AllToAll,
    Block,
    Buffer,
    Filling,
    Kind,
    Part,
    ReduceScatter,
    Runs,
    Summation,
    Task,
    TaskGraph,
    Transfer,
    Work,
)
from taskflow.tasks.topic import OTHER, Topic

Copying = tuple[str, Part, Part] | tuple[str, Part, Part, Topic]  # name, source, target


class Emitter:
    """Builder of a TaskGraph. A task waits for the last writers of what it reads. For what it writes, it waits for the last
    writers and for the readers since then. Parts that do not overlap impose no order. ``topic``: the default topic of tasks
    that are emitted from now on."""

    def __init__(self, processors: int) -> None:
        self.graph = TaskGraph(processors)
        self.topic = OTHER
        self.waiting: Sequence[int] = ()  # for which tasks wait that are emitted from now on, whether or not they need it
        self._spaces: dict[tuple[int, ...], RectNumbers] = {}
        self._known: list[_Known | None] = []  # by buffer

    # ---- memory --------------------------------------------------------------------------------------------------
    def buffer(
        self, region: str, rect: Rect, processor: int, dtype: np.dtype[Any], *, kept: bool = False, start: float = 0.0
    ) -> int:
        """Add a buffer; return its number."""
        number = len(self.graph.buffers)
        self.graph.buffers.append(Buffer(number, region, rect, processor, dtype, kept, None, None, start))
        self._known.append(None)
        return number

    def alias(self, base: int, part: Rect, region: str, rect: Rect) -> int:
        """Return a buffer that is the contiguous ``part`` (relative to ``base``) of another one, with ``rect``'s shape."""
        of = self.graph.buffers[base]
        if of.base is not None:
            raise ValueError(f"alias of an alias: {of.name}")
        number = len(self.graph.buffers)
        self.graph.buffers.append(Buffer(number, region, rect, of.processor, of.dtype, of.kept, base, part))
        self._known.append(None)
        return number

    def view(self, base: int, region: str, rect: Rect) -> int | None:
        """Return a buffer that shows ``rect`` of the instance ``base`` (which contains it): the instance itself, an alias, or
        None if those elements are not contiguous."""
        of = self.graph.buffers[base]
        if of.rect == rect:
            return base
        part = rect.relative_to(of.rect)
        if of.base is not None or not contiguous(part, of.shape):
            return None
        return self.alias(base, part, region, rect)

    def whole(self, buffer: int) -> Part:
        """Return all of a buffer."""
        return (self._known[buffer] or self._learn(buffer)).whole

    def part(self, buffer: int, rect: Rect) -> Part:
        """Return ``rect`` of the region that the buffer is an instance of."""
        return Part(buffer, rect.relative_to(self.graph.buffers[buffer].rect))

    # ---- tasks ---------------------------------------------------------------------------------------------------
    def emit(
        self,
        kind: Kind,
        name: str,
        processor: int,
        work: Work,
        reads: Sequence[Part],
        writes: Sequence[Part],
        *,
        source: int | None = None,
        flops: int = 0,
        nbytes: int | None = None,
        also_after: Sequence[int] = (),
        topic: Topic | None = None,
        runs: Runs = (1, 1),
    ) -> int:
        """Add a task; return its number."""
        number = len(self.graph.tasks)
        after: set[int] = {*also_after, *self.waiting}
        size = 0
        for parts, read in ((reads, True), (writes, False)):
            for part in parts:
                known = self._known[part.buffer] or self._learn(part.buffer)
                history, rect = known.history, known.rect
                if part is known.whole:
                    size += known.nbytes
                else:
                    size += part.rect.volume * known.itemsize
                    if not known.alias:  # of an alias, anything but the whole counts as the whole
                        rect = history.space.number(part.rect)
                if read:
                    history.read(rect, number, after)
                else:
                    history.write(rect, number, after)
        after.discard(number)
        self.graph.tasks.append(
            Task(
                number, kind, name, processor, processor if source is None else source, work,
                tuple(reads), tuple(writes), tuple(sorted(after)), flops, size if nbytes is None else nbytes,
                topic or self.topic, runs,
            )
        )
        return number

    def transfer(
        self, name: str, source: Part, target: Part, *, add: bool = False, topic: Topic | None = None,
        also_after: Sequence[int] = (),
    ) -> int:
        """Add a copy between two buffers: a message if they are on different processors."""
        giver, taker = self.graph.buffers[source.buffer].processor, self.graph.buffers[target.buffer].processor
        runs = self._runs(source), self._runs(target)
        if giver == taker:
            reads = (source, target) if add else (source,)
            return self.emit(
                Kind.MOVE, name, taker, Transfer(source, target, add), reads, (target,), also_after=also_after, topic=topic,
                runs=runs,
            )
        if add:
            raise ValueError(f"{name}: a copy between processors cannot add")
        return self.emit(
            Kind.COPY, name, taker, Transfer(source, target), (source,), (target,), source=giver,
            nbytes=source.rect.volume * self.graph.buffers[source.buffer].dtype.itemsize, also_after=also_after, topic=topic,
            runs=runs,
        )

    def transfers(self, copies: Sequence[Copying]) -> None:
        """Add several copies (name, source, target, and perhaps a topic) that do not wait for one another, in rounds. Of copies
        that are ready at the same time the lower number goes first; in the order of readers, all would ask the first owner
        first. So in each round every processor gives to one other and takes from one. Within a round neighbours, who may share
        a link, do not follow each other."""
        buffers, processors = self.graph.buffers, self.graph.processors

        def turn(copy: Copying) -> tuple[int, int]:
            giver, taker = buffers[copy[1].buffer].processor, buffers[copy[2].buffer].processor
            return distance(giver, taker, processors), apart(taker, processors)

        for name, source, target, *topic in sorted(copies, key=turn):
            self.transfer(name, source, target, topic=topic[0] if topic else None)

    def sum(self, name: str, sources: Sequence[Part], target: Part, *, fresh: bool = False) -> int:
        """Add a task for target += sources in order (``fresh``: target = sources), all on one processor."""
        processor = self.graph.buffers[target.buffer].processor
        reads = tuple(sources) if fresh else (*sources, target)
        flops = target.rect.volume * (len(sources) - fresh)
        return self.emit(
            Kind.SUM, name, processor, Summation(tuple(sources), target, fresh), reads, (target,), flops=flops,
            runs=(max(map(self._runs, sources)), self._runs(target)),
        )

    def all_reduce(
        self, name: str, parts: Sequence[Part], among: Sequence[int] | None = None, also_after: Sequence[int] = ()
    ) -> int:
        """Add an all-reduce: each of the parts, on two or more different processors and of one shape, becomes the sum of all.
        ``among``: the participants, where only some of their parts are lowered (`StepPart`)."""
        group, ordered = self._group(name, parts, among)
        size, nbytes = self._sizes(ordered[0])
        return self.emit(
            Kind.COLLECTIVE, name, group[0], AllReduce(group, ordered), ordered, ordered, flops=(len(group) - 1) * size,
            nbytes=ring_bytes(len(group), nbytes), also_after=also_after,
        )

    def reduce_scatter(
        self, name: str, parts: Sequence[Part], cuts: Sequence[int], among: Sequence[int] | None = None,
        also_after: Sequence[int] = (),
    ) -> int:
        """Add a reduce-scatter of one-dimensional parts, on two or more different processors and of one size. The nth processor
        in ascending order gets elements ``cuts[n]`` to ``cuts[n + 1]`` of the sum, in its part; the rest of the part is lost."""
        group, ordered = self._group(name, parts, among)
        shares = _shares(name, ordered, cuts, self._places(group, ordered), len(group))
        size, nbytes = self._sizes(ordered[0])
        return self.emit(
            Kind.COLLECTIVE, name, group[0], ReduceScatter(group, ordered, shares), ordered, _some(shares),
            flops=(len(group) - 1) * size, nbytes=ring_bytes(len(group), nbytes, ReduceScatter.halves),
            also_after=also_after,
        )

    def all_gather(
        self, name: str, parts: Sequence[Part], cuts: Sequence[int], among: Sequence[int] | None = None,
        also_after: Sequence[int] = (),
    ) -> int:
        """Add an all-gather of one-dimensional parts, on two or more different processors and of one size. All get elements
        ``cuts[n]`` to ``cuts[n + 1]`` from the nth processor in ascending order."""
        group, ordered = self._group(name, parts, among)
        shares = _shares(name, ordered, cuts, self._places(group, ordered), len(group))
        return self.emit(
            Kind.COLLECTIVE, name, group[0], AllGather(group, ordered, shares), _some(shares), ordered,
            nbytes=ring_bytes(len(group), self._sizes(ordered[0])[1], AllGather.halves), also_after=also_after,
        )

    def reduce_shares(
        self, name: str, parts: Sequence[Part], shares: Sequence[Part], places: Sequence[Rect], among: Sequence[int] | None = None
    ) -> int:
        """Add a reduce-scatter of parts on two or more different processors and of one shape. Each processor's share of the
        sum, at its place in a part, goes into a part of another buffer on that processor. All arguments are by processor,
        ascending; a share may be empty. ``among``: the participants, with the places of all, where only some are lowered."""
        group, ordered = self._group(name, parts, among)
        size, nbytes = self._sizes(ordered[0])
        packed = self._packed(name, ordered, places)
        return self.emit(
            Kind.COLLECTIVE, name, group[0], ReduceScatter(group, ordered, tuple(shares), tuple(places), packed), ordered,
            [*_some(shares), *packed],
            flops=(len(group) - 1) * size, nbytes=ring_bytes(len(group), nbytes, ReduceScatter.halves),
        )

    def gather_shares(
        self, name: str, parts: Sequence[Part], shares: Sequence[Part], places: Sequence[Rect], among: Sequence[int] | None = None
    ) -> int:
        """Add an all-gather: all of the parts, on two or more different processors and of one shape, get the shares of all,
        each at its place. All arguments are by processor, ascending. Shares are in other buffers, except that a processor
        that has everything may have its share in its part. ``among``: as in `reduce_shares`."""
        group, ordered = self._group(name, parts, among)
        packed = self._packed(name, ordered, places)
        return self.emit(
            Kind.COLLECTIVE, name, group[0], AllGather(group, ordered, tuple(shares), tuple(places), packed), _some(shares),
            [*(part for part, share in zip(ordered, shares) if part != share), *packed],
            nbytes=ring_bytes(len(group), self._sizes(ordered[0])[1], AllGather.halves),
        )

    def all_to_all(self, name: str, blocks: Sequence[tuple[Part, Part]]) -> int:
        """Add an all-to-all that copies the source of each block to its target, in one collective of the processors that they
        are on."""
        buffers = self.graph.buffers
        ends = [(buffers[source.buffer].processor, buffers[target.buffer].processor) for source, target in blocks]
        group = tuple(sorted({processor for pair in ends for processor in pair}))
        place = {processor: number for number, processor in enumerate(group)}
        found = sorted(
            (Block(place[giver], place[taker], *block) for (giver, taker), block in zip(ends, blocks)),
            key=lambda block: (block.giver, block.taker),
        )
        far = [block for block in found if block.giver != block.taker]
        packed_by = [0] * len(group)  # elements of each member
        for block in far:
            elements = block.source.rect.volume
            packed_by[block.giver] += elements
            packed_by[block.taker] += elements
        packed = tuple(self._scratch(name, p, blocks[0][0], elements) for p, elements in zip(group, packed_by))
        return self.emit(
            Kind.COLLECTIVE, name, group[0], AllToAll(group, tuple(found), packed), [b.source for b in found],
            [*(b.target for b in found), *packed], nbytes=sum(self._sizes(block.source)[1] for block in far),
        )

    def exchange_alike(self, name: str, group: tuple[int, ...], among: Sequence[tuple[Part, Sequence[Part], int]]) -> int:
        """Add an all-to-all of the processors of ``group``, ascending, of which only some are lowered, and all do the same.
        ``among``: of each that is, all that it gives, all that it gets, and how many elements it gets from others, and they from
        it."""
        place = {processor: number for number, processor in enumerate(group)}
        at = [self.graph.buffers[source.buffer].processor for source, _, _ in among]
        packed = tuple(self._scratch(name, p, source, 2 * far) for p, (source, _, far) in zip(at, among))
        blocks = tuple(
            Block(place[p], place[p], source, target) for p, (source, targets, _) in zip(at, among) for target in targets
        )
        nbytes = sum(far for _, _, far in among) * self.graph.buffers[among[0][0].buffer].dtype.itemsize
        return self.emit(
            Kind.COLLECTIVE, name, group[0], AllToAll(group, blocks, packed), [source for source, _, _ in among],
            [*(block.target for block in blocks), *packed], nbytes=nbytes * len(group) // len(among),
        )

    def _packed(self, name: str, parts: Sequence[Part], places: Sequence[Rect]) -> tuple[Part, ...]:
        """A buffer for each part in which shares are contiguous; none if they already are in the parts."""
        shape, at = parts[0].rect.shape, 0
        following = all(part.rect.shape == self.graph.buffers[part.buffer].shape for part in parts)
        for place in places:
            if not place.empty:
                following = following and contiguous(place, shape) and position(place, shape) == at
                at += place.volume
        if following:
            return ()
        return tuple(
            self._scratch(name, self.graph.buffers[part.buffer].processor, part, part.rect.volume) for part in parts
        )

    def _scratch(self, name: str, processor: int, like: Part, size: int) -> Part:
        dtype = self.graph.buffers[like.buffer].dtype
        return self.whole(self.buffer(f"{name} packed", Rect((0,), (size,)), processor, dtype))

    def _group(
        self, name: str, parts: Sequence[Part], among: Sequence[int] | None = None
    ) -> tuple[tuple[int, ...], tuple[Part, ...]]:
        """The processors that a collective is among, rising, and the parts in the order of theirs."""
        buffers = self.graph.buffers
        ordered = sorted(parts, key=lambda part: buffers[part.buffer].processor)
        group = tuple(sorted(among)) if among is not None else tuple(buffers[part.buffer].processor for part in ordered)
        if len(set(group)) < max(2, len(group)):
            raise ValueError(f"{name}: a collective needs one part on each of two or more processors, got some on {group}")
        return group, tuple(ordered)

    def _places(self, group: Sequence[int], parts: Sequence[Part]) -> list[int]:
        """Places of the parts' processors in the group."""
        return [group.index(self.graph.buffers[part.buffer].processor) for part in parts]

    def _sizes(self, part: Part) -> tuple[int, int]:
        """Elements and bytes."""
        size = part.rect.volume
        return size, size * self.graph.buffers[part.buffer].dtype.itemsize

    def fill(
        self, name: str, target: Part, value: float, *, scaled: bool = False, also_after: Sequence[int] = ()
    ) -> int:
        """Set every element of a part; ``scaled``: times the loss scale. The task waits for nothing, and so runs as early as
        possible; memory for the part is in use from there on."""
        processor = self.graph.buffers[target.buffer].processor
        return self.emit(Kind.FILL, name, processor, Filling(target, value, scaled), (), (target,), also_after=also_after)

    def _runs(self, part: Part) -> int:
        whole = (self._known[part.buffer] or self._learn(part.buffer)).whole
        return 1 if part is whole else runs(part.rect, whole.rect.shape)

    def _learn(self, number: int) -> _Known:
        """Everything about a buffer that nobody has used yet."""
        buffer = self.graph.buffers[number]
        of = buffer.rect
        whole = Part(number, Rect.of(of.shape) if any(of.lo) or of.empty else of)
        if buffer.base is not None:
            assert buffer.part is not None
            history = (self._known[buffer.base] or self._learn(buffer.base)).history
            rect = history.space.number(buffer.part)
        else:
            space = self._spaces.get(whole.rect.hi)
            if space is None:
                space = self._spaces[whole.rect.hi] = RectNumbers()
            history = History(space)
            rect = space.number(whole.rect)
        itemsize = buffer.dtype.itemsize
        known = _Known(whole, history, rect, whole.rect.volume * itemsize, itemsize, buffer.base is not None)
        self._known[number] = known
        return known


@quick
@dataclass(frozen=True, slots=True)
class _Known:
    """Facts that every task that uses a buffer needs: all of it, its history, the number of its whole Rect there, and its size."""

    whole: Part
    history: History
    rect: int
    nbytes: int
    itemsize: int
    alias: bool


def _shares(
    name: str, parts: Sequence[Part], cuts: Sequence[int], places: Sequence[int], count: int
) -> tuple[Part, ...]:
    """The share of each part that ``cuts`` gives it. ``places``: the numbers of the parts' shares, of ``count`` in all."""
    size = parts[0].rect.volume
    if len(cuts) != count + 1 or list(cuts) != sorted(cuts) or (cuts[0], cuts[-1]) != (0, size):
        raise ValueError(f"{name}: {count} shares of {size} elements need cuts from 0 to {size}, rising, got {list(cuts)}")
    starts = [part.rect.lo[0] for part in parts]
    return tuple(
        Part(part.buffer, Rect((start + cuts[place],), (start + cuts[place + 1],)))
        for part, start, place in zip(parts, starts, places)
    )


def _some(shares: Sequence[Part]) -> list[Part]:
    return [share for share in shares if not share.rect.empty]


def distance(one: int, other: int, count: int) -> int:
    """Return the round in which two of 0 ... count - 1 exchange. If the count is a power of two, processors exchange in pairs,
    so that all processors of two nodes meet at once; else it is the distance around the circle from one to the other."""
    return one ^ other if count & (count - 1) == 0 else (one - other) % count


@cache
def apart(number: int, count: int) -> int:
    """Return a key that sorts 0 ... count - 1 so that neighbours are far apart: the number's bits in reverse order."""
    bits = (count - 1).bit_length()
    return sum(1 << (bits - 1 - i) for i in range(bits) if number >> i & 1)
