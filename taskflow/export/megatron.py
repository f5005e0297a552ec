"""Plans as arguments of Megatron-LM: t, p, v, c, e, d, micro-batches, recomputation and a distributed optimiser.

The rules are those that its parser checks (megatron/training/arguments.py). Layers divide among stages unless a layout is given.
Interleaving needs p >= 2 and micro-batches in multiples of p. --sequence-parallel needs t >= 2, and experts with t >= 2 need it.
Sequences divide into 2 c pieces.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from taskflow.export.decoder import DecoderSizes, sizes_of
from taskflow.export.hybrid import Hybrid
from taskflow.graph import OperatorGraph
from taskflow.mapper import (
    HybridPlan,
    PipelineSchedule,
    attends,
    block_numbers,
    block_of,
    default_bucket,
    is_attention,
    samples,
    stages_of,
)

LEVELS = ("selective", "whole")  # its checkpoint of a layer is reentrant: the whole layer runs again
MORE_WORDS = ("products", "regather", "recompute_layers", "ulysses")
"""Fields of plans that this file knows besides `KNOWN_WORDS`."""
PRODUCTS = {"fp8": ("--fp8-format hybrid", "--transformer-impl transformer_engine")}  # of a plan's products= -> arguments
DEEPEP = "--moe-token-dispatcher-type flex", "--moe-enable-deepep", "--moe-router-dtype fp32"  # it takes float32 weights alone
_LIST = re.compile(r"(?:.*?\.)?\d+\.")  # of an operator's name, as far as its outermost number


@dataclass(frozen=True, slots=True)
class Flags:
    """Arguments with their values, and what they do not express."""

    words: Sequence[str]
    notes: Sequence[str]


def megatron_flags(graph: OperatorGraph, hybrid: Hybrid, once_a_node: bool = False) -> Flags:
    """Return the arguments for a plan. ``once_a_node``: tokens go to experts by DeepEP. Raises ValueError with the reason if
    Megatron-LM has no such plan."""
    plan = hybrid.plan
    require_transformer(graph, "Megatron-LM")
    if plan.schedule is not PipelineSchedule.ONE_F_ONE_B and plan.pipeline > 1:
        raise ValueError(
            f"Megatron-LM's schedules are 1F1B and interleaved 1F1B, not {plan.schedule.value}; use schedule=1f1b"
        )
    if plan.zero > 1:
        raise ValueError(
            f"Megatron-LM's distributed optimizer is ZeRO's stage 1, not {plan.zero}; use zero1, or the target torchtitan or torch"
        )
    data, micro = plan.data or 1, plan.micro_batch or 1
    many = samples(graph) // (data * micro)
    if plan.virtual > 1 and many % plan.pipeline:
        raise ValueError(f"interleaved 1F1B needs micro-batches in multiples of p = {plan.pipeline}, got {many}")
    require_positions(graph, plan, "Megatron-LM")
    _require_heads(graph, plan)
    if plan.experts > 1 and plan.context > 1:
        raise ValueError("Megatron-LM deals experts to the ranks that share a sequence first, the plan to replicas; take c or e")
    if plan.experts > 1 and plan.tensor > 1 and not plan.sequence_parallel:
        raise ValueError("Megatron-LM's experts need --sequence-parallel in a tensor group; leave nosp out")
    words = [
        f"--tensor-model-parallel-size {plan.tensor}", f"--pipeline-model-parallel-size {plan.pipeline}",
        f"--micro-batch-size {micro}", f"--global-batch-size {samples(graph)}",
    ]
    if plan.along:
        words.append("--sequence-parallel")
    if plan.context > 1:
        how = "p2p" if plan.ring else "a2a" if plan.ulysses else "all_gather"
        words += [f"--context-parallel-size {plan.context}", f"--cp-comm-type {how}"]
    if plan.experts > 1:  # a tensor group shares a replica's experts one by one; its default is an all-gather
        words += [
            f"--expert-model-parallel-size {plan.experts * plan.tensor}", "--expert-tensor-parallel-size 1",
            *(DEEPEP if once_a_node else ("--moe-token-dispatcher-type alltoall",)),
        ]
    words += _stages(graph, plan)
    if plan.zero:
        words.append("--use-distributed-optimizer")
    words += _buckets(plan)
    if plan.recompute == "selective":
        words.append("--recompute-granularity selective")
    elif plan.recompute == "whole":
        words += ["--recompute-granularity full", "--recompute-method uniform", "--recompute-num-layers 1"]
    elif plan.recompute_layers:
        words += ["--recompute-granularity full", "--recompute-method block"]
        words.append(f"--recompute-num-layers {first_again(plan, layers_dealt(graph, plan))}")
    if graph.dtype.itemsize == 2:  # of float16 Megatron-LM sums gradients in float16 unless it is told
        words += ["--bf16"] if graph.dtype.name == "bfloat16" else ["--fp16", "--accumulate-allreduce-grads-in-fp32"]
    more, yours = _network(graph)
    words += more
    if plan.products:
        words += PRODUCTS[plan.products]
    notes = [
        f"{hybrid.ranks} GPUs, in Megatron-LM's order of ranks tp-cp-ep-dp-pp, which is the plan's",
        *yours,
    ]
    if plan.tensor * plan.context > 1:  # its parser refuses to start without it
        notes.append("on GPUs before Blackwell set CUDA_DEVICE_MAX_CONNECTIONS=1 in the environment, which t and c need")
    if plan.along and not plan.regather:
        notes.append("--sequence-parallel gathers along the sequence again for the backward pass: a plan with regather says so")
    if plan.sharers > 1 and not plan.sums_beside:
        notes.append("without --overlap-grad-reduce Megatron-LM sums all gradients of a stage at once, in one bucket")
    return Flags(words, notes)


def _require_heads(graph: OperatorGraph, plan: HybridPlan) -> None:
    """Raise ValueError unless the ranks that deal heads among them get as many heads of keys each."""
    ranks = plan.tensor * plan.context
    for node in graph if plan.ulysses else ():
        if is_attention(node) and (heads := node.inputs[1].spec.shape[2]) % ranks:
            raise ValueError(
                f"Megatron-LM deals whole heads of keys to t x c = {ranks} ranks (a2a), {node.name} has {heads}; leave ulysses out"
            )


def _buckets(plan: HybridPlan) -> list[str]:
    """Arguments for sums of gradients beside the backward pass, for gathers of weights beside the forward pass, and for the size of
    buckets where it is not Megatron-LM's own. Its smallest buckets have one parameter."""
    if plan.sharers == 1 or not plan.sums_beside:
        return []
    size = plan.bucket_of(plan.zero)
    own = [f"--ddp-bucket-size {max(1, size)}"] if size != default_bucket(1, plan.sharers) else []
    return ["--overlap-grad-reduce", *["--overlap-param-gather"] * plan.gathers_late, *own]


def _network(graph: OperatorGraph) -> tuple[list[str], list[str]]:
    """Arguments for the network that was planned, if it is one of Megatron-LM's, and what remains to be said."""
    try:
        sizes = sizes_of(graph)
    except ValueError as why:
        return [], [
            "the network's sizes, tokenizer and data are arguments of your own: Megatron-LM's GPT of these sizes would be another, "
            f"since {why}"
        ]
    notes = ["tokenizer and data are arguments of your own"]
    if sizes.balance:
        notes.append("so is --moe-aux-loss-coeff, whose default is 0")
    if sizes.places:
        notes.append(
            f"experts of the plan have places for {sizes.places:.3g} times the mean; Megatron-LM's have for all unless "
            f"--moe-expert-capacity-factor {sizes.places:.3g} is given"
        )
    return _sizes(sizes), notes


def _sizes(of: DecoderSizes) -> list[str]:
    """Arguments for a network of these sizes. Where its defaults differ they are given, too: dropout of 0.1, and words up to
    a multiple of 128 for each rank of a tensor group."""
    words = [
        f"--num-layers {of.layers}", f"--hidden-size {of.hidden}", f"--ffn-hidden-size {of.inner}",
        f"--num-attention-heads {of.heads}", f"--kv-channels {of.head_size}", f"--seq-length {of.steps}",
        f"--max-position-embeddings {of.positions or of.steps}", f"--vocab-size {of.vocabulary}",
        "--make-vocab-size-divisible-by 1", f"--norm-epsilon {of.eps:g}",
        f"--attention-dropout {of.attention_dropout:g}", f"--hidden-dropout {of.dropout:g}",
    ]
    if of.key_heads != of.heads:
        words += ["--group-query-attention", f"--num-query-groups {of.key_heads}"]
    if of.theta is not None:
        words += ["--position-embedding-type rope", f"--rotary-base {of.theta:.0f}"]
    elif not of.positions:
        words.append("--position-embedding-type none")
    if of.stretch:
        words += ["--use-rope-scaling", f"--rope-scaling-factor {of.stretch:g}"]
    if of.experts:
        words += [f"--num-experts {of.experts}", f"--moe-router-topk {of.chosen}", f"--moe-ffn-hidden-size {of.inner}",
                  "--moe-grouped-gemm"]  # a rank's experts in one product, as they are predicted
    if of.expert_groups > 1:
        words += [f"--moe-router-num-groups {of.expert_groups}", f"--moe-router-group-topk {of.chosen_groups}"]
    flags = {
        "--swiglu": of.gated, "--normalization RMSNorm": of.rms, "--disable-bias-linear": not of.bias,
        "--add-qkv-bias": of.head_bias and not of.bias, "--qk-layernorm": of.head_norms, "--rotary-interleaved": of.neighbours,
        "--moe-router-pre-softmax": of.experts and not of.shared, "--untie-embeddings-and-output-weights": not of.tied,
    }
    return words + [flag for flag, holds in flags.items() if holds]


def _stages(graph: OperatorGraph, plan: HybridPlan) -> list[str]:
    """Arguments that distribute layers over stages: evenly by numbers, otherwise by a layout."""
    if plan.pipeline == 1:
        return []
    dealt = layers_dealt(graph, plan)
    if not all(dealt[1:-1]) or sum(dealt) > len(set(_numbered(graph).values())):
        raise ValueError("a stage without layers; Megatron-LM's stages are made of whole layers")
    if len(set(dealt)) == 1:
        return [f"--num-virtual-stages-per-pipeline-rank {plan.virtual}"] if plan.virtual > 1 else []
    parts = ["t" * layers for layers in dealt]
    parts[0], parts[-1] = f"E{parts[0]}", f"{parts[-1]}L"
    return [f"--pipeline-model-parallel-layout '{'|'.join(parts)}'"]


def layers_dealt(graph: OperatorGraph, plan: HybridPlan) -> tuple[int, ...]:
    """Return how many layers each stage of a plan has; one that is cut counts in each of its stages."""
    numbers, count = _numbered(graph), plan.pipeline * plan.virtual
    stage_of = stages_of(graph, count, plan.stages) if count > 1 else dict.fromkeys(numbers, 0)
    of_stage = Counter(stage for stage, _ in {(stage_of[name], layer) for name, layer in numbers.items()})
    return tuple(of_stage[stage] for stage in range(count))


def _numbered(graph: OperatorGraph) -> dict[str, int]:
    """The layer of each operator that a layer's name has."""
    return {name: layer for name, layer in layers_read(graph).items() if block_of(name)}


def first_again(plan: HybridPlan, dealt: Sequence[int]) -> int:
    """Return how many first layers of each stage a plan computes again as a whole, and no others (--recompute-method block): all
    of a stage that has fewer. 0 if it computes others again. ``dealt``: the layers of each stage."""
    levels, at, counts = plan.recompute_layers, 0, list[tuple[int, int]]()
    for layers in dealt:
        own = levels[at : at + layers]
        at, many = at + layers, own.count("whole")
        if own != ("whole",) * many + ("none",) * (layers - many):
            return 0
        counts.append((many, layers))
    most = max(many for many, _ in counts)
    return most if all(many == min(most, layers) for many, layers in counts) else 0


def layers_read(graph: OperatorGraph) -> dict[str, int]:
    """Return the layer of each operator that has inputs; operators without inputs are where they are read."""
    numbers = block_numbers(graph)
    return {node.name: numbers[node.name] for node in graph if node.inputs and node.name in numbers}


def require_transformer(graph: OperatorGraph, who: str) -> None:
    """Raise ValueError unless a network has numbered layers with attention."""
    if not attends(graph) or not block_numbers(graph):
        raise ValueError(
            f"{who} trains Transformers; {graph.name} is none, or its layers have no numbers in their names (h.3); take another "
            "target: torch or jax"
        )
    lists = dict.fromkeys(match[0].rstrip("0123456789.") for node in graph if (match := _LIST.match(node.name)))
    if len(lists) > 1:
        raise ValueError(
            f"{who} is told of one list of layers; {graph.name} has several ({', '.join(lists)}); take another target: torch or jax"
        )


def require_positions(graph: OperatorGraph, plan: HybridPlan, who: str) -> None:
    """Raise ValueError unless sequences divide as both projects divide them: into 2 c pieces, so that causal attention is as much
    work on each, and a rank's positions along its tensor group."""
    shape, pieces = graph.nodes[0].space.shape, 2 * plan.context if plan.context > 1 else 1
    positions = shape[1] if len(shape) > 1 else 0
    if positions % pieces:
        raise ValueError(f"{who} cuts a sequence into 2 c pieces; {positions} positions do not divide by {pieces}")
    own = positions // plan.context
    if plan.along and own % plan.tensor:
        raise ValueError(
            f"{who} cuts a rank's part of a sequence along its tensor group; {own} positions do not divide by {plan.tensor}"
        )


def megatron_text(flags: Flags, title: str) -> str:
    """Return a file of arguments, one on each line, for a shell: ``pretrain_gpt.py $(grep -v '^#' FILE)``."""
    return "\n".join([f"# {title}", *(f"# {note}" for note in flags.notes), *flags.words]) + "\n"
