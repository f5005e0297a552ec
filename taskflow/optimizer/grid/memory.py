"""Memory of a device under a plan, in closed form: weights, gradients, the update rule's state, and what passes keep.

It counts less than `taskflow.optimizer.MemoryCheck`: of short-lived arrays only the largest operator's. Plans are dropped only
if this estimate exceeds the memory by `MARGIN`, so none that fits is dropped. `MemoryCheck` checks the others when they are
simulated.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from taskflow.mapper import HybridPlan, PassKind, PipelineSchedule, rank_passes
from taskflow.optimizer.grid.node_table import Array
from taskflow.optimizer.grid.stages import PlanSums

MARGIN = 0.25
"""Plans are dropped whose estimate exceeds a device's memory by this share. Of 77 random plans of three tiny networks on four
devices none was estimated at more than 18 % above the planned memory."""
MOST_ROUNDS = 3  # of micro-batches through all ranks, after which 1F1B keeps as many as ever


@dataclass(frozen=True, slots=True)
class PlanMemory:
    """Bytes on the device that needs the most."""

    weights: float
    gradients: float
    state: float
    activations: float

    @property
    def nbytes(self) -> float:
        return self.weights + self.gradients + self.state + self.activations

    def times(self, factor: float) -> PlanMemory:
        """Return it multiplied by a factor."""
        return PlanMemory(self.weights * factor, self.gradients * factor, self.state * factor, self.activations * factor)


def memory_of_plan(sums: PlanSums, plan: HybridPlan, micro_batches: int) -> PlanMemory:
    """Return the estimate for a plan with this many micro-batches."""
    return max(rank_memories(sums, plan, micro_batches), key=lambda one: one.nbytes)


def rank_memories(sums: PlanSums, plan: HybridPlan, micro_batches: int) -> list[PlanMemory]:
    """Return the memory of a device of each rank of the pipeline. With one micro-batch each gradient is summed, used and freed in
    the backward pass, while what the forward pass has kept goes: where most is kept there are none. But gradients that are summed
    by shares are held whole for one layer or block at a time, and counted with activations."""
    needs, reduced = _whole_memories(sums, plan, micro_batches), sums.weights(plan).reduced
    own = (plan.schedule.stages(rank, plan.pipeline, plan.virtual) for rank in range(plan.pipeline))
    needs = [replace(need, activations=need.activations + float(reduced[of].max())) for need, of in zip(needs, own)]
    return [replace(need, gradients=0.0) for need in needs] if micro_batches == 1 else needs


def _whole_memories(sums: PlanSums, plan: HybridPlan, micro_batches: int) -> list[PlanMemory]:
    """The same with all gradients, as in programs that keep an array for them."""
    passes, weights = sums.sums(plan), sums.weights(plan)
    found: list[PlanMemory] = []
    for rank in range(plan.pipeline):
        own = plan.schedule.stages(rank, plan.pipeline, plan.virtual)
        alive = kept_at_once(plan, micro_batches, rank)
        activations = float((alive @ passes.kept[own]).max(initial=0.0)) + float(passes.passing[own].max())
        found.append(PlanMemory(
            float(weights.held[own].sum() + weights.gathered[own].max()), float(weights.gradients[own].sum()),
            float(weights.state[own].sum()), activations,
        ))  # fmt: skip
    return found


def bytes_in_program(sums: PlanSums, plan: HybridPlan, micro_batches: int) -> float:
    """Return the bytes on the device that needs the most if a plan runs in the program that drives the device. `memory_of_plan` is
    for taskflow's runtime; a program may reserve memory, keep more from forward to backward, and sum gradients in another type."""
    program = sums.tables.device.program
    needs = _whole_memories(sums, plan, micro_batches)
    if program is None:
        return max(need.nbytes for need in needs)
    more = sums.sums(plan).more
    found = 0.0
    for rank, need in enumerate(needs):
        own = plan.schedule.stages(rank, plan.pipeline, plan.virtual)
        kept = float((kept_at_once(plan, micro_batches, rank) @ more[own]).max(initial=0.0))
        found = max(found, need.nbytes + kept + (sums.bytes_of.narrower() - 1) * need.gradients)
    return found + program.reserved_bytes


def kept_at_once(plan: HybridPlan, micro_batches: int, rank: int) -> Array:
    """Return (moments, stages): how many micro-batches a rank keeps of each of its stages, at the moments when it keeps the
    most."""
    schedule, ranks, chunks = plan.schedule, plan.pipeline, plan.virtual
    if schedule is PipelineSchedule.GPIPE or ranks * chunks == 1:
        return np.array([[micro_batches if schedule is PipelineSchedule.GPIPE else 1] * chunks])
    return _alive_of(schedule, ranks, chunks, min(micro_batches, MOST_ROUNDS * ranks), rank)


@lru_cache(maxsize=4096)
def _alive_of(schedule: PipelineSchedule, ranks: int, chunks: int, micro_batches: int, rank: int) -> Array:
    now, rows = [0] * chunks, set()
    for one in rank_passes(schedule, ranks, chunks, micro_batches, rank):
        if one.kind is PassKind.FORWARD:
            now[one.stage // ranks] += 1
            rows.add(tuple(now))
        elif one.kind is PassKind.BACKWARD:
            now[one.stage // ranks] -= 1
    return np.array([row for row in rows if not any(_less(row, other) for other in rows)])


def _less(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    return one != other and all(a <= b for a, b in zip(one, other))
