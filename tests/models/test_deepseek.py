"""DeepSeek's latent attention: its work in closed form, heads that share keys' positions, and plans that deal its experts."""

from __future__ import annotations

import numpy as np
import pytest
from language_model import undivided

from taskflow import Executor
from taskflow import operators as ops
from taskflow.graph import OperatorGraph
from taskflow.machine import load_machine
from taskflow.mapper import map_graph
from taskflow.mapper.hybrid import HybridParallel
from taskflow.models.deepseek import SIZES, DeepSeekConfig, deepseek, latent_attention
from taskflow.models.places import with_places
from taskflow.optimizer import make_evaluator
from taskflow.regions import Rect
from taskflow.rules import SGD, Adam


def work(graph: OperatorGraph, *kinds: str) -> int:
    """Operations forward of the operators of some kinds."""
    found = 0
    for node in graph:
        if node.operator.kind in kinds:
            dims = node.operator.dims(node.specs)
            found += node.operator.flops(node.specs, Rect((0,) * len(dims), tuple(dim.size for dim in dims)))
    return found


def test_work_of_latent_attention() -> None:
    """Five products of a word by the table of DeepSeek-V3, and scores over 192 and sums over 128 features of 128 heads."""
    c = DeepSeekConfig(steps=256, layers=2, dense=2)
    graph = deepseek(c, "bfloat16")
    attention = 7168 * (1536 + 576) + 1536 * 128 * 192 + 512 * 128 * 256 + 128 * 128 * 7168
    assert work(graph, "linear") == 2 * 256 * (2 * (attention + 3 * 7168 * 18_432) + 7168 * 129_280)
    assert work(graph, "flash_attention") == pytest.approx(2 * 128 * (256 * 257 / 2) * 2 * (192 + 128), rel=0.02)
    first = deepseek(DeepSeekConfig(steps=256, layers=1, dense=1, query_rank=None))
    assert first.parameter_count == 2 * 129_280 * 7168 + attention - 1536 * (7168 + 128 * 192) + 7168 * 128 * 192 \
        + 3 * 7168 * 18_432 + 3 * 7168 + 512  # fmt: skip


def test_all_heads_see_the_same_rotated_key() -> None:
    """The gradient of what rotates is the sum over heads: the network trains, and alike in any type of plan."""
    c = DeepSeekConfig.small()
    graph = OperatorGraph("float64", "attention")
    x = ops.input(graph, (2, c.steps, c.hidden), name="x")
    graph.minimize(ops.mse_loss(latent_attention(c, x, "a"), x, name="loss"))
    names = {node.name: node for node in graph}
    assert names["a.self_attn.k_shared"].outputs[0].shape == (2, 6, 4, 2)
    assert names["a.self_attn.attention"].outputs[0].shape == (2, 6, 4, 3)
    run = Executor(graph, undivided(graph), SGD(0.05), seed=1)
    data = {"x": np.random.default_rng(0).standard_normal((2, c.steps, c.hidden))}
    losses = [run.train(data) for _ in range(20)]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("plan", ["t2 d4 mb1", "d8 e4 mb1 zero1", "p2 d4 e4 mb1", "t2 p2 d2 mb1 recompute=full"])
def test_plans_of_deepseek_are_evaluated(plan: str) -> None:
    c = DeepSeekConfig(
        batch=16, steps=64, vocabulary=256, hidden=64, inner=128, heads=8, layers=4, experts=8, chosen=2, expert_inner=64, dense=1,
        head_size=16, query_rank=32, key_rank=16, rotated=8, value_size=16,
    )  # fmt: skip
    graph, machine = with_places(deepseek(c, "bfloat16"), 1.0), load_machine("h100", 8)
    assert 0 < make_evaluator(graph, machine, rule=Adam()).set(map_graph(HybridParallel(plan), graph, machine)) < 1


def test_published_sizes() -> None:
    """Activated weights of a word are published as 37 and 2.4 billion (with the embedding and scores)."""
    for name, published in (("V3", 37e9), ("V2-Lite", 2.4e9)):
        c = SIZES[name]
        graph, sparse = deepseek(c), c.layers - (c.dense or 0)
        idle = sparse * (c.experts - c.chosen) * 3 * c.hidden * (c.expert_inner or 0)
        assert graph.parameter_count - idle == pytest.approx(published, rel=0.12)
