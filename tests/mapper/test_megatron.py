"""Megatron: pairs of layers that share a group without moving what is between them."""

from __future__ import annotations

import numpy as np
import pytest
from fast_and_slow import fast_among

import taskflow
from taskflow.mapper import Expert, Megatron, Strategy, attends, map_graph, suits
from taskflow.models import build
from taskflow.optimizer.budget import Budget
from taskflow.optimizer.evaluate import make_evaluator
from taskflow.optimizer.search import search
from taskflow.programs import load_program
from taskflow.rules import SGD, Adam
from taskflow.runtime.executor import Executor
from taskflow.tasks.lower.lower import lower
from taskflow.tasks.topic import Purpose
from taskflow.training.data.synthetic import random_feeds


def cut(strategy: Strategy, graph: taskflow.OperatorGraph, name: str) -> dict[str, int]:
    """The degrees of an operator that are not 1, by dimension."""
    node = graph.node(name)
    return {dim.name: degree for dim, degree in zip(node.dims, strategy[name].degrees) if degree > 1}


def test_a_transformer_is_cut_as_the_paper_has_it() -> None:
    graph, machine = build("Transformer"), taskflow.load_machine("p100", 8)  # two nodes of 4
    strategy = map_graph(Megatron(), graph, machine)
    layer = "encoder.layers.0"
    for name in ("q_proj", "k_proj", "v_proj"):
        assert cut(strategy, graph, f"{layer}.self_attn.{name}") == {"n": 2, "c": 4}
    assert cut(strategy, graph, f"{layer}.self_attn.scores") == {"n": 2, "a1": 4}  # heads
    assert cut(strategy, graph, f"{layer}.self_attn.out_proj") == {"n": 2, "k": 4}
    assert cut(strategy, graph, f"{layer}.linear1") == {"n": 2, "c": 4}
    assert cut(strategy, graph, f"{layer}.linear2") == {"n": 2, "k": 4}
    assert cut(strategy, graph, f"{layer}.self_attn.norm") == {"n": 8}
    assert cut(strategy, graph, "embedding") == {"n": 2, "v": 4} and cut(strategy, graph, "softmax") == {"n": 2, "c": 4}
    # What lies between the layers of a pair does not travel, neither does its gradient.
    tasks = lower(graph, strategy, SGD(0.1))
    moved = {(t.topic.name, t.topic.purpose) for t in tasks if t.kind.travels}
    between = {f"{layer}.linear1", f"{layer}.relu", f"{layer}.self_attn.scores", f"{layer}.self_attn.softmax",
               f"{layer}.self_attn.context", f"{layer}.self_attn.joined"}  # fmt: skip
    assert not {name for name, purpose in moved if purpose in (Purpose.OUTPUT, Purpose.GRADIENT)} & between
    nodes = [p.node for p in machine.processors]
    for task in tasks:  # only gradients of weights go from node to node
        if len({nodes[p] for p in task.processors}) > 1:
            assert task.topic.purpose is Purpose.WEIGHT_GRADIENTS or task.topic.name == "loss", task


def test_experts_cut_networks_of_attention_so() -> None:
    machine = taskflow.load_machine("p100", 8)
    trained_so = {"Transformer": True, "GPT-2": True, "Llama": True, "MoE": True, "MLP": False, "NMT": False, "AlexNet": False}
    for name, wanted in trained_so.items():
        graph = build(name, preset="small", batch=16)
        same = map_graph(Expert(), graph, machine).configs == map_graph(Megatron(), graph, machine).configs
        assert attends(graph) == same == wanted, name


def test_heads_stay_with_their_key_heads_and_experts_are_shared() -> None:
    machine = taskflow.load_machine("p100", 8)
    graph = build("Llama", batch=8)
    strategy, layer = map_graph(Megatron(), graph, machine), "layers.3.self_attn"
    for name in ("q_proj", "k_proj", "v_proj"):
        assert cut(strategy, graph, f"{layer}.{name}") == {"n": 2, "c": 4}
    for name in ("q_rotary", "k_rotary", "attention"):
        assert cut(strategy, graph, f"{layer}.{name}") == {"n": 2, "a2": 4}
    assert cut(strategy, graph, f"{layer}.o_proj") == {"n": 2, "k": 4}
    assert cut(strategy, graph, "layers.3.mlp.act") == {"n": 2, "a2": 4}
    assert cut(strategy, graph, "layers.3.mlp.down_proj") == {"n": 2, "k": 4}
    moved = {t.topic.name for t in lower(graph, strategy, SGD(0.1)) if t.kind.travels and t.topic.purpose is Purpose.OUTPUT}
    assert not moved & {f"{layer}.{name}" for name in ("q_rotary", "k_rotary", "v_heads", "attention", "joined")}
    graph = build("MoE", batch=8, layers=2, experts=8)
    strategy = map_graph(Megatron(), graph, machine)
    assert cut(strategy, graph, "layers.1.moe.wi") == cut(strategy, graph, "layers.1.moe.wo") == {"n": 2, "e": 4}
    for name in ("gating", "dispatch", "combine"):  # what the experts make goes back to the groups, not its sums
        assert cut(strategy, graph, f"layers.1.moe.{name}") == {"n": 8}


def test_positions_that_are_trained_are_not_shared() -> None:
    """They are an array of more than one dimension, too, but what is added to them is no layer's input to share."""
    graph, machine = build("GPT-2"), taskflow.load_machine("p100", 8)
    strategy = map_graph(Megatron(), graph, machine)
    assert cut(strategy, graph, "wte") == {"n": 2, "v": 4} and cut(strategy, graph, "lm_head") == {"n": 2, "c": 4}
    assert cut(strategy, graph, "wpe") == cut(strategy, graph, "h.3.ln_1") == cut(strategy, graph, "h.3.mlp.add") == {"n": 8}
    assert cut(strategy, graph, "h.3.attn.k_proj") == cut(strategy, graph, "h.3.mlp.c_fc") == {"n": 2, "c": 4}
    assert cut(strategy, graph, "h.3.attn.out_proj") == cut(strategy, graph, "h.3.mlp.c_proj") == {"n": 2, "k": 4}
    assert cut(strategy, graph, "h.3.attn.softmax") == {"n": 2, "a1": 4}
    assert cut(strategy, graph, "h.3.mlp.act") == {"n": 2, "a2": 4}


@pytest.mark.parametrize(("count", "size"), fast_among([(4, 2), (6, 3), (4, 4), (3, 2), (1, None)], [(4, 2), (3, 2), (1, None)]))
def test_losses_are_those_of_one_processor(count: int, size: int | None) -> None:
    graph, machine = build("Transformer", preset="small", batch=6), taskflow.host(count)
    strategy = map_graph(Megatron(size), graph, machine)
    fed = random_feeds(graph, seed=1)
    losses = []
    for plan in (map_graph(Megatron(1), graph, taskflow.host(1)), strategy):
        run = Executor(graph, plan, SGD(0.1), seed=2)
        losses.append([run.train(fed) for _ in range(3)])
    np.testing.assert_allclose(losses[1], losses[0], rtol=2e-5)


def test_which_networks_are_trained_so() -> None:
    assert [suits(build(name, preset="small")) for name in ("Transformer", "MLP", "RNNLM", "AlexNet")] == [True, True, False, False]
    with pytest.raises(ValueError, match="size must be at least 1, got 0"):
        Megatron(0)


def test_a_search_starts_from_it() -> None:
    """Also in groups of half a node, which here beat what every search looks at: a search of one proposal has no time for
    anything else. (Without the check of memory there is no grid, whose plans are better.)"""
    graph = build("Transformer", preset="small", batch=4, vocabulary=500, hidden=2048, inner=8192)
    machine = taskflow.load_machine("a100", 8).driven_by(load_program("bigscience"))
    half = make_evaluator(graph, machine, rule=Adam()).set(map_graph(Megatron(4), graph, machine))
    found = search(graph, machine, budget=Budget(proposals=1), rule=Adam(), workers=1, memory=False)
    assert half < min(found.starts.values())
    assert found.strategy.name == "megatron on 4" and found.seconds == half
