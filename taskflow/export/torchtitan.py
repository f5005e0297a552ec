"""Plans as the sections [parallelism], [training] and [activation_checkpoint] of torchtitan's TOML.

The keys are those of torchtitan's job_config.py (0.2), its last version with TOML; later ones have the same names in Python. Its
rules: replicas are sharded or not, tensor parallelism comes with sequence parallelism, and the batch of a rank is what a pipeline
divides into micro-batches. Without FSDP, groups and pipelines compute in float32, and it has no scaling of losses.
"""

from __future__ import annotations

from dataclasses import replace

from taskflow.export.decoder import sizes_of
from taskflow.export.difference import LATE
from taskflow.export.hybrid import Hybrid
from taskflow.export.megatron import layers_read, require_positions, require_transformer
from taskflow.graph import OperatorGraph
from taskflow.mapper import BLOCK, HybridPlan, PipelineSchedule, block_of, bucket_word, samples, stages_of

SCHEDULES = {
    (PipelineSchedule.GPIPE, False): "GPipe", (PipelineSchedule.GPIPE, True): "LoopedBFS",
    (PipelineSchedule.ONE_F_ONE_B, False): "1F1B", (PipelineSchedule.ONE_F_ONE_B, True): "Interleaved1F1B",
    (PipelineSchedule.ZERO_BUBBLE, False): "InterleavedZeroBubble",
    (PipelineSchedule.ZERO_BUBBLE_V, True): "ZBVZeroBubble",
}
MORE_WORDS = ("products",)  # fields of plans that this file knows besides `KNOWN_WORDS`
PRODUCTS = {"fp8": "quantize.linear.float8"}  # of a plan's products= -> converter
CHECKPOINT_MODES = {
    "none": ('mode = "none"',), "selective": ('mode = "none"',), "alternate": ('mode = "selective"', 'selective_ac_option = "op"'),
    "full": ('mode = "full"', "early_stop = true"), "whole": ('mode = "full"', "early_stop = false"),
}
"""Of a plan's recompute= -> its keys. Its attention never keeps scores, so nothing says that they are computed again."""
FLAVORS = {
    (32, 4096, 14_336, 32, 8, 128_256): "8B", (80, 8192, 28_672, 64, 8, 128_256): "70B",
    (126, 16_384, 53_248, 128, 8, 128_256): "405B",
}
"""Of torchtitan's llama3, by layers, hidden, inner, heads, heads of keys and vocabulary."""


def require_decoder(graph: OperatorGraph) -> None:
    """Raise ValueError for networks with attention to later positions, unless masks say which."""
    if any(node.operator.kind == "flash_attention" and not getattr(node.operator, "causal", True) for node in graph):
        raise ValueError(
            f"torchtitan trains decoders; in {graph.name} positions attend to later ones; take the target megatron, torch or jax"
        )


def torchtitan_text(graph: OperatorGraph, hybrid: Hybrid, title: str) -> str:
    """Return the sections. Raises ValueError with the reason if torchtitan has no such plan."""
    plan = hybrid.plan
    require_transformer(graph, "torchtitan")
    require_positions(graph, plan, "torchtitan")
    require_decoder(graph)
    if not plan.sequence_parallel:
        raise ValueError(
            "torchtitan's tensor parallelism comes with sequence parallelism; leave nosp out, or take the target torch or megatron"
        )
    if plan.prefetch != BLOCK:
        raise ValueError("torchtitan gathers the weights of a block at once; leave prefetch out")
    if plan.experts > 1 and (plan.context > 1 or plan.tensor > 1 or plan.zero == 0):
        raise ValueError(
            "torchtitan deals experts to the ranks that share weights (FSDP), and a tensor group cuts each of them; take eN with "
            "zero1 to zero3 and without t and c"
        )
    data, micro = plan.data or 1, plan.micro_batch or 1
    shares = (plan.shard_group or data) if plan.zero else 1
    if shares % plan.experts:
        raise ValueError(
            f"torchtitan deals experts to ranks that share weights (FSDP), here {shares}, which do not divide by e{plan.experts}"
        )
    if plan.context > 1 and (plan.zero == 0 or plan.shard_group):
        raise ValueError("torchtitan shares weights among the ranks of a sequence (FSDP); take cN with zero1 to zero3, no hsdp")
    if plan.pipeline > 1 and (plan.schedule, plan.virtual > 1) not in SCHEDULES:
        raise ValueError(f"torchtitan has no schedule={plan.schedule.value} with {plan.virtual} stages a rank; use 1f1b")
    batch = samples(graph)
    local = batch // data if plan.pipeline > 1 else micro
    _require_micro_batches(plan, local // micro)
    _require_precision(graph, plan, shares)
    lines = [
        f"# {title}", "[parallelism]",
        f"data_parallel_replicate_degree = {data // shares}", f"data_parallel_shard_degree = {shares}",
        f'fsdp_reshard_after_forward = "{"always" if plan.zero == 3 else "never"}"',
        f"tensor_parallel_degree = {plan.tensor}", f"context_parallel_degree = {plan.context}",
        f"expert_parallel_degree = {plan.experts}",
        f"pipeline_parallel_degree = {plan.pipeline}",
    ]
    if plan.context > 1:  # a ring, or keys and values at once
        lines.append(f'context_parallel_rotate_method = "{"alltoall" if plan.ring else "allgather"}"')
    if plan.pipeline > 1:
        lines += [
            f'pipeline_parallel_schedule = "{SCHEDULES[plan.schedule, plan.virtual > 1]}"',
            f"pipeline_parallel_microbatch_size = {micro}", f"module_fqns_per_model_part = {_parts(graph, hybrid)}",
        ]
    lines += ["", "[training]", f"local_batch_size = {local}", f"global_batch_size = {batch}"]
    lines += [f'mixed_precision_param = "{graph.dtype.name}"', 'mixed_precision_reduce = "float32"', *_network(graph)]
    if shares == 1 < data:
        size = bucket_word(plan.bucket_of(0))
        lines[0] += f"\n# torchtitan's buckets of gradients have 100 MB, which no key says; the plan has bucket={size}"
    if plan.zero in (1, 2) and not plan.gathers_late:
        lines[0] += f"\n# {LATE}"
    lines += ["", "[activation_checkpoint]", *CHECKPOINT_MODES[plan.recompute]]
    if plan.products:
        converter, model = PRODUCTS[plan.products], "[model]"
        if model not in lines:
            lines += ["", model]
        lines.insert(lines.index(model) + 1, f'converters = ["{converter}"]')
        lines += ["", f"[{converter}]", 'filter_fqns = ["output"]']
    return "\n".join(lines) + "\n"


def _require_micro_batches(plan: HybridPlan, many: int) -> None:
    """Raise ValueError unless a pipeline's micro-batches are as many as PyTorch's schedules ask for."""
    if plan.pipeline > 1 and plan.schedule is PipelineSchedule.ONE_F_ONE_B and plan.virtual == 1 and many < plan.pipeline:
        raise ValueError(
            f"PyTorch's 1F1B needs as many micro-batches as stages, {plan.pipeline}, got {many}; take schedule=gpipe or a "
            "smaller mb"
        )


def _require_precision(graph: OperatorGraph, plan: HybridPlan, shares: int) -> None:
    """Raise ValueError unless torchtitan computes in the type of a plan."""
    name = graph.dtype.name
    if name not in ("float32", "bfloat16"):
        raise ValueError(f"torchtitan computes in float32 or bfloat16, and does not scale losses; {graph.name} is in {name}")
    if name == "bfloat16" and shares == plan.context == 1 and max(plan.tensor, plan.pipeline) > 1:
        raise ValueError(
            "torchtitan computes in bfloat16 with shared weights (FSDP) or replicas alone, and with t or p otherwise in float32; "
            "take zero1 to zero3 with two replicas or more, or plan in float32"
        )


def _network(graph: OperatorGraph) -> list[str]:
    """The length of sequences, and the section of a network that torchtitan has by name. Of another one its sizes in a comment,
    since flavors are its code, or why it has no such sizes."""
    try:
        of = sizes_of(graph)
    except ValueError as why:
        return [f"# seq_len and [model] of your own: {why}"]
    name = FLAVORS.get((of.layers, of.hidden, of.inner, of.heads, of.key_heads, of.vocabulary))
    own = replace(
        of, eps=1e-5, theta=5e5, stretch=8.0, rms=True, gated=True, dropout=0.0, attention_dropout=0.0, tied=False, bias=False,
        head_bias=False, head_norms=False, positions=0, experts=0, chosen=0, head_size=of.hidden // of.heads,
    )
    if name is not None and own == of:
        return [f"seq_len = {of.steps}", "", "[model]", 'name = "llama3"', f'flavor = "{name}"']
    return [
        f"seq_len = {of.steps}", "",
        f"# [model] of your own: dim = {of.hidden}, n_layers = {of.layers}, n_heads = {of.heads}, n_kv_heads = {of.key_heads},",
        f"# head_dim = {of.head_size}, hidden_dim = {of.inner}, vocab_size = {of.vocabulary}"
        + (f", num_experts = {of.experts}, top_k = {of.chosen}" if of.experts else ""),
    ]


def _parts(graph: OperatorGraph, hybrid: Hybrid) -> str:
    """The modules of each stage, by torchtitan's names."""
    plan = hybrid.plan
    count = plan.pipeline * plan.virtual
    numbers = {name: layer for name, layer in layers_read(graph).items() if block_of(name)}
    stage_of = stages_of(graph, count, plan.stages)
    parts = [
        [f"layers.{layer}" for layer in sorted({layer for name, layer in numbers.items() if stage_of[name] == stage})]
        for stage in range(count)
    ]
    if not all(parts[1:-1]) or sum(map(len, parts)) > len({*numbers.values()}):
        raise ValueError("a stage without layers; torchtitan's stages are made of whole layers")
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "output"]
    return "[" + ", ".join("[" + ", ".join(f'"{name}"' for name in part) + "]" for part in parts) + "]"
