"""What the words of a plan do not go with: a function each, which returns what is wrong with a plan, None if nothing.

`taskflow.mapper.plan_words` has the words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskflow.mapper.sync import BLOCK

if TYPE_CHECKING:
    from taskflow.mapper.plan import HybridPlan

RECOMPUTE = ("none", "selective", "light", "alternate", "linear", "full", "whole")
OVERLAP = ("none", "grads", "all")


def fine(plan: HybridPlan) -> None:
    """Of a word that goes with all others."""


def virtual(plan: HybridPlan) -> str | None:
    """Several stages a rank need a pipeline."""
    alone = plan.virtual > 1 and plan.pipeline == 1
    return f"v{plan.virtual} interleaves the stages of a pipeline, which needs p2 or more" if alone else None


def ring(plan: HybridPlan) -> str | None:
    """A ring of keys needs a context over several groups."""
    return "ring is how the keys of a context go around, which needs c2 or more" if plan.ring and plan.context == 1 else None


def ulysses(plan: HybridPlan) -> str | None:
    """Heads are dealt among the groups of a context, of which each then has all keys of its own."""
    if plan.ulysses and plan.context == 1:
        return "ulysses deals the heads of attention to the groups of a context, which needs c2 or more"
    if plan.ulysses and plan.ring:
        return "ulysses gives each group all keys of its heads, so that none go around a ring; leave ring out"
    return None


def no_sequence(plan: HybridPlan) -> str | None:
    """Only tensor groups share sequences."""
    if not plan.sequence_parallel and plan.tensor == 1:
        return "nosp is what a tensor group does not share, which needs t2 or more"
    return None


def no_loss(plan: HybridPlan) -> str | None:
    """Only tensor groups share scores."""
    if not plan.loss_parallel and plan.tensor == 1:
        return "nolp is how a tensor group has the scores of all words, which needs t2 or more"
    return None


def again(plan: HybridPlan) -> str | None:
    """Only what tensor groups gather is gathered again."""
    if plan.regather and not plan.along:
        return "regather is for what a tensor group gathers along the sequence: t2 or more, without nosp"
    return None


def stage(plan: HybridPlan) -> str | None:
    """ZeRO has stages 0 to 3."""
    wrong = next((zero for zero in plan.zeros if not 0 <= zero <= 3), None)
    return None if wrong is None else f"zero{wrong} is no stage of ZeRO; zero0 to zero3 are"


def group(plan: HybridPlan) -> str | None:
    """A group of shares is for sharded gradients or weights, and has several replicas."""
    if plan.shard_group == 1 or (plan.shard_group and plan.zero < 2):
        wanted = "for two replicas or more, and for zero2 or zero3 (the default with hsdp)"
        return f"hsdp{plan.shard_group} is {wanted}, got zero{plan.zero}"
    return None


def prefetch(plan: HybridPlan) -> str | None:
    """Only sharded weights are gathered ahead."""
    if plan.prefetch != BLOCK and plan.zero < 3:
        return f"prefetch={plan.prefetch} is how far ahead weights are gathered, which needs zero3 or fsdp"
    return None


def overlap(plan: HybridPlan) -> str | None:
    """When gradients are summed and new weights gathered depends on the stage of ZeRO."""
    if plan.overlap not in OVERLAP:
        return f"overlap must be one of {', '.join(OVERLAP)}, got {plan.overlap!r}"
    if plan.overlap == "none" and plan.zero > 1:
        return f"overlap=none sums gradients after the backward pass, which zero{plan.zero} does not keep so long"
    if plan.overlap == "all" and not {1, 2} & set(plan.zeros):
        why = "gathers none" if plan.zero == 0 else "gathers them for each pass anyway"
        return f"overlap=all gathers new weights during the next forward pass, which needs zero1 or zero2; zero{plan.zero} {why}"
    return None


def bucket(plan: HybridPlan) -> str | None:
    """Weights sharded in blocks have no buckets."""
    if plan.bucket is not None and min(plan.zeros) > 1:
        return f"bucket= is for zero0 and zero1; with zero{plan.zero} weights travel block by block"
    return None


def chunks(plan: HybridPlan) -> str | None:
    """A schedule may prescribe the stages a rank."""
    if plan.pipeline > 1 and plan.schedule.chunks not in (None, plan.virtual):
        return f"schedule={plan.schedule.value} needs v{plan.schedule.chunks}, got v{plan.virtual}"
    return None


def dealt(plan: HybridPlan) -> str | None:
    """Layers are dealt to all stages."""
    if plan.stages and len(plan.stages) != plan.pipeline * plan.virtual:
        return f"stages= needs the layers of {plan.pipeline * plan.virtual} stages (p x v), got {len(plan.stages)}"
    return None


def shared(plan: HybridPlan) -> str | None:
    """Shares are of a micro-batch, one for each replica."""
    if plan.shares and plan.micro_batch is not None:
        return (
            f"shares= says how many samples of a micro-batch each replica takes, which mb{plan.micro_batch} says of all; "
            "leave one of them out"
        )
    if plan.shares and (min(plan.shares) < 1 or plan.data not in (None, len(plan.shares))):
        return f"shares= needs 1 sample or more for each of {plan.data or 'the'} replicas, got {','.join(map(str, plan.shares))}"
    if plan.shares and plan.experts > 1:
        return f"e{plan.experts} deals experts to replicas that take as many samples each; leave shares= out"
    return None


def levels(plan: HybridPlan) -> str | None:
    """What is recomputed has names."""
    wrong = next((level for level in (plan.recompute, *plan.recompute_layers) if level not in RECOMPUTE), None)
    return None if wrong is None else f"recompute must be one of {', '.join(RECOMPUTE)}, got {wrong!r}"
