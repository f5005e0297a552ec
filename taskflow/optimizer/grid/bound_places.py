"""LayerPlaces: where a layer may be in a pipeline, and what it costs there, for bounds.

A rank's passes are one after the other. So a step takes at least as long as each path of this form. The first micro-batch goes
through the stages before one. The stage's rank runs all of its passes from that micro-batch's on. The last micro-batch's
gradients go back through the stages before. A rank with several stages has two places: its last stage, and all others together.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

import numpy as np

from taskflow.mapper import HybridPlan, PassKind, PipelineSchedule, rank_passes
from taskflow.optimizer.grid.memory import MOST_ROUNDS
from taskflow.optimizer.grid.node_table import Array


@dataclass(frozen=True, eq=False, slots=True)
class LayerPlaces:
    """``rank``: of each place. ``forward``, ``backward`` (paths, places): how many passes of a place a path has on its rank;
    ``fill``, ``drain``: through how many of them it goes before and afterwards. ``kept``, ``summed`` (moments, places): how many
    micro-batches of a place are kept at a moment, and whether gradients of earlier ones are; ``own``: whether a place is on the
    moment's rank. ``updates``: whether paths end with a rank's own tasks, so that its updates come after them; ``adding``: of a
    place's passes on its own rank's paths, the part that adds gradients to earlier ones. ``ahead``: by path, how many of the
    network's first layers lie at least before it, both ways, besides those in ``fill`` and ``drain``."""

    rank: Array
    forward: Array
    backward: Array
    fill: Array
    drain: Array
    kept: Array
    summed: Array
    own: Array
    updates: bool
    adding: float
    ahead: Array


class ScheduleKind(Enum):
    """Kinds of schedules. ALONE: of one rank. IN_TURN: 1F1B, or GPipe with one stage a rank, which keeps no less. APART: ZB-H1.
    INTERLEAVED and GPIPE: with several stages a rank. Schedules in a V are kinds of their own (`Kind`)."""

    ALONE = "alone"
    IN_TURN = "1f1b"
    APART = "zb-h1"
    INTERLEAVED = "interleaved"
    GPIPE = "gpipe"


Kind = ScheduleKind | PipelineSchedule


@lru_cache(maxsize=4096)
def places_of(kind: Kind, ranks: int, count: int) -> LayerPlaces:
    """Return the places of a kind of schedule for ``count`` micro-batches."""
    if isinstance(kind, PipelineSchedule):
        return _of_v(kind, ranks, count)
    if kind in (ScheduleKind.INTERLEAVED, ScheduleKind.GPIPE):
        return _of_several(ranks, count, kind is ScheduleKind.GPIPE)
    before = np.tri(ranks, k=-1)
    own, eye = count * np.eye(ranks), np.eye(ranks)
    moments: list[tuple[Array, float, Array]] = []
    for rank in range(ranks):
        alive = min(count, ranks - rank)
        again = count > (ranks if kind is ScheduleKind.APART else alive)  # so many are kept once more after a first gradient
        moments.append((alive * eye[rank], float(again), eye[rank]))
        if not again and count > 1 and kind is not ScheduleKind.APART:
            moments.append(((alive - 1) * eye[rank], 1.0, eye[rank]))
        elif not again and count > 1:
            moments.append((0 * eye[rank], 1.0, eye[rank]))
    return LayerPlaces(
        np.arange(ranks), own, own, before, before * (kind is not ScheduleKind.APART), np.array([one for one, _, _ in moments]),
        np.array([summed * of for _, summed, of in moments]), np.array([of for _, _, of in moments]),
        kind is not ScheduleKind.IN_TURN, 1 - 1 / count, np.zeros(ranks, np.int64),
    )


def _of_several(ranks: int, count: int, together: bool) -> LayerPlaces:
    """Of several stages a rank. Groups of as many micro-batches as ranks go through all of a rank's stages but the last, before
    any goes through that; with GPipe all micro-batches do (``together``). LayerPlaces: the last stages, then the others."""
    group = count if together else ranks
    places = 2 * ranks
    rank = np.tile(np.arange(ranks), 2)
    through, fill = np.zeros((2 * ranks, places)), np.zeros((2 * ranks, places))
    kept, summed, own = [], [], []
    for one in range(ranks):
        last, other = one, ranks + one
        through[one, [last, other]] = count, count - group
        fill[one, :one], fill[one, ranks:] = 1, 1
        through[ranks + one, [last, other]] = count
        here = (rank == one).astype(float)
        alive = np.zeros(places)
        alive[other], alive[last] = group, group if together else min(ranks, 2 * (ranks - 1 - one) + 1)
        steady = not together and count >= 3 * ranks
        kept.append(alive)
        summed.append(here * steady)
        own.append(here)
        if not steady and count > 1:
            kept.append(np.zeros(places))
            summed.append(here)
            own.append(here)
    adding = 0.0 if count == group else 1 - 1 / (count - group)
    return LayerPlaces(
        rank, through, through, fill, fill, np.array(kept), np.array(summed), np.array(own), False, adding,
        np.concatenate([np.zeros(ranks, np.int64), np.arange(ranks)]),
    )


def _of_v(schedule: PipelineSchedule, ranks: int, count: int) -> LayerPlaces:
    """Of a schedule in a V: the stages that go forth, then those that go back. Paths end with a rank's own passes, as gradients of
    weights may be computed while those of inputs go back."""
    rank, before, fill, kept, summed = _v(schedule, ranks, min(count, MOST_ROUNDS * ranks))
    forward, backward = (np.where(rank[:, None] == rank[None, :], count - some, 0.0) for some in before)
    least = max(1.0, float(backward[backward > 0].min(initial=count)))
    own = (rank[None, :] == kept[:, -1:]).astype(float)
    none = np.zeros(2 * ranks, np.int64)
    return LayerPlaces(rank, forward, backward, fill, fill * 0, kept[:, :-1], summed, own, True, 1 - 1 / least, none)


@lru_cache(maxsize=256)
def _v(schedule: PipelineSchedule, ranks: int, count: int) -> tuple[Array, Array, Array, Array, Array]:
    """Found in the passes. The rank of each stage. (2, stages, stages): how many passes of another stage of its rank come before a
    stage's first, forward, and gradients of weights or inputs. The stages before each. Moments: what is kept, with the rank in a
    last column, and of which stages gradients are there."""
    stages = 2 * ranks
    rank = np.array([schedule.rank(stage, ranks) for stage in range(stages)])
    before = np.zeros((2, stages, stages))
    kept: list[tuple[float, ...]] = []
    summed: list[tuple[float, ...]] = []
    for one in range(ranks):
        mine = schedule.stages(one, ranks, 2)
        numbers = {kind: [0.0] * stages for kind in PassKind}
        now, seen = [0.0] * stages, [0.0] * stages
        rows: set[tuple[float, ...]] = set()
        for which in rank_passes(schedule, ranks, 2, count, one):
            if which.kind is PassKind.FORWARD:
                if not numbers[which.kind][which.stage]:
                    before[0, which.stage] = numbers[PassKind.FORWARD]
                    before[1, which.stage] = np.maximum(numbers[PassKind.BACKWARD], numbers[PassKind.WEIGHTS])
                now[which.stage] += 1
            numbers[which.kind][which.stage] += 1
            rows.add((now[mine[0]], now[mine[1]], seen[mine[0]], seen[mine[1]]))
            if which.kind is PassKind.BACKWARD:
                now[which.stage] -= 1
            elif which.kind is PassKind.WEIGHTS:
                seen[which.stage] = 1
        every = np.array(sorted(rows))
        below = (every[:, None] <= every[None]).all(axis=2).sum(axis=1) > 1  # what others have all of
        for row in every[~below]:
            whole = np.zeros((2, stages))
            whole[:, mine] = row.reshape(2, 2)
            kept.append((*whole[0].tolist(), float(one)))
            summed.append(tuple(whole[1].tolist()))
    return rank, before, np.tri(stages, k=-1), np.array(kept), np.array(summed)


def kind_of(plan: HybridPlan) -> Kind:
    """Return the kind of a plan's schedule."""
    if plan.pipeline == 1:
        return ScheduleKind.ALONE
    if plan.schedule.in_a_v:
        return plan.schedule
    if plan.schedule.weights_apart:
        return ScheduleKind.APART
    if plan.virtual == 1:
        return ScheduleKind.IN_TURN
    return ScheduleKind.GPIPE if plan.schedule is PipelineSchedule.GPIPE else ScheduleKind.INTERLEAVED


def kinds_of(plan: HybridPlan, count: int, layers: int) -> list[Kind]:
    """Return the kinds of schedules that a plan's ranks can have."""
    p = plan.pipeline
    if p == 1:
        return [ScheduleKind.ALONE]
    found: list[Kind] = [ScheduleKind.IN_TURN, ScheduleKind.APART]
    if 2 * p <= layers:
        found += [ScheduleKind.GPIPE, *(schedule for schedule in PipelineSchedule if schedule.in_a_v)]
        found += [ScheduleKind.INTERLEAVED] * (count % p == 0)
    return found
