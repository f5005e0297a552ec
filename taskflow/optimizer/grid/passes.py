"""Passes: seconds of all passes of a pipeline, given those of a pass of each stage, for one plan or for many at once as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from taskflow.mapper import PassKind, Pipeline, PipelineSchedule

Seconds = Any  # a float, or an array with a number for each of several plans
LONG = 3
"""Rounds of micro-batches through all ranks, after which each further one takes as long as the one before."""


def passes_seconds(
    ahead: Sequence[Seconds], back: Sequence[Seconds], micro_batches: int, message: Seconds, *, ranks: int,
    schedule: PipelineSchedule = PipelineSchedule.ONE_F_ONE_B, behind: Sequence[Seconds] = (),
) -> Seconds:
    """Return the seconds until the last pass ends. ``ahead`` and ``back``: of a forward and a backward pass of each stage.
    ``message``: from one rank to the next. ``behind``: for how long the message of each stage's backward pass waits for its links
    (empty: not at all)."""
    if len(ahead) == 1:
        return micro_batches * (ahead[0] + back[0])
    split = schedule.weights_apart
    larger = np.maximum if isinstance(ahead[0], np.ndarray) else max
    halves = [b / 2 for b in back] if split else back
    each = {PassKind.FORWARD: ahead, PassKind.BACKWARD: halves, PassKind.WEIGHTS: halves}
    ends: list[Seconds] = []
    free: list[Seconds] = [0.0] * ranks
    for kind, stage, before, travels in _order(schedule, ranks, len(ahead), micro_batches):
        rank = schedule.rank(stage, ranks)
        ready = free[rank]
        if before is not None:
            late = behind[stage + 1] if behind and travels and kind is PassKind.BACKWARD else 0.0
            ready = larger(ready, ends[before] + message + late if travels else ends[before])
        ends.append(ready + each[kind][stage])
        free[rank] = ends[-1]
    total = free[0]
    for other in free[1:]:
        total = larger(total, other)
    return total


def long_passes_seconds(
    ahead: Sequence[Seconds], back: Sequence[Seconds], micro_batches: int, message: Seconds, *, ranks: int,
    schedule: PipelineSchedule = PipelineSchedule.ONE_F_ONE_B, behind: Sequence[Seconds] = (),
) -> Seconds:
    """Return the same, with rounds after the first `LONG` extrapolated from the last two of these."""
    most = LONG * ranks
    if micro_batches <= most or len(ahead) == 1:
        return passes_seconds(ahead, back, micro_batches, message, ranks=ranks, schedule=schedule, behind=behind)
    last, before = (
        passes_seconds(ahead, back, count, message, ranks=ranks, schedule=schedule, behind=behind)
        for count in (most, most - ranks)
    )
    return last + (last - before) * ((micro_batches - most) / ranks)


@lru_cache(maxsize=256)
def _order(
    schedule: PipelineSchedule, ranks: int, stages: int, micro_batches: int
) -> tuple[tuple[PassKind, int, int | None, bool], ...]:
    """All passes in order: kind, stage, the number of the pass whose result it waits for, and whether that comes as a message."""
    numbers: dict[tuple[PassKind, int, int], int] = {}
    found: list[tuple[PassKind, int, int | None, bool]] = []
    pipeline = Pipeline(micro_batches, {str(s): s for s in range(stages)}, ranks, schedule)
    for one in pipeline.passes():
        m, s = one.micro_batch, one.stage
        from_ = {PassKind.FORWARD: (one.kind, m, s - 1), PassKind.BACKWARD: (one.kind, m, s + 1)}.get(one.kind)
        before = numbers.get(from_) if from_ is not None else None
        numbers[one.kind, m, s] = len(found)
        here = from_ is not None and schedule.rank(from_[2], ranks) == schedule.rank(s, ranks)
        found.append((one.kind, s, before, before is not None and not here))
    return tuple(found)
