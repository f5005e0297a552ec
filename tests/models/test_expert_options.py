"""Networks of experts as they are published today: narrow experts, some shared, dense first layers, heads of their own size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from taskflow.graph import OperatorGraph
from taskflow.machine import host
from taskflow.mapper import DataParallel, map_graph
from taskflow.models.mixtral import MixtralConfig, mixtral
from taskflow.models.moe import MoEConfig, moe
from taskflow.optimizer import make_evaluator
from taskflow.rules import Adam


def like_qwen3() -> OperatorGraph:
    """Qwen3 235B: 94 layers of 128 experts, heads of 128 features that are not hidden / heads."""
    return mixtral(MixtralConfig(
        vocabulary=151_936, hidden=4096, inner=12_288, heads=64, key_heads=4, head_size=128, layers=94, experts=128, chosen=8,
        expert_inner=1536,
    ))


def like_deepseek() -> OperatorGraph:
    """A first dense layer, then experts with one that all tokens use (DeepSeekMoE 16B: 64 + 2 experts, 6 chosen)."""
    return mixtral(MixtralConfig(
        vocabulary=102_400, hidden=2048, inner=10_944, heads=16, key_heads=16, layers=28, experts=64, chosen=6, expert_inner=1408,
        shared=2, dense=1,
    ))


def sparse_fourth() -> OperatorGraph:
    """GShard's decoder with experts in every fourth layer after two dense ones."""
    return moe(replace(MoEConfig.small(), layers=10, every=4, dense=2, expert_inner=5, shared=3))


@pytest.mark.parametrize(("network", "weights"), [
    (like_qwen3, 94 * (4096 * 128 * (2 * 64 + 2 * 4) + 128 * (3 * 4096 * 1536 + 4096) + 2 * 4096) + 2 * 151_936 * 4096 + 4096),
    (like_deepseek, 28 * (4 * 2048**2 + 2 * 2048) + 3 * 2048 * 10_944 + 27 * (3 * 2048 * 1408 * 66 + 64 * 2048)
     + 2 * 102_400 * 2048 + 2048),
    (sparse_fourth, 10 * (4 * 8 * 12 + 4 * 8) + 8 * 2 * 8 * 12 + 2 * (8 * 4 + 4 * 2 * 8 * 5 + 2 * 8 * 15) + 17 * 8 + 2 * 8),
])
def test_numbers_of_weights_are_those_worked_out_by_hand(network: Callable[[], OperatorGraph], weights: int) -> None:
    assert network().parameter_count == weights


def test_experts_are_in_the_layers_that_were_named() -> None:
    names = {node.name for node in sparse_fourth()}
    assert [i for i in range(10) if f"layers.{i}.moe.wi" in names] == [5, 9]
    assert [i for i in range(10) if f"layers.{i}.ffn.wi" in names] == [0, 1, 2, 3, 4, 6, 7, 8]


def test_a_narrow_one_is_evaluated() -> None:
    graph = mixtral(replace(MixtralConfig.small(), head_size=6, expert_inner=5, shared=2, dense=1, every=2, layers=5))
    machine = host(2)
    assert make_evaluator(graph, machine, rule=Adam()).set(map_graph(DataParallel(), graph, machine)) > 0
