"""CoreTables: gives the compiled core the tables of how bundles are synchronised, each when it first asks for one."""

from __future__ import annotations

from taskflow.mapper import Sync
from taskflow.optimizer.evaluate._core import Core
from taskflow.tasks.lower import ChunkPattern, SyncStep, first_repetition, first_root, make_sync_table

STEPS = {step: number for number, step in enumerate(SyncStep)}  # as in sync_table.h
MOST_PATTERNS, MOST_CHUNKS = 4096, 1_000_000  # that the core keeps


class CoreTables:
    """Tables that one core has been given. ``repeats``: number of repetitions of its plan (`Repetition`)."""

    def __init__(self, core: Core, repeats: int = 1) -> None:
        self._core, self._repeats = core, repeats
        self._ways: dict[Sync, int] = {}
        self._syncs: list[Sync] = []
        self._patterns: dict[ChunkPattern, int] = {}
        self._chunks = 0

    def way(self, sync: Sync) -> tuple[int, bool]:
        """Return the number by which the core refers to a `Sync`, and whether its first root differs between bundles."""
        number = self._ways.get(sync)
        if number is None:
            number = self._ways[sync] = len(self._syncs)
            self._syncs.append(sync)
        return number, first_root(sync, 1, 2) == 1

    def chunks(self, way: int, giving: tuple[bool, ...], size: int, itemsize: int) -> list[tuple[int, int, int, int]]:
        """Return (low, high, root, number of the pattern) of each chunk of a bundle, as in `SyncTable`."""
        table = make_sync_table(self._syncs[way], giving * self._repeats, size, itemsize)
        if self._repeats > 1:
            table = first_repetition(table, len(giving))
        self._chunks += len(table.chunks)
        if len(self._patterns) > MOST_PATTERNS or self._chunks > MOST_CHUNKS:
            self._core.forget_sync_tables()
            self._patterns.clear()
            self._chunks = len(table.chunks)
        return [(chunk.low, chunk.high, chunk.root, self._number(chunk.pattern)) for chunk in table.chunks]

    def _number(self, pattern: ChunkPattern) -> int:
        number = self._patterns.get(pattern)
        if number is None:
            number = self._patterns[pattern] = self._core.add_sync_pattern(
                [
                    (STEPS[row.step], row.place, row.source, row.parts, -1 if row.share is None else row.share, row.sums)
                    for row in pattern.rows
                ],
                [(row.after, row.gradients, row.readers) for row in pattern.rows],
                [(stage.phase.value, stage.order.value, stage.first, stage.last) for stage in pattern.stages],
                [-1 if row is None else row for row in pattern.sums],
            )  # fmt: skip
        return number
