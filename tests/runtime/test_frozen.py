"""Networks of which a part is frozen: steps train the rest as on one processor, and leave the frozen part as it is."""

from __future__ import annotations

import pickle
from random import Random

import numpy as np
import pytest
from beside_one_processor import trained
from fast_and_slow import fast_among
from frozen_networks import freeze_some
from language_model import random_strategy, undivided
from random_networks import network

import taskflow
from taskflow.graph import OperatorGraph
from taskflow.machine import host
from taskflow.mapper import HybridParallel, map_graph
from taskflow.models import build
from taskflow.operators.frozen import frozen
from taskflow.operators.linear import Linear
from taskflow.operators.operator import Work
from taskflow.rules import SGD, Adam
from taskflow.runtime.executor import Executor, LossError
from taskflow.tasks.lower import lower
from taskflow.tasks.task import Compute


@pytest.mark.parametrize("seed", fast_among(range(80), range(12)))
def test_random_networks_train_as_on_one_processor(seed: int) -> None:
    def made() -> tuple[OperatorGraph, list[dict[str, object]], object, float | None]:
        graph, feeds, rule, clip_norm = network(seed)
        return freeze_some(graph, Random(seed)), [feeds] * 2, rule, clip_norm

    graph, batches, rule, clip_norm = made()
    begin = Executor(graph, undivided(graph), rule, seed=3).weights()  # type: ignore[arg-type]
    assert begin is not None
    begin = {name: value.copy() for name, value in begin.items()}
    try:
        losses, weights = trained(graph, undivided(graph), batches, rule, clip_norm)  # type: ignore[arg-type]
    except LossError:
        return
    for parameter in graph.parameters:
        if not parameter.trained:
            np.testing.assert_array_equal(weights[parameter.name], begin[parameter.name])
    for number in range(2):
        random = Random(f"{seed} {number}")
        strategy = random_strategy(graph, random.randint(2, 5), random)
        found, others = trained(graph, strategy, batches, rule, clip_norm)  # type: ignore[arg-type]
        np.testing.assert_allclose(found, losses, rtol=1e-8, atol=1e-10)
        for name, value in weights.items():
            np.testing.assert_allclose(others[name], value, rtol=1e-6, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("plan", [
    "d4", "d4 zero1 bucket=1000", "d4 zero2", "d4 zero3", "d2 t2 zero3", "p2 d2 mb2 zero3", "p2 d2 mb2 schedule=zb-h1",
    "d4 zero3 recompute=full",
])
def test_plans_in_notation_train_a_decoder_as_one_processor(plan: str) -> None:
    def made() -> OperatorGraph:
        graph = build("Llama", 8, preset="small", layers=4, dtype="float64")
        graph.freeze("embed_tokens", "layers.*.mlp.*", "layers.0.*", "*.input_layernorm")
        return graph

    graph = made()
    tokens = np.random.default_rng(0).integers(0, 17, graph.nodes[0].outputs[0].shape)
    feeds = [{node.name: tokens for node in graph if node.operator.kind == "input"}] * 2
    losses, weights = trained(graph, undivided(graph), feeds, Adam(0.01, eps=1e-3), 1.0)
    found, others = trained(graph, map_graph(HybridParallel(plan), graph, host(4)), feeds, Adam(0.01, eps=1e-3), 1.0)
    np.testing.assert_allclose(found, losses, rtol=1e-9)
    for name, value in weights.items():
        np.testing.assert_allclose(others[name], value, rtol=1e-6, atol=1e-9, err_msg=name)


def test_nothing_is_kept_summed_or_sent_of_what_is_frozen() -> None:
    graph = build("Llama", 8, preset="small", layers=2)
    graph.freeze("layers.*", "norm", "lm_head")
    tasks = lower(graph, map_graph(HybridParallel("d2 zero1"), graph, host(2)), Adam())
    frozen_names = {p.name for p in graph.parameters if not p.trained}
    assert frozen_names and not any(
        target for task in tasks.tasks if isinstance(work := task.work, Compute) and work.node.operator.frozen
        for target in work.grad_weights
    )
    kept = [buffer.name for buffer in tasks.buffers if buffer.kept]
    assert any(name.startswith("embed_tokens") and "adam0" in name for name in kept)
    assert not any("adam" in name for name in kept if name.startswith(("layers.", "norm", "lm_head")))


def test_a_frozen_operator_is_its_operator_but_for_the_gradients_of_weights() -> None:
    operator = frozen(Linear(6, False))
    assert operator == frozen(Linear(6, False)) and operator != Linear(6, False) and frozen(operator) is operator
    assert operator.kind == "linear" and isinstance(operator, Linear) and operator.work is Work.CONTRACTION
    assert pickle.loads(pickle.dumps(operator)) == operator
    graph = OperatorGraph()
    x = taskflow.input(graph, (4, 8), name="x")
    node = graph.nodes[taskflow.linear(x, 6, False).node]
    assert operator.backward_flops(node.specs, node.space) * 2 == node.operator.backward_flops(node.specs, node.space)
    assert node.operator.keeps(node.specs).inputs and not operator.keeps(node.specs).inputs


def test_what_cannot_be_frozen_is_said() -> None:
    graph = build("MLP", preset="small")
    layer = graph.parameters[0].layer
    with pytest.raises(ValueError, match=r"freeze: 'no\.\*' matches no parameter of MLP; its layers are "):
        graph.freeze("no.*")
    with pytest.raises(ValueError, match="an operator is trained whole or not at all"):
        graph.freeze(f"{layer}.bias")
    before = graph.fingerprint()
    assert graph.freeze(layer) == sum(p.spec.rect.volume for p in graph.parameters if p.layer == layer)
    assert graph.freeze(layer) == 0
    assert graph.fingerprint() != before and " trained)" in repr(graph)
    assert Executor(graph, undivided(graph), SGD(0.1)).weights() is not None
