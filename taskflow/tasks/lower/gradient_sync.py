"""Gradient synchronisation, stated once: the sums, messages and updates that keep the replicas of a bundle equal.

`make_sync_table` states it for numbered holders, wherever they are. It depends on how many there are, which of them have a
gradient, the `Sync`, and the bundle's size. The runtime's lowering adds buffers (synchronise.py), the compiled core adds
processors (optimizer/evaluate/lowering/sync_walk.h), the lower bound adds costs, and estimates count rows.

A bundle is divided into chunks, each with a root where its gradient is summed. All chunks are treated alike, so a table has the
rows of one chunk, and for each chunk its range and its root. Places count from the root: the holder after the root is place 1.
`sync_tasks` writes the rows out for all chunks.

The compiled twins are optimizer/evaluate/lowering/sync_table.h, which keeps tables, and sync_walk.h, which writes rows out;
tests/optimizer/evaluate/test_core_sync_table.py holds them equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property, lru_cache

from taskflow.floats import sum_bytes
from taskflow.machine import ring_bytes
from taskflow.mapper import MessageSync, Sync, SyncAlgorithm, UpdatePlacement
from taskflow.partition import even_cuts
from taskflow.rules import UpdateRule

SMALLEST_CHUNK_BYTES = 1 << 20  # below this a message's latency costs more than its bytes


class SyncStep(Enum):
    """Action of a row."""

    FILL = "fill"  # a holder that has no gradient of its own gets zeros
    SEND_GRADIENT = "send gradient"  # to a buffer of its own at the holder that adds it
    ADD = "add"  # what has arrived, to the holder's gradient
    ALL_REDUCE = "all-reduce"
    REDUCE_SCATTER = "reduce-scatter"
    UPDATE = "update"
    SEND_SUM = "send sum"  # into the holder's gradient
    SEND_WEIGHTS = "send weights"
    ALL_GATHER = "all-gather"

    @property
    def is_message(self) -> bool:
        """True if one holder sends to another."""
        return self in (SyncStep.SEND_GRADIENT, SyncStep.SEND_SUM, SyncStep.SEND_WEIGHTS)

    @property
    def is_collective(self) -> bool:
        """True if all holders take part."""
        return self in (SyncStep.ALL_REDUCE, SyncStep.REDUCE_SCATTER, SyncStep.ALL_GATHER)


class SyncPhase(Enum):
    """Parts of synchronisation. Each is emitted for all layers before the next; clipping is between the first two."""

    SUMS = 0
    SENDS = 1
    UPDATES = 2


class EmitOrder(Enum):
    """Order in which the rows of a stage are emitted for the chunks of a bundle."""

    EACH = 0  # chunk by chunk
    ROUNDS = 1  # of all chunks together, in rounds that depend on the processors (`Emitter.transfers`)
    ONCE = 2  # not for each chunk but once, in the order of the holders' processors


@dataclass(frozen=True, slots=True)
class SyncRow:
    """Task of one chunk. ``after``: the rows of the same chunk that it waits for. ``gradients``, ``readers``: the places whose
    own gradients, and whose readers of the old weights, it waits for."""

    step: SyncStep
    place: int
    source: int  # of a message: the place that sends
    after: tuple[int, ...] = ()
    gradients: tuple[int, ...] = ()
    readers: tuple[int, ...] = ()
    parts: int = 0  # how many arrivals an ADD adds
    share: int | None = None  # of a row that is emitted once: the chunk that it is about; None: the whole bundle
    sums: bool = False  # whether it also waits for the sums of all chunks at its place


@dataclass(frozen=True, slots=True)
class RowStage:
    """Rows ``first`` to ``last`` - 1, of one phase."""

    phase: SyncPhase
    order: EmitOrder
    first: int
    last: int


@dataclass(frozen=True, eq=False)
class ChunkPattern:
    """Rows of one chunk. ``sums``: by place, the row that completes the sum of all gradients there (None: its own gradient is
    the sum); only of the root if nobody else gets the sum by messages."""

    rows: tuple[SyncRow, ...]
    stages: tuple[RowStage, ...]
    sums: tuple[int | None, ...]

    @cached_property
    def messages(self) -> int:
        """Number of rows that send; a collective counts once."""
        return sum(row.step.is_message or row.step.is_collective for row in self.rows)


@dataclass(frozen=True, slots=True)
class SyncChunk:
    """Elements ``low`` to ``high`` - 1 of a bundle. ``root``: the holder that sums them, counted from the first chunk's."""

    low: int
    high: int
    root: int
    pattern: ChunkPattern


@dataclass(frozen=True, slots=True)
class SyncTable:
    """Synchronisation of a bundle. Patterns of chunks differ if some holders have no gradient, but not in their stages. Rows
    that are emitted once are the first chunk's."""

    holders: int
    size: int
    chunks: tuple[SyncChunk, ...]

    @property
    def messages(self) -> int:
        """Number of messages and collectives."""
        (first, *others) = (chunk.pattern for chunk in self.chunks)
        if any(row.step.is_collective for row in first.rows):
            return first.messages
        return first.messages + sum(pattern.messages for pattern in others)


@lru_cache(maxsize=4096)
def make_sync_table(sync: Sync, giving: tuple[bool, ...], size: int, itemsize: int) -> SyncTable:
    """Return how a bundle of ``size`` elements, whose gradients have ``itemsize`` bytes, is synchronised. ``giving``: for each
    holder from the first chunk's root on, whether it has a gradient. Raises ValueError if none has, or for unknown algorithms."""
    if not any(giving):
        raise ValueError(f"make_sync_table: at least one of {len(giving)} holders must have a gradient")
    holders = len(giving)
    count = chunk_count(sync, holders, size, itemsize)
    cuts = even_cuts(size, count)
    if not isinstance(sync, MessageSync):
        roots, patterns = list(range(count)), [_pattern(sync.algorithm, sync.placement, giving, count)] * count
    else:
        roots = [i * holders // count for i in range(count)]
        orders = [giving if all(giving) else (*giving[root:], *giving[:root]) for root in roots]
        patterns = [_pattern(sync.algorithm, sync.placement, order, 1) for order in orders]
    return SyncTable(holders, size, tuple(map(SyncChunk, cuts, cuts[1:], roots, patterns)))


def chunk_count(sync: Sync, holders: int, size: int, itemsize: int) -> int:
    """Return the number of chunks of a bundle: for a library's collective one for each holder, except that its all-reduce has
    one."""
    if sync.placement is UpdatePlacement.OWNER:
        return 1
    if sync.placement is UpdatePlacement.REPLICATED and sync.algorithm is not SyncAlgorithm.RING:
        return 1
    if not isinstance(sync, MessageSync):
        return min(holders, size)
    return min(holders, sync.chunks or max(1, size * itemsize // SMALLEST_CHUNK_BYTES), size)


def first_root(sync: Sync, rank: int, holders: int) -> int:
    """Return the holder that is the first chunk's root. Roots differ between layers and bundles (``rank``,
    `ParameterLayout.rank`), so that no processor owns everything. Only the layer's own bundles matter, so an evaluator can
    cache layers that did not change. Shares of a library's collective begin at the first holder."""
    return rank % holders if isinstance(sync, MessageSync) else 0


def routes(algorithm: SyncAlgorithm, count: int) -> list[list[tuple[int, int]]]:
    """Return rounds of (from, to) by which values at 0 ... count - 1 come together at 0: straight, along a binomial tree, or
    around a ring. In reverse, the last round first, a value goes from 0 to all."""
    if algorithm is SyncAlgorithm.OWNER:
        return [[(i, 0) for i in range(1, count)]]
    if algorithm is SyncAlgorithm.RING:
        return [[(i, i - 1)] for i in range(count - 1, 0, -1)]
    if algorithm is SyncAlgorithm.TREE:
        steps = [1 << i for i in range((count - 1).bit_length())]
        return [[(i + step, i) for i in range(0, count - step, 2 * step)] for step in steps]
    raise _unknown(algorithm)


def _unknown(way: SyncAlgorithm | UpdatePlacement) -> ValueError:
    return ValueError(
        f"make_sync_table: does not know how weights are synchronised by {type(way).__name__}.{way.name}; "
        f"use another way, or write its rows in tasks/lower/gradient_sync.py"
    )


@lru_cache(maxsize=1024)
def _pattern(algorithm: SyncAlgorithm, placement: UpdatePlacement, giving: tuple[bool, ...], count: int) -> ChunkPattern:
    """The rows of a chunk, its root first; of collectives, those of all ``count`` chunks."""
    if placement not in (UpdatePlacement.REPLICATED, UpdatePlacement.OWNER, UpdatePlacement.SHARDED):
        raise _unknown(placement)
    if algorithm is SyncAlgorithm.COLLECTIVE:
        return _by_collectives(placement, giving, count)
    return _by_messages(algorithm, placement, giving)


@dataclass(slots=True)
class _RowWriter:
    """Collects the rows of a pattern, stage by stage. ``value``: by place, the row that completes what it has so far; None: it
    has its own gradient."""

    value: list[int | None]
    rows: list[SyncRow] = field(default_factory=list)
    stages: list[RowStage] = field(default_factory=list)

    def stage(self, phase: SyncPhase, order: EmitOrder) -> None:
        """Rows from now on are of a new stage."""
        self._close()
        self.stages.append(RowStage(phase, order, len(self.rows), len(self.rows)))

    def row(
        self, step: SyncStep, place: int, needs: Sequence[int] = (), *, source: int | None = None, after: Sequence[int] = (),
        readers: Sequence[int] = (), parts: int = 0, share: int | None = None, sums: bool = False,
    ) -> int:
        """Add a row, and return its number. ``needs``: the places whose values it waits for, besides the rows ``after``."""
        rows = [row for row in (self.value[p] for p in needs) if row is not None]
        self.rows.append(SyncRow(
            step, place, place if source is None else source, after=tuple(dict.fromkeys((*after, *rows))),
            gradients=tuple(p for p in needs if self.value[p] is None), readers=tuple(readers), parts=parts, share=share, sums=sums,
        ))  # fmt: skip
        return len(self.rows) - 1

    def pattern(self, sums: Sequence[int | None]) -> ChunkPattern:
        self._close()
        return ChunkPattern(tuple(self.rows), tuple(self.stages), tuple(sums))

    def _close(self) -> None:
        if self.stages:
            last = self.stages[-1]
            self.stages[-1] = RowStage(last.phase, last.order, last.first, len(self.rows))


def _by_messages(algorithm: SyncAlgorithm, placement: UpdatePlacement, giving: tuple[bool, ...]) -> ChunkPattern:
    """Gradients come together at the root. If REPLICATED, the sum goes to all, who update; else the root updates, and new
    weights go to all. Holders without a gradient send nothing; if the root is one of them, it starts from zero."""
    write = _RowWriter([None] * len(giving))
    value, everywhere = write.value, placement is UpdatePlacement.REPLICATED
    write.stage(SyncPhase.SUMS, EmitOrder.EACH)
    if not giving[0]:
        value[0] = write.row(SyncStep.FILL, 0)
    parts = [p for p, gives in enumerate(giving) if gives or p == 0]
    if algorithm is SyncAlgorithm.OWNER:
        write.stage(SyncPhase.SUMS, EmitOrder.ROUNDS)
        came = [write.row(SyncStep.SEND_GRADIENT, 0, (p,), source=p) for p in parts[1:]]
        write.stage(SyncPhase.SUMS, EmitOrder.EACH)
        if came:
            value[0] = write.row(SyncStep.ADD, 0, (0,), after=came, parts=len(came))
    else:
        write.stage(SyncPhase.SUMS, EmitOrder.EACH)
        for one_round in routes(algorithm, len(parts)):
            for giver, taker in ((parts[i], parts[j]) for i, j in one_round):
                sent = write.row(SyncStep.SEND_GRADIENT, taker, (giver,), source=giver)
                value[taker] = write.row(SyncStep.ADD, taker, (taker,), after=(sent,), parts=1)
    summed = value[0]
    write.stage(SyncPhase.SENDS, EmitOrder.EACH)
    if not everywhere:
        value[0] = write.row(SyncStep.UPDATE, 0, (0,), readers=(0,))
    write.stage(SyncPhase.SENDS, EmitOrder.ROUNDS if algorithm is SyncAlgorithm.OWNER else EmitOrder.EACH)
    for one_round in reversed(routes(algorithm, len(giving))):
        for taker, giver in one_round:
            step, readers = (SyncStep.SEND_SUM, ()) if everywhere else (SyncStep.SEND_WEIGHTS, (taker,))
            value[taker] = write.row(step, taker, (giver,), source=giver, readers=readers)
    if not everywhere:
        return write.pattern([summed])
    write.stage(SyncPhase.UPDATES, EmitOrder.ONCE)
    for p in range(len(giving)):
        write.row(SyncStep.UPDATE, p, readers=(p,), sums=True)
    return write.pattern([summed, *value[1:]])


def _by_collectives(placement: UpdatePlacement, giving: tuple[bool, ...], count: int) -> ChunkPattern:
    """All holders' gradients are summed at once, on all of them or a share on each; holders without one give zeros."""
    holders = range(len(giving))
    write = _RowWriter([None] * len(giving))
    everywhere, alone = placement is UpdatePlacement.REPLICATED, len(giving) == 1
    write.stage(SyncPhase.SUMS, EmitOrder.ONCE)
    for p in holders:
        if not giving[p]:
            write.value[p] = write.row(SyncStep.FILL, p)
    write.stage(SyncPhase.SUMS, EmitOrder.ONCE)
    if not alone:
        write.value[:] = [write.row(SyncStep.ALL_REDUCE if everywhere else SyncStep.REDUCE_SCATTER, 0, holders)] * len(giving)
    summed = write.value[0]
    if everywhere:
        write.stage(SyncPhase.UPDATES, EmitOrder.ONCE)
        for p in holders:
            write.row(SyncStep.UPDATE, p, (p,), readers=(p,))
    else:
        write.stage(SyncPhase.SENDS, EmitOrder.ONCE)
        updated = [write.row(SyncStep.UPDATE, p, (p,), readers=(p,), share=p) for p in range(count)]
        write.stage(SyncPhase.SENDS, EmitOrder.ONCE)
        if not alone:
            write.row(SyncStep.ALL_GATHER, 0, after=updated, readers=holders)
    return write.pattern([summed])


# ---- written out -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class SyncTask:
    """Task of a bundle's synchronisation, for its elements ``low`` to ``high`` - 1. Holders are places in the bundle's group.
    ``after``: earlier tasks."""

    step: SyncStep
    holder: int
    source: int
    chunk: int | None  # None: the whole bundle
    low: int
    high: int
    parts: int
    after: tuple[int, ...]
    gradients: tuple[int, ...]
    readers: tuple[int, ...]

    def work(self, holders: int, itemsize: int, rule: UpdateRule) -> tuple[int, int]:
        """Return flops, and bytes sent or touched. ``itemsize``: of the weights, whose gradients may be of a larger type."""
        size = self.high - self.low
        news = self.step in (SyncStep.SEND_WEIGHTS, SyncStep.ALL_GATHER)
        nbytes = size * (itemsize if news else sum_bytes(itemsize))
        if self.step.is_collective:
            return (holders - 1) * size * (not news), ring_bytes(holders, nbytes, self.halves)
        if self.step is SyncStep.ADD:
            return self.parts * size, (self.parts + 2) * nbytes
        if self.step is SyncStep.UPDATE:
            return rule.flops(size), rule.nbytes(size, itemsize)
        return 0, nbytes

    @property
    def halves(self) -> int:
        """Number of times that a collective's ring goes around."""
        return 2 if self.step is SyncStep.ALL_REDUCE else 1


@dataclass(frozen=True, slots=True)
class TaskStage:
    """Tasks that are emitted together, in their order or ``in_rounds``."""

    phase: SyncPhase
    in_rounds: bool
    tasks: Sequence[int]


def sync_tasks(table: SyncTable, first: int) -> tuple[list[SyncTask], list[TaskStage]]:
    """Return the rows of all chunks in program order, rounds not expanded. ``first``: the first chunk's root (`first_root`)."""
    tasks, stages = list[SyncTask](), list[TaskStage]()
    written: list[dict[int, int]] = [{} for _ in table.chunks]  # by chunk: the task of each row so far

    def holder(place: int, chunk: int) -> int:
        return (place + table.chunks[chunk].root + first) % table.holders

    def all_sums(place: int) -> tuple[list[int], list[int]]:
        """Return the tasks that complete all chunks' sums at a place of the first, or the place if its own gradient does."""
        after, own = [], []
        for chunk, of in enumerate(table.chunks):
            row = of.pattern.sums[(place - of.root) % table.holders]
            if row is None:
                own.append(place)
            else:
                after.append(written[chunk][row])
        return after, own

    def write(chunk: int, number: int, about: int | None) -> None:
        """Append the task of a chunk's row. ``about``: the chunk whose elements it works on; None: the whole bundle."""
        row = table.chunks[chunk].pattern.rows[number]
        sums, own = all_sums(row.place) if row.sums else ([], [])
        after = [*(written[chunk][before] for before in row.after), *sums]
        gradients = [holder(place, chunk) for place in (*row.gradients, *own)]
        low, high = (0, table.size) if about is None else (table.chunks[about].low, table.chunks[about].high)
        written[chunk][number] = len(tasks)
        tasks.append(SyncTask(
            row.step, holder(row.place, chunk), holder(row.source, chunk), about, low, high, row.parts,
            after=tuple(dict.fromkeys(after)), gradients=tuple(dict.fromkeys(gradients)),
            readers=tuple(holder(place, chunk) for place in row.readers),
        ))  # fmt: skip

    pattern = table.chunks[0].pattern
    for number, stage in enumerate(pattern.stages):
        begin = len(tasks)
        if stage.order is EmitOrder.ONCE:
            for row in sorted(range(stage.first, stage.last), key=lambda row: holder(pattern.rows[row].place, 0)):
                write(0, row, pattern.rows[row].share)
        else:
            for chunk, of in enumerate(table.chunks):
                own = of.pattern.stages[number]  # patterns differ in how many rows a stage has
                for row in range(own.first, own.last):
                    write(chunk, row, chunk)
        stages.append(TaskStage(stage.phase, stage.order is EmitOrder.ROUNDS, range(begin, len(tasks))))
    return tasks, stages
