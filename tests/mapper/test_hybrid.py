"""Plans such as ``t2 p2 d2 mb1``: their notation, where their pieces run, and what does not divide."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from language_model import undivided

import taskflow
from taskflow.graph import OperatorGraph
from taskflow.machine import load_machine
from taskflow.mapper import (
    BLOCK,
    CollectiveSync,
    HybridPlan,
    PipelineSchedule,
    ShardedSync,
    Strategy,
    Sync,
    SyncAlgorithm,
    UpdatePlacement,
    choose,
    is_plan,
    load,
    parse_plan,
    recomputed,
    save,
    stages_of,
)
from taskflow.mapper.notation import parse_sync
from taskflow.models import build
from taskflow.models.gpt import GPTConfig, gpt
from taskflow.models.llama import LlamaConfig, llama
from taskflow.tasks import Kind, roofline, simulate
from taskflow.tasks.lower import lower
from taskflow.tasks.topic import Purpose, Topic

CONFIG = replace(GPTConfig.small(), batch=8, layers=6)


def decoder(layers: int = 6) -> OperatorGraph:
    return gpt(replace(CONFIG, layers=layers), "float64")


def planned(plan: str, devices: int, graph: OperatorGraph | None = None) -> Strategy:
    return choose(plan, graph or decoder(), taskflow.host(devices))[0]


def test_a_plan_is_read_and_says_itself() -> None:
    text = "t2 p4 d2 mb1 v2 zero1 schedule=gpipe stages=1,2,2,1,1,2,2,1 recompute=full"
    plan = parse_plan(text)
    stages = (1, 2, 2, 1, 1, 2, 2, 1)
    assert plan == HybridPlan(2, 4, 2, 1, 2, 1, "full", PipelineSchedule.GPIPE, stages)
    assert str(plan) == text and parse_plan(str(plan)) == plan
    text = "t1 p2 d4 mb1 zero1 overlap=none"
    assert str(parse_plan(text)) == text and str(parse_plan("d4 overlap=grads")) == "t1 p1 d4"
    assert parse_plan("p2 sp t2") == HybridPlan(tensor=2, pipeline=2)
    text = "t2 nosp p2 mb1"
    assert parse_plan(text) == HybridPlan(2, 2, None, 1, sequence_parallel=False) and str(parse_plan(text)) == text
    text = "t2 regather p2 mb1"
    assert parse_plan(text) == HybridPlan(2, 2, None, 1, regather=True) and str(parse_plan(text)) == text
    text = "t2 c2 p2 d4 mb1 e4"
    assert parse_plan(text) == HybridPlan(2, 2, 4, 1, context=2, experts=4) and str(parse_plan(text)) == text
    assert all(map(is_plan, ("t2 p2", "c2", "e4 d4", "mb4", "sp t2", "x t2", "tp2 pp2", "t2,p2", "recompute=")))
    assert not any(map(is_plan, ("t", "data", "", "expert", "my.mapper:Mine")))


def test_shares_are_said_in_the_words_of_zero_and_fsdp() -> None:
    assert parse_plan("d4 fsdp") == parse_plan("d4 zero3") == HybridPlan(data=4, zero=3)
    assert parse_plan("d4 hsdp2 prefetch=3") == HybridPlan(data=4, zero=3, shard_group=2, prefetch=3)
    assert is_plan("fsdp") and is_plan("hsdp4 t2") and not is_plan("fsdp2")
    assert parse_plan("d4 zero3 prefetch=block") == parse_plan("d4 zero3") and parse_plan("zero3").prefetch == BLOCK
    for text in ("t1 p1 d4 zero2 hsdp2", "t1 p1 zero3 prefetch=0", "t1 p1 d4 zero3 hsdp2 prefetch=2", "t1 p1 zero3 prefetch=1"):
        assert str(parse_plan(text)) == text
    sync = ShardedSync(zero=3, shard_group=2, prefetch=0)
    assert set(planned("d4 hsdp2 prefetch=0", 4).syncs.values()) == {sync}


@pytest.mark.parametrize(("text", "message"), [
    ("t2 x3", "no meaning for 'x3'; a plan has tN"),
    ("p２", "no meaning for 'p２'; a plan has tN"),
    ("tp2 p2", "no meaning for 'tp2'; write t2; a plan has tN"),
    ("T2 p2", "no meaning for 'T2'; write t2; a plan has tN"),
    ("t2p4,d2", "no meaning for 't2p4,d2'; write t2 p4 d2, with spaces between; a plan has tN"),
    ("p-2", "no meaning for 'p-2'; write p2; a plan has tN"),
    ("p2 stages=", "stages= says nothing; leave it out, or write for example stages=5,6,6,5"),
    ("d4 hsdp0", "hsdp0 is for no replica"),
    ("schedule=zbv", "schedule=zbv gives each rank of a pipeline 2 stages, which needs p2 or more"),
    ("d4 zero=3", "or zero3 for all layers; got '3'"),
    ("t2 t4", "'t4' says tensor for the second time"),
    ("t0", "tensor must be at least 1, got 0"),
    ("zero4", "zero4 is no stage of ZeRO; zero0 to zero3 are"),
    ("fsdp zero1", "'zero1' says zero for the second time"),
    ("zero1 hsdp2", "hsdp2 is for two replicas or more, and for zero2 or zero3 .the default with hsdp., got zero1"),
    ("hsdp1", "hsdp1 is for two replicas or more"),
    ("zero2 prefetch=2", "prefetch=2 is how far ahead weights are gathered, which needs zero3 or fsdp"),
    ("fsdp prefetch=all", "prefetch must be block or a number of layers, got 'all'"),
    ("p2 recompute=some", "recompute must be one of none, selective, light, alternate, linear, full, whole, got 'some'"),
    ("p2 schedule=2f1b", "schedule must be one of gpipe, 1f1b, zb-h1, zbv, got '2f1b'"),
    ("p2 stages=1;2", "stages must be numbers of layers such as 5,6,6,5, got '1;2'"),
    ("p3 stages=1,2", "stages= needs the layers of 3 stages .p x v., got 2"),
    ("d4 overlap=both", "overlap must be one of none, grads, all, got 'both'"),
    ("d4 overlap=all", "overlap=all gathers new weights during the next forward pass, which needs zero1 or zero2; zero0"),
    ("d4 zero3 overlap=all", "zero3 gathers them for each pass anyway"),
    ("d4 zero2 overlap=none", "overlap=none sums gradients after the backward pass, which zero2 does not keep so long"),
    ("d4 e0", "experts must be at least 1, got 0"),
    ("d4 nosp", "nosp is what a tensor group does not share, which needs t2 or more"),
    ("d4 regather", "regather is for what a tensor group gathers along the sequence: t2 or more, without nosp"),
    ("t2 nosp regather", "regather is for what a tensor group gathers along the sequence: t2 or more, without nosp"),
    ("t2 sp nosp", "'nosp' says sequence_parallel for the second time"),
    ("p2 recompute=full*3,some*3", "recompute must be one of none, selective, light, alternate, linear, full, whole, got 'some'"),
    ("p2 recompute=full*3,none", "recompute by layer must be such as recompute=full.60,none.20, .* got 'none'"),
    ("p2 recompute=full*0", "recompute by layer must be such as"),
    ("zero=1*1,x*5", "zero by layer must be such as zero=1.1,3.30,1.1, .* got 'x.5'"),
    ("zero=1*1,4*5", "zero4 is no stage of ZeRO; zero0 to zero3 are"),
    ("zero=3*6 zero1", "'zero1' says zero for the second time"),
    ("recompute=full recompute=full*6", "'recompute=full.6' says recompute for the second time"),
    ("zero=1*1,2*5 prefetch=2", "prefetch=2 is how far ahead weights are gathered, which needs zero3 or fsdp"),
    ("zero=1*99999999", "has more layers than any network"),
    ("v2", "v2 interleaves the stages of a pipeline, which needs p2 or more"),
])
def test_wrong_notations_name_the_word(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_plan(text)


def test_sequences_are_cut_only_where_there_are_some() -> None:
    with pytest.raises(ValueError, match=r"plan t1 c2 p1 d1 mb4: c cuts sequences, .*; AlexNet has none that its layers follow"):
        planned("c2", 2, build("AlexNet", 4, preset="small"))
    with pytest.raises(ValueError, match=r"expert_linear.; Mixtral has none; build it with places .*with_places.*tN"):
        planned("d2 e2", 2, build("Mixtral", 4, preset="small"))


@pytest.mark.parametrize(("plan", "devices", "message"), [
    ("t2 p2 d3", 8, r"t x p x d must be the 8 devices, got 2 x 2 x 3 = 12; with t x p = 4 there are 2 replicas"),
    ("t2 c2 p2 d2", 8, r"t x c x p x d must be the 8 devices, got 2 x 2 x 2 x 2 = 16; with t x c x p = 8 there are 1 replicas"),
    ("d8 e3", 8, r"e deals the experts of a layer to 3 of the 8 replicas .*, but 3 does not divide 8; use e2, e4 or e8"),
    ("d7 e7", 8, r"got 1 x 1 x 7 = 7; with t x p = 1 there are 8 replicas"),
    ("d8 e2", 8, "eN needs layers of experts with places .expert_linear.; GPT-2 has none"),
    ("t3", 8, r"t x p x d must be the 8 devices, got 3 x 1 x 2 = 6; t x p = 3 does not divide 8"),
    ("d2 mb3", 2, r"8 samples a step cannot be taken in micro-batches of d x mb = 2 x 3 = 6: 6 does not divide 8"),
    ("d3", 3, r"8 samples a step cannot be dealt to d = 3 replicas: 3 does not divide 8; .* write shares=3,3,2"),
    ("shares=3,2", 2, r"micro-batches of the 5 that shares= adds up to: 5 does not divide 8"),
    ("d4 hsdp3", 4, r"4 replicas cannot be dealt to groups of hsdp3: 3 does not divide 4; use hsdp2 or hsdp4"),
    ("p3 v2 mb1", 3, r"plan t1 p3 .* 1f1b needs micro-batches in multiples of the 3 ranks, got 8, which 3 does not divide"),
    ("t64", 64, "no layer of GPT-2 can be shared by t = 64 devices; its widest has 32 outputs"),
    ("c8", 8, "c = 8 devices cannot share the sequences of GPT-2, whose second axis has 5 places"),
    ("p200 mb1", 200, "plan t1 p200 d1 mb1: 200 stages need as many operators with inputs, GPT-2 has "),
    ("p8 mb1 stages=1,1,1,1,1,1,0,0", 8, "stages= needs 1 layer or more a stage"),
    ("p2 recompute=full*3,none*4", 2, "recompute= by layer speaks of 7 layers, GPT-2 has 6"),
    ("d2 mb1 zero=1*2,3*2", 2, "zero= by layer speaks of 4 layers, GPT-2 has 6"),
    ("p2 stages=2,2", 2, r"stages= needs 1 layer or more a stage and 6 in all, got 2,2"),
])
def test_what_does_not_divide_is_said(plan: str, devices: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        planned(plan, devices)


def test_pieces_run_where_megatron_has_them() -> None:
    strategy = planned("t2 p2 d2 mb1", 8)
    pipeline = strategy.pipeline
    assert pipeline is not None and (pipeline.micro_batches, pipeline.ranks, pipeline.count) == (4, 2, 2)
    up, down = strategy["h.0.mlp.c_fc"], strategy["h.5.mlp.c_proj"]
    assert up.degrees == (8, 1, 2, 1) and up.processors == (0, 1, 2, 3) * 4  # n, sequence, outputs, inputs
    assert down.degrees == (8, 1, 1, 2) and down.processors == (4, 5, 6, 7) * 4
    assert strategy["h.0.ln_1"].degrees == (8, 2, 1) and strategy["h.5.attn.softmax"].degrees == (8, 2, 1, 1)
    assert strategy["wte"].processors[:4] == (0, 1, 2, 3)
    assert pipeline.stage("tokens") == 0 and pipeline.stage("targets") == 1  # with the loss that reads it
    assert {pipeline.stage(f"h.{i}.mlp.add") for i in range(3)} == {0}
    assert pipeline.stage("lm_head") == pipeline.stage("h.3.ln_1") == 1
    assert set(strategy.syncs.values()) == {CollectiveSync(UpdatePlacement.REPLICATED, bucket=25 * 2**20 // 4)}
    sharded = planned("d2 zero1", 2)
    assert set(sharded.syncs.values()) == {CollectiveSync(UpdatePlacement.SHARDED, bucket=40_000_000)}


def test_without_sequence_parallelism_what_is_between_is_with_all_of_a_group() -> None:
    graph = decoder()
    with_it, without = planned("t2 p2 d2 mb2", 8, graph), planned("t2 nosp p2 d2 mb2", 8, graph)
    assert {name for name, config in without.configs.items() if config.copies > 1} == {
        node.name for node in graph
        if (node.name.endswith(("ln_1", "ln_2", "add", "ln_f", "drop")) and "attn.drop" not in node.name)
        or node.operator.kind == "input" or node.name == "wpe"
    }
    norm = without["h.0.ln_1"]  # micro-batches, replicas, copies
    assert norm.degrees == (4, 1, 1) and norm.copies == 2 and norm.processors == (0, 1, 2, 3, 0, 1, 2, 3)
    assert all(without[name] == config for name, config in with_it.configs.items() if without[name].copies == 1)


def test_sequences_and_experts_are_cut_within_replicas() -> None:
    strategy = planned("t2 c2 p2 d2 mb1", 16)
    assert strategy["h.0.ln_1"].degrees == (8, 4, 1)  # a group shares its stretch of the sequence
    assert strategy["h.0.ln_1"].processors[:8] == tuple(range(8))
    up = strategy["h.5.mlp.c_fc"]
    assert up.degrees == (8, 2, 2, 1) and up.processors[:8] == tuple(range(8, 16))
    scores = strategy["h.0.attn.scores"]
    assert scores.degrees == (8, 2, 2, 1, 1) and scores.processors[:8] == (0, 2, 1, 3, 4, 6, 5, 7)  # heads, queries
    graph = build("MoE", 8, preset="small", heads=4)
    strategy = planned("t2 d4 e2 mb1", 8, graph)
    first, sent = strategy["layers.1.moe.wi"], strategy["layers.1.moe.dispatch"]
    assert first.degrees == (4, 4, 1, 1, 1) and sent.degrees == (8, 2, 1, 1)
    assert first.processors[:8] == (0, 2, 1, 3, 4, 6, 5, 7)  # of each member's half of the experts each replica has a half
    assert strategy["layers.1.moe.act"].processors == first.processors
    with pytest.raises(ValueError, match=r"layers.1.moe.wi has 4 experts, which e x t = 4 x 2 devices cannot share"):
        planned("t2 d4 e4 mb1", 8, graph)


def layers(graph: OperatorGraph, count: int, given: tuple[int, ...] = ()) -> list[int]:
    """How many layers each stage has."""
    stages = stages_of(graph, count, given)
    return [sum(stages[f"h.{i}.ln_1"] == s for i in range(CONFIG.layers)) for s in range(count)]


def test_layers_are_dealt_to_stages() -> None:
    graph = decoder()
    assert layers(graph, 3) == [2, 2, 2] and layers(graph, 4) == [1, 2, 2, 1]  # first and last have more to do besides
    assert layers(graph, 3, (1, 3, 2)) == [1, 3, 2]
    halves = stages_of(decoder(7), 2)
    assert [halves[f"h.{i}.ln_1"] for i in range(7)] == [0, 0, 0, 0, 1, 1, 1]  # the last has the scores of all words


def test_with_a_stage_or_two_more_than_layers_what_is_beside_these_has_its_own() -> None:
    graph = decoder()
    assert layers(graph, CONFIG.layers + 2) == [0, *[1] * CONFIG.layers, 0]  # as Llama 3 of 405 billion is trained
    stages = stages_of(graph, CONFIG.layers + 2)
    assert stages["tokens"] == stages["wte"] == 0 and stages["lm_head"] == stages["loss"] == stages["targets"] == CONFIG.layers + 1
    assert layers(graph, CONFIG.layers + 1) == [*[1] * CONFIG.layers, 0]  # the scores of all words are more work


def test_networks_without_layers_are_dealt_by_flops() -> None:
    graph = OperatorGraph("float64", "unnamed")
    x = taskflow.input(graph, (4, 8), name="x")
    for name in "abcd":
        x = taskflow.relu(taskflow.linear(x, 8, name=name), name=f"{name}{name}")
    graph.minimize(taskflow.mean(x, name="loss"))
    for count in (2, 3, 4, len(graph) - 1):
        stages = stages_of(graph, count)
        found = [stages[node.name] for node in graph]
        assert found == sorted(found) and set(found) == set(range(count))
    assert [stages_of(graph, 2)[name] for name in "abcd"] == [0, 0, 1, 1]
    with pytest.raises(ValueError, match="10 stages need as many operators with inputs, unnamed has 9"):
        stages_of(graph, len(graph))
    unequal = OperatorGraph("float64", "unequal")
    x = taskflow.input(unequal, (4, 8), name="x")
    for name, width in (("a", 4), ("b", 24), ("c", 3)):  # 32, 96 and 72 products
        x = taskflow.linear(x, width, name=name)
    assert [stages_of(unequal, 2)[name] for name in "abc"] == [0, 0, 1]  # the half of b comes before half of all


@pytest.mark.parametrize("plan", ["d8 bucket=layer", "d4 p2 mb1 bucket=600", "d8 mb1 zero1 bucket=1K"])
def test_without_overlap_sums_wait_for_the_end_of_the_backward_pass(plan: str) -> None:
    graph = decoder()
    machine = load_machine("a100", 8)
    assert planned(plan, 8, graph).syncs == planned(f"{plan} overlap=grads", 8, graph).syncs
    for sync in set(planned(f"{plan} overlap=none", 8, graph).syncs.values()):
        assert not sync.overlap and str(sync).endswith("/after") and parse_sync(str(sync), "test") == sync
    with pytest.raises(ValueError, match="overlap False goes with algorithm 'collective' and zero 1"):
        Sync.of(SyncAlgorithm.RING, UpdatePlacement.REPLICATED, overlap=False)

    def sums(text: str) -> list[tuple[float, float]]:
        """When gradients are summed, and when the last backward task ends on the processors that sum them."""
        tasks = lower(graph, planned(text, 8, graph), taskflow.SGD())
        spans = simulate(tasks, machine, roofline(machine)).spans
        return [
            (
                spans[t.number].start,
                max(spans[b.number].end for b in tasks if b.kind is Kind.BACKWARD and b.processor in t.processors),
            ) for t in tasks if t.kind is Kind.COLLECTIVE and t.topic.purpose is Purpose.WEIGHT_GRADIENTS
        ]

    # In a pipeline those of the first stage, which sends no gradients on.
    assert any(start < over for start, over in sums(plan))
    assert all(late >= end for late, end in sums(f"{plan} overlap=none"))


def three_losses(strategy: Strategy) -> list[float | None]:
    """Of a decoder's first three steps."""
    random = np.random.default_rng(0)
    run = taskflow.Executor(decoder(), strategy, taskflow.Adam(0.01), clip_norm=1.0)
    return [run.train({k: random.integers(0, 17, (8, 5)) for k in ("tokens", "targets")}) for _ in range(3)]


@cache
def of_one_processor() -> list[float | None]:
    return three_losses(undivided(decoder()))


@pytest.mark.parametrize("plan", [
    "t1 p4 d2 mb2 schedule=zb-h1", "t2 p2 d2 mb1 schedule=zbv", "t2 p2 d2 mb1 v3 recompute=selective",
    "d8 mb1 zero1 overlap=none", "p2 d4 mb1 zero1 overlap=all", "t2 regather p2 d2 mb1 schedule=zb-h1",
    "p2 d4 mb1 recompute=full*1,none*2,light*1,alternate*1,linear*1", "d8 mb1 zero=1*1,3*4,0*1 recompute=full*2,selective*4",
    "t2 d4 mb2 zero=3*2,2*4 prefetch=2", "t2 nosp p2 d2 mb1 recompute=whole*3,none*1,full*2",
    *(pytest.param(plan, marks=pytest.mark.slow) for plan in (
        "t2 p2 d2 mb1", "t2 nosp p2 d2 mb1 recompute=full", "t1 p1 d8 mb1 zero1",
        "t2 p2 d2 mb1 overlap=none", "d8 overlap=none", "t2 p2 d2 mb1 recompute=light",
        "t2 p2 d2 mb1 recompute=linear", "t4 regather p2 mb2 recompute=selective", "t4 p2 d1 mb2 schedule=gpipe recompute=full",
    )),
])
def test_plans_train_as_one_processor_does(plan: str, tmp_path: Path) -> None:
    graph = decoder()
    strategy = planned(plan, 8, graph)
    save(strategy, graph, "host-8", tmp_path / "plan.json")
    again = load(tmp_path / "plan.json", graph, 8)
    for what in ("pipeline", "again", "configs"):
        assert getattr(again, what) == getattr(strategy, what)
    assert replace(again, name=strategy.name) == strategy
    np.testing.assert_allclose(three_losses(again), of_one_processor(), rtol=1e-9)


@pytest.mark.parametrize(("plan", "together"), [
    ("d8 bucket=layer", False), ("d8 zero1 bucket=layer", False), ("d8 recompute=none*2 bucket=layer", False),
    ("d8", True), ("d8 zero1", True), ("d8 zero2", True), ("d8 recompute=full", True),
    ("d8 zero=1*1,3*1", True), ("d8 overlap=none", True), ("d4 mb1", True), ("t2 d4", True),
])
def test_the_loss_is_summed_by_all_replicas_of_plans_that_do_more_than_distribute_samples(plan: str, together: bool) -> None:
    """So that replicas are alike, also if there is one micro-batch."""
    graph = decoder(2)
    strategy = planned(plan, 4 if plan == "d4 mb1" else 8, graph)
    assert strategy.ordered is together
    tasks = [task for task in lower(graph, strategy, taskflow.SGD()) if task.topic == Topic(Purpose.PARTIAL, "loss")]
    own = {Kind.SUM} if "mb1" in plan else set()  # of a processor's micro-batches
    assert {task.kind for task in tasks} == ({Kind.COLLECTIVE, *own} if together else {Kind.COPY, Kind.SUM})


def test_layers_are_recomputed_and_sharded_as_each_of_them_is_said_to_be() -> None:
    text = "t1 p2 d4 mb1 recompute=full*1,none*2,light*3 zero=1*1,3*4,1*1"
    plan = parse_plan(text)
    assert plan.recompute_layers == ("full", "none", "none", "light", "light", "light") and plan.zero_layers == (1, 3, 3, 3, 3, 1)
    assert str(plan) == text and is_plan("zero=1*6") and is_plan("recompute=full*1,none*5")
    graph, strategy = decoder(), planned(text, 8)
    for layer, level in enumerate(plan.recompute_layers):
        own = {node.name for node in graph if node.name.startswith(f"h.{layer}.")}
        assert strategy.again.recompute & own == recomputed(graph, level) & own
        zeros = {strategy.sync(p.layer).zero for node in graph if node.name in own for p in node.parameters}
        assert zeros == {plan.zero_layers[layer]}
    assert strategy.sync("wte").zero == 1  # before the first layer


def test_linear_keeps_what_attention_gives_and_nothing_else_of_a_layer() -> None:
    graph = llama(replace(LlamaConfig.small(), layers=2))
    assert recomputed(graph, "full") - recomputed(graph, "linear") == {f"layers.{i}.self_attn.attention" for i in (0, 1)}
    graph = gpt(replace(GPTConfig.small(), layers=2))
    kept = recomputed(graph, "full") - recomputed(graph, "linear")
    assert len(kept) == 2 and {graph.node(name).operator.kind for name in kept} == {"matmul"}
    assert recomputed(graph, "selective") < recomputed(graph, "linear")


def test_alternate_computes_the_products_again_that_pytorchs_selective_checkpoint_does() -> None:
    """Under torchtitan's policy of the option ``op``, which keeps a layer's first product, its third and so on."""
    graph = build("llama", 8, preset="small")
    layer = [n.name for n in graph if n.name.startswith("layers.0.") and n.operator.kind == "linear"]
    again = recomputed(graph, "alternate")
    kept = recomputed(graph, "linear") - again
    assert kept & set(layer) == set(layer[::2]) and len(kept) == 2 * len(layer[::2]) and again < recomputed(graph, "linear")
    torch = pytest.importorskip("torch")
    from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

    weights = [torch.randn(width, width + 1, requires_grad=True) for width in range(1, len(layer) + 1)]
    calls: list[list[int]] = []  # of the layer's forward, in each the products that were computed

    class Products(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.ops.aten.mm.default and inside:
                calls[-1].append(args[1].shape[0] - 1)
            return func(*args, **(kwargs or {}))

    inside: list[bool] = []

    def chain(x: Any) -> Any:
        calls.append([])
        inside.append(True)
        try:
            for weight in weights:
                x = torch.nn.functional.silu(x @ weight)
            return x
        finally:
            inside.pop()

    def policy() -> Callable[..., CheckpointPolicy]:
        count = [0]

        def keeps(context: Any, func: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
            count[0] += func is torch.ops.aten.mm.default
            kept = func is torch.ops.aten.mm.default and count[0] % 2
            return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

        return keeps

    def contexts() -> Any:
        forward, back = policy(), policy()
        return create_selective_checkpoint_contexts(
            lambda context, *args, **kwargs: (back if context.is_recompute else forward)(context, *args, **kwargs)
        )

    with Products():
        checkpoint(chain, torch.randn(2, 1), use_reentrant=False, context_fn=contexts).sum().backward()
    assert calls == [list(range(len(layer))), list(range(len(layer)))[1::2]]


def test_light_operators_keep_nothing_for_themselves() -> None:
    """What is computed again under ``light`` needs nothing that is not kept without it, and no product."""
    for graph in (llama(replace(LlamaConfig.small(), layers=2)), gpt(replace(GPTConfig.small(), layers=2, dropout=0.0))):
        light = recomputed(graph, "light") - recomputed(graph, "selective")
        kinds = {graph.node(name).operator.kind for name in light}
        assert kinds == ({"rms_norm", "swiglu", "reshape"} if "layers.0.mlp.act" in light else {"layer_norm", "gelu"})
        assert recomputed(graph, "selective") <= recomputed(graph, "light") < recomputed(graph, "full")
        keeps = {node.number: node.operator.keeps(node.specs) for node in graph}
        for name in light:
            for tensor in graph.node(name).inputs:
                readers = [node for node in graph if any((t.node, t.index) == (tensor.node, tensor.index) for t in node.inputs)]
                kept = keeps[tensor.node].outputs or any(keeps[node.number].inputs for node in readers)
                assert kept or graph.nodes[tensor.node].name in light


def test_files_of_pipelines_are_read_strictly(tmp_path: Path) -> None:
    graph, path = decoder(), tmp_path / "plan.json"
    save(planned("p2 mb1", 2, graph), graph, "host-2", path)
    text = path.read_text()
    for old, new, message in (
        ('"schedule": "1f1b"', '"schedule": "2f1b"', r"pipeline.schedule"),
        ('"micro_batches": 8', '"micro_batches": 0', r"pipeline.micro_batches"),
        ('"micro_batches": 8', '"micro_batch": 8', r"micro_batch"),
        ('"ranks": 2', '"ranks": 3', r"2 stages cannot be dealt to 3 ranks evenly"),
    ):
        assert old in text
        path.write_text(text.replace(old, new))
        with pytest.raises(ValueError, match=message):
            load(path, graph, 2)
