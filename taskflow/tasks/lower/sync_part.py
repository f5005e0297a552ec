"""The part of a bundle's synchronisation that one of several repetitions of a plan takes in it."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from taskflow.tasks.lower.gradient_sync import ChunkPattern, RowStage, SyncTable


def first_repetition(table: SyncTable, holders: int) -> SyncTable:
    """The rows of the first ``holders`` of a table of all repetitions' holders, those of the first repetition first. Collectives
    stay, and wait for the first holders alone: all others do the same at the same time. ValueError if anything else goes between
    holders, since the others' messages would be missing."""
    first = table.chunks[0].pattern
    if any(row.step.is_message for row in first.rows):
        raise ValueError("first_repetition: only collectives keep weights of repetitions equal; got messages between holders")
    pattern = _part(first, holders)
    own = table.chunks[:holders] if len(table.chunks) > 1 else table.chunks
    return SyncTable(holders, table.size, tuple(replace(chunk, pattern=pattern) for chunk in own))


@lru_cache(maxsize=1024)
def _part(pattern: ChunkPattern, holders: int) -> ChunkPattern:
    """A pattern's rows at the first holders; of each what it waits for there."""
    stays = [number for number, row in enumerate(pattern.rows) if row.step.is_collective or row.place < holders]
    number = {old: new for new, old in enumerate(stays)}
    rows = tuple(
        replace(
            row, after=tuple(number[a] for a in row.after if a in number), gradients=tuple(p for p in row.gradients if p < holders),
            readers=tuple(p for p in row.readers if p < holders),
        )
        for row in (pattern.rows[old] for old in stays)
    )  # fmt: skip
    stages = []
    for stage in pattern.stages:
        there = [number[old] for old in range(stage.first, stage.last) if old in number]
        at = there[0] if there else 0
        stages.append(RowStage(stage.phase, stage.order, at, at + len(there)))
    sums = tuple(None if row is None else number[row] for row in pattern.sums[:holders])
    return ChunkPattern(rows, tuple(stages), sums)
