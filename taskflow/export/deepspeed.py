"""Plans as DeepSpeed's JSON: replicas, micro-batches, and stages of ZeRO with the sizes of their buckets.

The keys are those of deepspeed/runtime/config.py and runtime/zero/config.py. The module is the user's own, so all that cuts
operators or layers is refused.
"""

from __future__ import annotations

from taskflow.export.difference import LATE
from taskflow.export.hybrid import Hybrid
from taskflow.graph import OperatorGraph
from taskflow.mapper import BLOCK, HybridPlan, block_numbers, samples
from taskflow.writing import json_text

CHECKPOINTS = {
    "none": "", "full": "gradient_checkpointing_enable({'use_reentrant': False}) of a Transformers module, or torch's checkpoint",
    "whole": "gradient_checkpointing_enable({'use_reentrant': True}) of a Transformers module, or torch's reentrant one",
}
"""What a plan's recomputation is in a module of one's own."""


def require_replicas(plan: HybridPlan, who: str, *, context: int = 1, tensor: int = 1) -> None:
    """Raise ValueError unless a plan keeps operators and layers whole, apart from sequences among ``context`` devices and tensor
    groups of ``tensor``, and recomputes none or all of each layer."""
    degrees = (("t", plan.tensor, tensor), ("c", plan.context, context), ("p", plan.pipeline, 1), ("e", plan.experts, 1))
    for word, degree, most in degrees:
        if degree > most:
            raise ValueError(
                f"{who} trains the module as it is, on replicas; {word}{degree} cuts it; take {word}1, or another target: torch, "
                "megatron or torchtitan"
            )
    if plan.recompute not in CHECKPOINTS:
        raise ValueError(f"{who} computes whole layers again, not recompute={plan.recompute}; take recompute=none, full or whole")
    if plan.prefetch != BLOCK:
        raise ValueError(f"{who} gathers the weights of a block at once; leave prefetch out")


def deepspeed_text(graph: OperatorGraph, hybrid: Hybrid) -> tuple[str, tuple[str, ...]]:
    """Return the JSON, and notes on what it cannot say. Raises ValueError with the reason if DeepSpeed has no such plan."""
    plan = hybrid.plan
    require_replicas(plan, "DeepSpeed")
    if plan.shard_group:
        raise ValueError("DeepSpeed shares among all replicas (its MiCS is gone); leave hsdp out, or take the target accelerate")
    if plan.gathers_late and plan.zero < 3:
        raise ValueError(f"DeepSpeed gathers new weights at the end of a step, and {LATE}; leave overlap=all out")
    data, micro, batch = plan.data or 1, plan.micro_batch or 1, samples(graph)
    config: dict[str, object] = {
        "train_batch_size": batch, "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": batch // (data * micro), "zero_optimization": _zero(graph, plan),
    }
    if graph.dtype.itemsize == 2:
        kind = "bf16" if graph.dtype.name == "bfloat16" else "fp16"
        config |= {kind: {"enabled": True}, "communication_data_type": "fp32"}
        if plan.zero:  # at stage 0 DeepSpeed 0.19 refuses it
            config["data_types"] = {"grad_accum_dtype": "fp32"}
    notes = [f"{hybrid.ranks} GPUs: deepspeed --num_gpus, or a hostfile"]
    if graph.dtype.itemsize == 2 and not plan.zero:
        notes.append(f"DeepSpeed adds up gradients of stage 0 in {graph.dtype.name}, the plan in float32; zero1 does as the plan")
    if again := CHECKPOINTS[plan.recompute]:
        notes.append(f"recompute={plan.recompute} is no key of this file: {again}")
    late = plan.zero == 0 or (plan.zero == 1 and graph.dtype.name == "bfloat16")  # its optimizer of bfloat16 sums for itself
    if plan.sharers > 1 and late and plan.sums_beside:
        notes.append(f"DeepSpeed sums gradients of stage {plan.zero} after the backward pass: a plan with overlap=none says so")
    return json_text(config, 2) + "\n", tuple(notes)


def _zero(graph: OperatorGraph, plan: HybridPlan) -> dict[str, object]:
    """The section on ZeRO. Sizes are in elements; of stage 3 such that a block is gathered ahead, and none is kept."""
    found: dict[str, object] = {"stage": plan.zero}
    if plan.zero == 0:
        return found
    found |= {"overlap_comm": plan.sums_beside, "contiguous_gradients": True, "reduce_scatter": True}
    block = largest_block(graph)
    if plan.zero < 3:
        size = max(1, plan.bucket_of(plan.zero) or block)
        return found | {"reduce_bucket_size": size, "allgather_bucket_size": size}
    return found | {
        "reduce_bucket_size": block, "stage3_prefetch_bucket_size": block, "stage3_max_live_parameters": 2 * block,
        "stage3_max_reuse_distance": 0, "stage3_param_persistence_threshold": 0,
    }


def largest_block(graph: OperatorGraph) -> int:
    """Return the elements of the layer with the most weights."""
    numbers, sizes = block_numbers(graph), dict[object, int]()
    for node in graph:
        for parameter in node.parameters:
            key = numbers.get(node.name, node.name)
            sizes[key] = sizes.get(key, 0) + parameter.spec.rect.volume
    return max(sizes.values(), default=1)
