"""Flags for Megatron-LM and sections for torchtitan: what they say of plans, under the rules of those projects' parsers."""

from __future__ import annotations

import re
import shlex
import sys
from argparse import ArgumentParser, Namespace
from dataclasses import fields, replace
from typing import Any

import pytest

import taskflow
from taskflow.export import export, exported, target
from taskflow.export.hybrid import hybrid_of
from taskflow.export.torchtitan import _network
from taskflow.mapper import HybridPlan, OpConfig, parse_plan
from taskflow.models import build
from taskflow.programs import load_program

LAYERS, BATCH = 8, 16
PLANS = [
    "d8 mb2", "t2 d4 mb1", "t8 d1 mb16", "p4 d2 mb1", "t2 p2 d2 mb1 zero1", "p4 v2 d2 mb1", "t2 p2 d2 mb2 recompute=whole",
    "t2 p2 d2 mb1 recompute=selective", "t2 nosp p2 d2 mb1", "t2 regather p2 d2 mb1", "p2 d4 mb1 stages=3,5",
    "p2 v2 t2 d2 mb1 stages=1,3,3,1", "t2 d4 mb1 zero1 bucket=3M", "d8 mb1 bucket=layer", "p2 d4 mb1 zero1 overlap=none",
    "t2 d4 mb1 zero1 overlap=all",
    "c2 d4 mb1 zero1", "t2 c2 p2 mb1 zero1", "c4 d2 mb1 zero1 recompute=full",
]


def gpt() -> taskflow.OperatorGraph:
    return build("gpt-2", BATCH, 8, preset="small", layers=LAYERS, hidden=16, heads=8, steps=8, vocabulary=64)


def strategy_of(graph: taskflow.OperatorGraph, plan: str) -> taskflow.Strategy:
    return taskflow.choose(plan, graph, taskflow.load_machine("h100", 8))[0]


def parsed(text: str) -> Namespace:
    """As Megatron-LM's parser reads it; its checks that are about plans are below."""
    parser = ArgumentParser()
    for name in ("tensor-model-parallel-size", "pipeline-model-parallel-size", "micro-batch-size", "global-batch-size",
                 "num-virtual-stages-per-pipeline-rank", "recompute-num-layers", "context-parallel-size",
                 "expert-model-parallel-size", "expert-tensor-parallel-size", "ddp-bucket-size", "num-layers", "hidden-size",
                 "ffn-hidden-size", "num-attention-heads", "kv-channels", "seq-length", "max-position-embeddings", "vocab-size",
                 "num-query-groups", "num-experts", "moe-router-topk",
                 "moe-router-num-groups", "moe-router-group-topk", "moe-ffn-hidden-size", "rotary-base",
                 "make-vocab-size-divisible-by"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--pipeline-model-parallel-layout")
    parser.add_argument("--cp-comm-type", choices=["p2p", "a2a", "allgather", "a2a+p2p", "all_gather"])
    parser.add_argument("--recompute-granularity", choices=["full", "selective"])
    parser.add_argument("--recompute-method", choices=["uniform", "block"])
    for name, usual in (("norm-epsilon", 1e-5), ("attention-dropout", 0.1), ("hidden-dropout", 0.1), ("rope-scaling-factor", 8.0)):
        parser.add_argument(f"--{name}", type=float, default=usual)
    parser.add_argument("--moe-router-dtype", choices=["fp32", "fp64"])
    parser.add_argument("--moe-token-dispatcher-type", choices=["allgather", "alltoall", "flex"], default="allgather")
    parser.add_argument("--position-embedding-type", choices=["learned_absolute", "rope", "mrope", "yarn", "relative", "none"])
    parser.add_argument("--normalization", choices=["LayerNorm", "RMSNorm"], default="LayerNorm")
    for name in ("swiglu", "disable-bias-linear", "untie-embeddings-and-output-weights", "bf16", "fp16", "group-query-attention",
                 "accumulate-allreduce-grads-in-fp32", "add-qkv-bias", "qk-layernorm", "rotary-interleaved", "use-rope-scaling",
                 "moe-router-pre-softmax", "moe-grouped-gemm", "moe-enable-deepep"):
        parser.add_argument(f"--{name}", action="store_true")
    for name in ("sequence-parallel", "use-distributed-optimizer", "overlap-grad-reduce", "overlap-param-gather"):
        parser.add_argument(f"--{name}", action="store_true")
    return parser.parse_args(shlex.split(text, comments=True))


@pytest.mark.parametrize("plan", [*PLANS, "p2 v5 d4 mb1"])  # the last with stages for the embedding and the loss alone
def test_megatrons_parser_takes_the_flags_and_they_say_the_plan(plan: str) -> None:
    graph, wanted = gpt(), parse_plan(plan)
    found = exported(graph, strategy_of(graph, plan), "megatron", "plan.args")
    assert len(found.differences) == (wanted.recompute == "full") and found.ranks == 8
    flags = parsed(found.files["plan.args"])
    t, p = flags.tensor_model_parallel_size, flags.pipeline_model_parallel_size
    needs = wanted.tensor * wanted.context > 1  # its parser stops without this variable
    assert ("CUDA_DEVICE_MAX_CONNECTIONS=1" in found.files["plan.args"]) is needs
    assert (t, p) == (wanted.tensor, wanted.pipeline) and (flags.micro_batch_size, flags.global_batch_size) == (
        wanted.micro_batch, BATCH
    )
    assert (flags.context_parallel_size or 1) == wanted.context and flags.expert_model_parallel_size is None
    data = 8 // (t * p * wanted.context)
    assert BATCH % (flags.micro_batch_size * data) == 0 and flags.use_distributed_optimizer is bool(wanted.zero)
    assert flags.sequence_parallel is (t > 1 and wanted.sequence_parallel)  # Megatron-LM turns it off without t
    all_of_it = wanted.recompute in ("full", "whole")
    assert (flags.recompute_granularity or "none") == ("full" if all_of_it else wanted.recompute)
    assert (flags.recompute_method is not None) is all_of_it
    shared = data * wanted.context > 1
    assert flags.overlap_grad_reduce is (shared and wanted.overlap != "none")
    assert flags.overlap_param_gather is (wanted.overlap == "all")
    if flags.overlap_grad_reduce:  # its own are of 40 million elements
        said = 40_000_000 if flags.ddp_bucket_size is None else flags.ddp_bucket_size
        usual = 40_000_000 if wanted.zero else 25 * 2**20 // 4
        assert said == (usual if wanted.bucket is None else max(1, wanted.bucket))
    layout = flags.pipeline_model_parallel_layout
    assert not (layout and flags.num_virtual_stages_per_pipeline_rank)  # at most one of them
    if layout:
        stages = layout.split("|")
        assert len(stages) == p * wanted.virtual and stages[0][0] == "E" and stages[-1][-1] == "L"
        counts = [stage.count("t") for stage in stages]
        assert sum(counts) == LAYERS and (not wanted.stages or tuple(counts) == wanted.stages)
    else:
        assert LAYERS % (p * wanted.virtual) == 0 and (flags.num_virtual_stages_per_pipeline_rank or 1) == wanted.virtual


def test_megatron_runs_a_whole_layer_again_and_a_plan_that_ends_early_is_told_so() -> None:
    graph = gpt()
    early, whole = (strategy_of(graph, f"t2 p2 d2 mb2 recompute={word}") for word in ("full", "whole"))
    found = exported(graph, early, "megatron", "plan.args")
    (one,) = found.differences
    assert "would be run again whole (recompute=whole)" in one.why
    assert found.nearest.again == whole.again and whole.again.rerun
    assert found.files == exported(graph, whole, "megatron", "plan.args").files
    assert not exported(graph, found.nearest, "megatron", "plan.args").differences


@pytest.mark.parametrize("plan,many", [
    ("d8 mb1 recompute=whole*3,none*5", 3), ("p2 d4 mb1 recompute=whole*3,none*1,whole*3,none*1", 3),
    ("t2 p2 d2 mb1 v2 recompute=whole*1,none*1,whole*1,none*1,whole*1,none*1,whole*1,none*1", 1),
    ("p2 d4 mb1 stages=3,5 recompute=whole*7,none*1", 4),  # all of the first stage, which has fewer
    ("d8 mb1 recompute=none*3,whole*5", 0), ("p2 d4 mb1 recompute=whole*3,none*1,whole*2,none*2", 0),
    ("p2 d4 mb1 recompute=whole*3,none*5", 0), ("d8 mb1 recompute=full*3,none*5", 0),
])
def test_megatron_computes_first_layers_of_each_stage_again(plan: str, many: int) -> None:
    """Its block method: the same number of each, counted from the stage's first layer. Others it is told as all or none."""
    graph = gpt()
    found = exported(graph, strategy_of(graph, plan), "megatron", "plan.args")
    flags = parsed(found.files["plan.args"])
    assert bool(found.differences) is not bool(many)
    if many:
        assert (flags.recompute_granularity, flags.recompute_method, flags.recompute_num_layers) == ("full", "block", many)
    assert target("megatron", graph).may_have(parse_plan(plan), lambda: False) is bool(many)
    for other in ("torchtitan", "deepspeed"):
        assert not target(other, graph).may_have(parse_plan(plan), lambda: False)


@pytest.mark.parametrize("plan,having", [
    ("p2 d4 mb1 v2 schedule=zbv", {"torchtitan"}), ("p2 d4 mb1 schedule=gpipe", {"torchtitan"}), ("d8 mb2 split=2", set()),
    ("d8 mb1 zero1 overlap=all", {"megatron", "torchtitan"}), ("d8 mb1 overlap=all zero=1*1,3*7", set()),
    ("p4 d2 mb8", {"megatron"}), ("p4 d2 mb4", {"megatron"}), ("p4 d2 mb2", {"megatron", "torchtitan"}),
    ("p4 d2 mb8 schedule=gpipe", {"torchtitan"}), ("d8 mb1 zero3 prefetch=1", set()), ("p2 d4 mb1 v2", {"megatron", "torchtitan"}),
])
def test_what_no_plan_of_a_framework_has_is_known_without_the_plan(plan: str, having: set[str]) -> None:
    """So that a search does not spend its simulations on it. PyTorch's 1F1B needs as many micro-batches as stages."""
    graph = gpt()
    for name in ("megatron", "torchtitan", "deepspeed"):
        framework = target(name, graph)
        assert framework.has(parse_plan(plan), lambda: False) is (name in having)
        if name not in having and "zero=" not in plan:
            assert not framework.may_have(parse_plan(plan), lambda: False)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib came with Python 3.11")
@pytest.mark.parametrize("plan", [
    *PLANS, "d8 mb1 zero3 recompute=alternate", "p4 d2 mb1 schedule=gpipe", "p4 d2 mb1 schedule=zb-h1", "p2 d4 mb1 schedule=zbv",
])
def test_torchtitans_sections_say_the_plan(plan: str) -> None:
    import tomllib

    graph, wanted = gpt(), parse_plan(plan)
    if not wanted.sequence_parallel or wanted.regather:
        why = ": has no regather" if wanted.regather else "'s tensor parallelism comes with sequence parallelism"
        with pytest.raises(ValueError, match=f"torchtitan{why}"):
            exported(graph, strategy_of(graph, plan), "torchtitan", "plan.toml")
        return
    found = exported(graph, strategy_of(graph, plan), "torchtitan", "plan.toml")
    said: dict[str, Any] = tomllib.loads(found.files["plan.toml"])
    parallel, training = said["parallelism"], said["training"]
    data = parallel["data_parallel_replicate_degree"] * parallel["data_parallel_shard_degree"]
    assert parallel["context_parallel_degree"] == wanted.context and parallel["expert_parallel_degree"] == 1
    assert data * parallel["tensor_parallel_degree"] * parallel["pipeline_parallel_degree"] * wanted.context == 8
    assert (parallel["data_parallel_shard_degree"] > 1) is (bool(wanted.zero) and data > 1)
    assert training["global_batch_size"] == BATCH
    if wanted.pipeline > 1:
        assert training["local_batch_size"] == BATCH // data and parallel["pipeline_parallel_microbatch_size"] == wanted.micro_batch
        parts = parallel["module_fqns_per_model_part"]
        assert len(parts) == wanted.pipeline * wanted.virtual
        names = ["tok_embeddings", *(f"layers.{layer}" for layer in range(LAYERS)), "norm", "output"]
        assert [name for part in parts for name in part] == names
        assert not wanted.stages or tuple(sum(name.startswith("layers.") for name in part) for part in parts) == wanted.stages
        several = {"zbv": "ZBVZeroBubble"}.get(wanted.schedule.value, "Interleaved1F1B")
        assert (parallel["pipeline_parallel_schedule"] == several) is (wanted.virtual > 1)
    else:
        assert training["local_batch_size"] == wanted.micro_batch
    assert not found.differences
    said = said["activation_checkpoint"]
    modes = {"whole": "full", "alternate": "selective", "selective": "none"}  # its attention never keeps scores
    assert said["mode"] == modes.get(wanted.recompute, wanted.recompute)
    assert (said.get("selective_ac_option") == "op") is (wanted.recompute == "alternate")
    assert said.get("early_stop") is {"full": True, "whole": False}.get(wanted.recompute)
    assert training["mixed_precision_param"] == "float32"  # its own would be bfloat16


@pytest.mark.parametrize("plan,size", [("e2 d8 mb1", 2), ("e2 t2 d4 mb1", 4), ("e4 p2 d4 mb1", 4)])
def test_experts_are_dealt_to_the_ranks_that_the_plan_says(plan: str, size: int) -> None:
    """A tensor group shares a replica's experts, so that in Megatron-LM's words t x e ranks have them, and none is cut."""
    graph = build("moe", BATCH, 8, preset="small")
    strategy = strategy_of(graph, plan)
    found = exported(graph, strategy, "megatron", "plan.args")
    flags = parsed(found.files["plan.args"])
    assert not found.differences and (flags.expert_model_parallel_size, flags.expert_tensor_parallel_size) == (size, 1)
    assert flags.moe_token_dispatcher_type == "alltoall"  # as dispatch and combine are in plans
    once = exported(graph, strategy, "megatron", "plan.args", load_program("megatron-deepep"))
    flags = parsed(once.files["plan.args"])
    assert (flags.moe_token_dispatcher_type, flags.moe_enable_deepep, flags.moe_router_dtype) == ("flex", True, "fp32")
    experts = next(node for node in graph if node.operator.kind == "expert_linear")
    pieces = strategy[experts.name].pieces(experts)
    at = [dim.name for dim in experts.dims].index("e")
    assert all(rect.shape[i] == dim.size for rect, _ in pieces for i, dim in enumerate(experts.dims) if dim.name not in "ne")
    assert experts.dims[at].size // pieces[0][0].shape[at] == size


def test_experts_for_torchtitan_are_dealt_to_ranks_that_share_weights() -> None:
    graph = build("moe", BATCH, 8, preset="small")
    found = exported(graph, strategy_of(graph, "e2 d8 mb1 zero2"), "torchtitan", "plan.toml")
    assert not found.differences and "expert_parallel_degree = 2" in found.files["plan.toml"]
    with pytest.raises(ValueError, match="here 2, which do not divide by e4"):
        exported(graph, strategy_of(graph, "e4 d8 mb1 zero3 hsdp2"), "torchtitan", "plan.toml")
    for plan in ("e2 d8 mb1", "e2 t2 d4 mb1 zero2"):
        with pytest.raises(ValueError, match=r"take eN with zero1 to zero3 and without t and c"):
            exported(graph, strategy_of(graph, plan), "torchtitan", "plan.toml")


@pytest.mark.parametrize("target", ["megatron", "torchtitan"])
@pytest.mark.parametrize("plan", ["t2 c2 d2 mb1 zero1", "c2 ring d4 mb1 zero2", "e2 d8 mb1 zero1", "e2 d8 mb1 zero2"])
def test_the_name_of_a_plan_does_not_matter(plan: str, target: str) -> None:
    """What cuts alone do not say (who shares sequences, who has experts) is said by the plan that a strategy carries."""
    graph = build("llama", BATCH, 8, preset="small", steps=8, key_blocks=2) if "ring" in plan else gpt()
    graph = build("moe", BATCH, 8, preset="small") if "e2" in plan else graph
    strategy = strategy_of(graph, plan)

    def files(named: taskflow.Strategy) -> Any:
        try:
            found = exported(graph, named, target, "plan")
        except ValueError as error:
            return str(error)
        return found.files, found.differences, found.notes

    assert files(strategy) == files(replace(strategy, name="mine")) == files(replace(strategy, name="t4 p2"))
    assert files(strategy) == files(replace(strategy, plan=None))  # the only one of all degrees that has these cuts
    if target == "megatron" and "zero2" not in plan:
        assert isinstance(files(strategy), tuple) and not files(strategy)[1]


def test_megatron_deals_heads_to_the_ranks_of_a_sequence() -> None:
    graph = build("mixtral", BATCH, 8, preset="small", hidden=32, heads=8, key_heads=4, steps=8)
    for plan, said in (("t2 c2 ulysses d2 mb1", "a2a"), ("t2 c2 d2 mb1", "all_gather")):
        found = exported(graph, strategy_of(graph, plan), "megatron", "plan.args")
        assert parsed(found.files["plan.args"]).cp_comm_type == said and not found.differences
    with pytest.raises(ValueError, match=r"to t x c = 8 ranks \(a2a\), layers.0.self_attn.attention has 4; leave ulysses out"):
        exported(graph, strategy_of(graph, "t2 c4 ulysses mb1"), "megatron", "plan.args")
    with pytest.raises(ValueError, match="torchtitan: has no ulysses; leave it out, or take the target torch or jax"):
        exported(graph, strategy_of(graph, "c2 ulysses d4 mb1 zero1"), "torchtitan", "plan.toml")


def test_layers_with_shares_of_their_own_are_differences() -> None:
    graph = gpt()
    found = exported(graph, strategy_of(graph, "d8 mb2 zero=1*6,0*2"), "megatron", "plan.args")
    assert {d.operator.split(".")[1] for d in found.differences if "." in d.operator} >= {"6", "7"}
    assert any("would be zero1, as most layers" in str(d) for d in found.differences)


def test_a_plan_that_is_none_of_degrees_is_answered_with_the_nearest() -> None:
    graph = gpt()
    strategy = strategy_of(graph, "t2 d4 mb4")
    node = graph.node("h.3.mlp.c_fc")
    odd = replace(strategy, configs={**strategy.configs, node.name: OpConfig((8, 1, 1, 1), tuple(range(8)))})
    found = exported(graph, odd, "megatron", "plan.args")
    assert [d.operator for d in found.differences] == [node.name]
    assert str(found.differences[0]).startswith("h.3.mlp.c_fc (n/8 @ 0-7): would be n/4 c/2 @ 0-7")
    assert found.nearest.configs == strategy.configs


@pytest.mark.parametrize("plan,target,why", [
    ("p4 d2 mb1 schedule=gpipe", "megatron", "1f1b"), ("p4 d2 mb1 schedule=zb-h1", "megatron", "zb-h1"),
    ("p2 d4 mb1 schedule=zbv", "megatron", "zbv"), ("c8 mb1", "megatron", "8 positions do not divide by 16"),
    ("c8 mb1", "torchtitan", "8 positions do not divide by 16"), ("c2 d4 mb1", "torchtitan", "take cN with zero1 to zero3"),
])
def test_what_a_framework_has_not_is_refused_with_the_reason(plan: str, target: str, why: str) -> None:
    graph = gpt()
    with pytest.raises(ValueError, match=why):
        exported(graph, strategy_of(graph, plan), target, "plan")


@pytest.mark.parametrize("target", ["megatron", "torchtitan", "deepspeed", "accelerate"])
def test_a_word_that_a_targets_file_does_not_know_is_refused(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a new word is refused until each target says it."""
    known = tuple(word for word in export.KNOWN_WORDS if word != "zero")
    assert len(known) < len(export.KNOWN_WORDS) and set(known) < {field.name for field in fields(HybridPlan)}
    graph = gpt()
    exported(graph, strategy_of(graph, "d8 mb1 zero1"), target, "plan")
    monkeypatch.setattr(export, "KNOWN_WORDS", known)
    with pytest.raises(ValueError, match=f"{target}: has no zero1; leave it out"):
        exported(graph, strategy_of(graph, "d8 mb1 zero1"), target, "plan")
    exported(graph, strategy_of(graph, "d8 mb1"), target, "plan")


@pytest.mark.parametrize("target", ["megatron", "torchtitan"])
def test_networks_that_are_no_transformers_are_refused(target: str) -> None:
    graph = build("lenet", 16, 4, preset="small")
    strategy = taskflow.choose("data", graph, taskflow.load_machine("k80", 4))[0]
    with pytest.raises(ValueError, match="trains Transformers; LeNet is none"):
        exported(graph, strategy, target, "plan")
    both = build("transformer", 16, 4, preset="small")
    with pytest.raises(ValueError, match=r"has several \(encoder.layers, decoder.layers\)"):
        exported(both, taskflow.choose("data", both, taskflow.load_machine("k80", 4))[0], target, "plan")


@pytest.mark.parametrize("plan", PLANS)
def test_a_strategy_is_the_plan_that_it_was_made_from(plan: str) -> None:
    graph = gpt()
    strategy = strategy_of(graph, plan)
    again = hybrid_of(graph, strategy)
    assert not again.differences and again.strategy.configs == strategy.configs
    assert again.strategy.pipeline == strategy.pipeline and again.strategy.again.recompute == strategy.again.recompute
    assert again.strategy.again.rerun == strategy.again.rerun


# ---- the network that was planned ------------------------------------------------------------------------------------
def test_megatrons_arguments_are_of_the_network_that_was_planned() -> None:
    graph = build("llama", BATCH, preset="small", layers=4, dtype="bfloat16")
    flags = parsed(exported(graph, strategy_of(graph, "d8 mb2"), "megatron", "plan.args").files["plan.args"])
    assert (flags.num_layers, flags.hidden_size, flags.ffn_hidden_size, flags.seq_length, flags.vocab_size) == (4, 8, 12, 6, 17)
    assert (flags.num_attention_heads, flags.num_query_groups, flags.kv_channels) == (4, 2, 2) and flags.group_query_attention
    assert flags.swiglu and flags.normalization == "RMSNorm" and flags.bf16 and not flags.fp16
    assert flags.position_embedding_type == "rope" and flags.rotary_base == 500_000
    assert flags.disable_bias_linear and flags.untie_embeddings_and_output_weights
    plain = parsed(exported(gpt(), strategy_of(gpt(), "d8 mb2"), "megatron", "plan.args").files["plan.args"])
    assert (plain.kv_channels, plain.num_query_groups, plain.ffn_hidden_size) == (2, None, 64)
    assert not (plain.swiglu or plain.bf16 or plain.disable_bias_linear or plain.untie_embeddings_and_output_weights)
    graph = build("mixtral", BATCH, preset="small", experts=8, expert_groups=4, chosen_groups=2)
    grouped = parsed(exported(graph, strategy_of(graph, "d8 mb2"), "megatron", "plan.args").files["plan.args"])
    assert (grouped.moe_router_topk, grouped.moe_router_num_groups, grouped.moe_router_group_topk) == (2, 4, 2)
    routed = build("mixtral", BATCH, preset="small")
    words = parsed(exported(routed, strategy_of(routed, "d8 mb2"), "megatron", "plan.args").files["plan.args"])
    assert (words.num_experts, words.moe_router_topk, words.moe_ffn_hidden_size) == (4, 2, 12) and not words.moe_router_pre_softmax


def test_places_of_experts_are_a_note_and_not_a_limit() -> None:
    """They are what a plan counts on; Megatron-LM gives every token a place unless it is told otherwise."""
    graph = build("mixtral", BATCH, preset="small", places=1.5)
    text = exported(graph, strategy_of(graph, "d8 e4 mb1 zero1"), "megatron", "plan.args").files["plan.args"]
    flags = parsed(text)
    assert (flags.num_experts, flags.moe_router_topk, flags.expert_model_parallel_size) == (4, 2, 4)
    assert "--moe-expert-capacity-factor 1.67 is given" in text and "--moe-aux-loss-coeff" in text


def test_megatron_is_told_what_it_would_do_otherwise() -> None:
    """Without arguments it drops a tenth, pads words to multiples of 128, and sums gradients of fp16 in 16 bits."""
    llama = build("llama", BATCH, preset="small")
    flags = parsed(exported(llama, strategy_of(llama, "d8 mb2"), "megatron", "plan.args").files["plan.args"])
    assert (flags.attention_dropout, flags.hidden_dropout) == (0, 0) and flags.make_vocab_size_divisible_by == 1
    dropped = build("gpt-2", BATCH, 8, preset="small", layers=LAYERS, hidden=16, heads=8, steps=8, vocabulary=64, dropout=0.2)
    flags = parsed(exported(dropped, strategy_of(dropped, "d8 mb2"), "megatron", "plan.args").files["plan.args"])
    assert (flags.attention_dropout, flags.hidden_dropout) == (0.2, 0.2)
    half = build("llama", BATCH, preset="small", dtype="float16")
    flags = parsed(exported(half, strategy_of(half, "d8 mb2"), "megatron", "plan.args").files["plan.args"])
    assert flags.fp16 and flags.accumulate_allreduce_grads_in_fp32 and not flags.bf16
    assert flags.use_rope_scaling and flags.rope_scaling_factor == 8


CONFIGURATIONS: dict[str, tuple[str, dict[str, Any], str]] = {  # class, what is its own, and words of what is said
    "gemma": ("Gemma", {"head_dim": 16}, "gelu linear mul linear"), "phi": ("Phi", {}, "add add"),
    "opt": ("OPT", {"ffn_dim": 64, "word_embed_proj_dim": 32}, "relu"), "granite": ("Granite", {}, "by 1, not by|scale add"),
    "mistral": ("Mistral", {"sliding_window": 4}, "window"), "qwen2": ("Qwen2", {}, "--add-qkv-bias"),
    "qwen3": ("Qwen3", {"head_dim": 16}, "--qk-layernorm"),
    "mixtral": ("Mixtral", {"num_local_experts": 4}, "--rotary-base 1000000"),
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_networks_of_transformers_are_told_of_or_said_to_be_others(name: str) -> None:
    """Sizes alone name another network if its layers are not those that the arguments build."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install 'soap-taskflow[hf]'")
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'soap-taskflow[torch]'")
    kind, own, said = CONFIGURATIONS[name]
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 64}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 2}
    config = getattr(transformers, f"{kind}Config")(**sizes, **own, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    module = getattr(transformers, f"{kind}ForCausalLM")(config)
    graph = taskflow.from_torch(module, torch.zeros(8, 8, dtype=torch.long), verify=False)
    text = exported(graph, strategy_of(graph, "d8 mb1"), "megatron", "plan.args").files["plan.args"]
    flags = parsed(text)
    if said.startswith("--"):
        assert flags.num_layers == 2 and flags.swiglu and said in text
        assert name != "mixtral" or (flags.num_experts, flags.moe_router_topk, flags.moe_grouped_gemm) == (4, 2, True)
    else:
        assert flags.num_layers is None and re.search(f"would be another, since .*({said})", text)
    titan = exported(graph, strategy_of(graph, "d8 mb1"), "torchtitan", "plan.toml").files["plan.toml"]
    assert ("n_layers = 2" in titan) is said.startswith("--")


@pytest.mark.parametrize("plan,dtype,why", [
    ("t8 d1", "bfloat16", "otherwise in float32"), ("p2 d4 mb1", "bfloat16", "otherwise in float32"),
    ("d8", "float16", "does not scale losses"), ("p4 d2 mb4", "float32", "as many micro-batches as stages, 4, got 2"),
])  # fmt: skip
def test_torchtitan_is_not_given_what_it_would_compute_otherwise(plan: str, dtype: str, why: str) -> None:
    graph = build("gpt-2", BATCH, 8, preset="small", layers=LAYERS, hidden=16, heads=8, steps=8, vocabulary=64, dtype=dtype)
    with pytest.raises(ValueError, match=why):
        exported(graph, strategy_of(graph, plan), "torchtitan", "plan")
    exported(graph, strategy_of(graph, "t2 d4 mb1 zero1" if dtype == "bfloat16" else plan), "megatron", "plan")


def test_how_keys_go_round_is_said_to_torchtitan() -> None:
    graph = build("llama", BATCH, preset="small", steps=8, key_blocks=2)
    for plan, said in (("c2 ring d4 mb1 zero2", "alltoall"), ("c2 d4 mb1 zero2", "allgather")):
        text = exported(graph, strategy_of(graph, plan), "torchtitan", "plan.toml").files["plan.toml"]
        assert f'context_parallel_rotate_method = "{said}"' in text


@pytest.mark.parametrize("target", ["megatron", "torchtitan", "deepspeed", "accelerate"])
def test_where_ranks_must_be_is_a_file(target: str) -> None:
    graph = gpt()
    found = exported(graph, strategy_of(graph, "d8 mb2 zero1 devices=7,6,5,4,3,2,1,0"), target, "plan.args")
    assert found.files["plan.ranks"].splitlines()[1:] == [f"{rank} {7 - rank}" for rank in range(8)]
    assert [*exported(graph, strategy_of(graph, "d8 mb2 zero1"), target, "plan.args").files] == ["plan.args"]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib came with Python 3.11")
def test_torchtitans_sections_name_a_known_network_or_its_sizes() -> None:
    """Also the types of weights and of sums of gradients, and the length of sequences."""
    import tomllib

    graph = build("llama", BATCH, preset="small", dtype="bfloat16")
    text = exported(graph, strategy_of(graph, "d8 mb2 zero3"), "torchtitan", "plan.toml").files["plan.toml"]
    said = tomllib.loads(text)["training"]
    assert (said["mixed_precision_param"], said["mixed_precision_reduce"], said["seq_len"]) == ("bfloat16", "float32", 6)
    assert "n_kv_heads = 2" in text and "hidden_dim = 12" in text
    assert _network(build("llama-8B", 8))[-1] == 'flavor = "8B"'
