"""What a plan in notation does that no plan of a grid does, in one paragraph."""

from __future__ import annotations

from collections import Counter
from itertools import groupby

from taskflow.mapper import BLOCK, HybridPlan, PipelineSchedule

LEVELS = {
    "none": "not recomputed", "selective": "recomputed in attention's scores", "light": "recomputed where that is quick",
    "alternate": "recomputed but for attention and every other product", "linear": "recomputed but for what attention gives",
    "full": "recomputed in full", "whole": "recomputed whole, with the product that nothing reads",
}  # fmt: skip
OF_A_GRID = ("none", "selective", "full", "whole")


def beyond_grid(plan: HybridPlan | None) -> str:
    """Return the paragraph for a strategy's plan (`plan_of`); empty if it has none, or one that a grid has."""
    if plan is None:
        return ""
    sentences = [*_recomputed(plan), *_sharded(plan), *_ordered(plan)]
    return f"What no plan of a grid does: {' '.join(sentences)}" if sentences else ""


def _recomputed(plan: HybridPlan) -> list[str]:
    if not plan.recompute_layers:
        return [] if plan.recompute in OF_A_GRID else [f"All layers are {LEVELS[plan.recompute]}."]
    parts = ", ".join(f"{many} are {LEVELS[level]}" for level, many in Counter(plan.recompute_layers).items())
    sentences = [f"Of {len(plan.recompute_layers)} layers {parts}. A grid treats all alike."]
    if plan.pipeline > 1 and plan.stages:
        ends, at = [], 0
        for count in plan.stages:
            ends.append(plan.recompute_layers[at : at + count])
            at += count
        if all(ends):
            all_of = [sum(level in ("full", "whole") for level in of) for of in (ends[0], ends[-1])]
            sentences.append(f"Of the first stage's {len(ends[0])} layers {all_of[0]} are recomputed in full, of the last's "
                        f"{len(ends[-1])} {all_of[1]}: later stages keep fewer micro-batches.")
    return sentences


def _sharded(plan: HybridPlan) -> list[str]:
    sentences = []
    if plan.zero_layers:
        runs = ", ".join(f"{len(list(some))} at stage {zero}" for zero, some in groupby(plan.zero_layers))
        sentences.append(f"Layers are sharded at different stages of ZeRO: {runs}.")
    if plan.prefetch != BLOCK:
        sentences.append(f"Weights are gathered layer by layer, {plan.prefetch} ahead, where a grid gathers blocks.")
    return sentences


def _ordered(plan: HybridPlan) -> list[str]:
    sentences = []
    if plan.stages and len(set(plan.stages)) > 1:
        sentences.append(f"Stages have {min(plan.stages)} to {max(plan.stages)} layers.")
    if plan.split > 1:
        sentences.append(f"Each micro-batch is split in {plan.split} parts: one is computed while exchanges of another go on.")
    if plan.schedule is not PipelineSchedule.ONE_F_ONE_B:
        sentences.append(f"Passes are in the order {plan.schedule.value}.")
    return sentences
