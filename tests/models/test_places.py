"""Networks whose experts get places, so that plans can deal them: the same numbers, and what is planned for the busiest device."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import taskflow as tf
from taskflow.graph import OperatorGraph
from taskflow.machine import host, load_machine
from taskflow.mapper import HybridParallel, map_graph
from taskflow.models import MixtralConfig, MoEConfig, mixtral, moe, with_places
from taskflow.optimizer import expert_imbalance, make_evaluator, step_units
from taskflow.optimizer.evaluate.evaluator import PythonEvaluator
from taskflow.optimizer.evaluate.folded import folded_step, folded_use
from taskflow.optimizer.grid import make_grid
from taskflow.optimizer.memory import memory_use
from taskflow.rules import Adam
from taskflow.tasks import AllToAll

BATCH, STEPS, WORDS = 8, 6, 17


def network(**sizes: object) -> OperatorGraph:
    """Four experts, of which each token uses two."""
    return mixtral(replace(MixtralConfig.small(), batch=BATCH, **sizes), "float64")


def trained(graph: OperatorGraph, plan: str, devices: int) -> list[float]:
    """The losses of some steps, which depend on all gradients."""
    random = np.random.default_rng(3)
    run = tf.Executor(graph, map_graph(HybridParallel(plan), graph, host(devices)), tf.SGD(0.5))
    batch = {name: random.integers(0, WORDS, (BATCH, STEPS)) for name in ("tokens", "targets")}
    return [run.train(batch) for _ in range(3)]


@pytest.mark.parametrize(("plan", "devices"), [
    ("d1", 1), ("d2 e2", 2), ("d4 e4 mb1 zero3", 4), ("t2 d2 e2", 4), ("p2 d2 e2 mb1 recompute=full", 4),
])
def test_with_places_for_all_tokens_training_is_that_of_the_network_without(plan: str, devices: int) -> None:
    whole = trained(network(), "d1", 1)
    assert trained(network(places=2.0), plan, devices) == pytest.approx(whole, rel=1e-12)
    assert trained(network(places=2.0, shared=2), "d2 e2", 2) == pytest.approx(trained(network(shared=2), "d1", 1), rel=1e-12)


def test_with_fewer_places_tokens_that_find_none_add_nothing() -> None:
    """Equal under every plan, and not what it is with a place for everybody."""
    one, two = trained(network(places=1.0), "d1", 1), trained(network(places=1.0), "d2 e2", 2)
    assert one == pytest.approx(two, rel=1e-12)
    assert one != pytest.approx(trained(network(), "d1", 1), rel=1e-6)


def test_weights_names_and_losses_are_those_of_the_network_without() -> None:
    plain, placed = network(), with_places(network(), 1.5)
    assert [(p.name, p.shape, p.init) for p in plain.parameters] == [(p.name, p.shape, p.init) for p in placed.parameters]
    assert [loss.name for loss in plain.losses] == [loss.name for loss in placed.losses]
    assert set(node.name for node in plain) < set(node.name for node in placed)


def test_what_is_planned_grows_with_the_factor() -> None:
    """Flops of experts, bytes of all-to-alls, and what the busiest device holds: by hand, 1.5 times those of an even load."""
    machine, rule = load_machine("a100", 4), Adam()

    def step(factor: float) -> tuple[int, int, int]:
        graph = with_places(mixtral(replace(MixtralConfig.small(), batch=4, steps=64)), factor)
        strategy = map_graph(HybridParallel("d4 e4 mb1"), graph, machine)
        evaluator = PythonEvaluator(graph, machine, make_evaluator(graph, machine, rule=rule).costs, rule, None)
        evaluator.set(strategy)
        tasks, timeline = evaluator.current()
        sent = sum(task.nbytes for task in tasks if isinstance(task.work, AllToAll))
        flops = sum(node.operator.flops(node.specs, node.space) for node in graph if node.operator.kind == "expert_linear")
        return flops, sent, max(use.buffers for use in memory_use(tasks, timeline.begun(tasks)))

    even, busy = step(1.0), step(1.5)
    tokens, choices, hidden, inner, layers = 4 * 64, 2, 8, 12, 2
    assert even[0] == 2 * 3 * tokens * choices * hidden * inner * layers
    assert busy[0] == 1.5 * even[0] and busy[1] == 1.5 * even[1] > 0 and busy[2] > even[2]


def test_places_of_networks_with_a_capacity_are_multiplied() -> None:
    config = replace(MoEConfig.small(), batch=16, steps=64, group=None, factor=2.0)  # GShard's two choices: an even load
    assert expert_imbalance(moe(config)) == 1
    assert expert_imbalance(with_places(moe(config), 1.5)) == 1.5
    assert expert_imbalance(with_places(moe(replace(config, einsums=True)), 1.5)) == 1.5
    assert expert_imbalance(network()) is None


def test_products_beyond_an_even_load_are_no_model_flops() -> None:
    machine = load_machine("a100", 4)
    flops = [step_units(with_places(network(steps=64), factor), machine, None, 1.0).model_flops for factor in (1.0, 1.5)]
    assert flops[1] == pytest.approx(flops[0])


def test_a_step_with_dealt_experts_folds() -> None:
    """One replica stands for all, with all-to-alls, and times, tasks and bytes are those of the whole step."""
    machine, rule = load_machine("a100", 8), Adam()
    graph = with_places(mixtral(replace(MixtralConfig.small(), batch=16, steps=64, hidden=64, experts=8)), 1.25)
    strategy = map_graph(HybridParallel("d8 e8 mb1"), graph, machine)
    evaluator = PythonEvaluator(graph, machine, make_evaluator(graph, machine, rule=rule).costs, rule, 1.0)
    step = folded_step(graph, strategy, machine, evaluator.costs, rule, 1.0)
    seconds = evaluator.set(strategy)
    tasks, timeline = evaluator.current()
    assert step.replicas.count == 8
    assert step.makespan == pytest.approx(seconds, rel=1e-12)
    assert (step.tasks, step.transfer_bytes) == (len(tasks), tasks.transfer_bytes)
    for folded, use in zip(folded_use(step), memory_use(tasks, timeline.begun(tasks))):
        assert folded.buffers == pytest.approx(use.buffers, rel=0.01)


def test_the_grid_of_a_search_has_plans_that_deal_experts() -> None:
    machine = load_machine("a100", 4)
    grids = [make_grid(graph, machine, Adam()) for graph in (network(), with_places(network(), 1.25))]
    assert [max(plan.experts for plan, _ in grid.listed()) for grid in grids] == [1, 4]


@pytest.mark.parametrize(("factor", "graph", "why"), [
    (0.5, network, "must be a number of at least 1 .*got 0.5"), (float("nan"), network, "at least 1 .*got nan"),
    (1.5, lambda: tf.models.build("MLP", 4, preset="small"), "MLP has no experts"),
])
def test_what_cannot_have_places_is_refused(factor: float, graph: object, why: str) -> None:
    with pytest.raises(ValueError, match=f"expert imbalance: .*{why}"):
        with_places(graph(), factor)  # type: ignore[operator]


def test_a_network_that_looks_at_its_experts_outputs_is_refused_by_name() -> None:
    graph = OperatorGraph()
    x = tf.input(graph, (2, 4, 8), name="x")
    _, chosen, _, _, _ = tf.top_k_routing(tf.linear(x, 4, name="router"), 2)
    made = tf.reshape(tf.routed_linear(x, chosen, 4, 8, name="experts"), (2, 8, 8), name="rows")
    graph.minimize(tf.mean(made))
    with pytest.raises(ValueError, match=r"experts of model cannot have places: rows \(reshape\) is not known"):
        with_places(graph)


def test_frozen_experts_stay_frozen() -> None:
    graph = network()
    graph.freeze("layers.*.experts.*")
    placed = with_places(graph, 1.5)
    assert placed.trained_count == graph.trained_count < graph.parameter_count
    assert all(node.operator.frozen for node in placed if node.operator.kind == "expert_linear")


@pytest.mark.torch
@pytest.mark.parametrize(("kind", "more"), [
    ("mixtral", {"num_local_experts": 4}), ("qwen3_moe", {"num_experts": 4, "moe_intermediate_size": 16, "head_dim": 8}),
    ("gpt_oss", {"num_local_experts": 4, "head_dim": 8}),
    ("llama4_text", {"num_local_experts": 4, "num_experts_per_tok": 1, "head_dim": 8, "intermediate_size_mlp": 64}),
])
def test_imported_experts_get_places(kind: str, more: dict[str, int]) -> None:
    """With a place for every token a step under dealt experts is that of the network as it was imported."""
    for package in ("torch", "transformers"):
        pytest.importorskip(package, reason=f"{package} is not installed: make test TORCH=1")
    from taskflow.models.huggingface import from_config

    graph = from_config({
        "model_type": kind, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 50, "max_position_embeddings": 32, "num_experts_per_tok": 2, **more,
    }, batch=4, steps=8)  # fmt: skip
    placed = with_places(graph, 4 / more.get("num_experts_per_tok", 2))
    assert [p.name for p in graph.parameters] == [p.name for p in placed.parameters]
    random = np.random.default_rng(0)
    feeds = {node.name: random.integers(0, 50, node.space.shape) for node in graph if node.operator.kind == "input"}

    def losses(of: OperatorGraph, plan: str, devices: int) -> list[float]:
        run = tf.Executor(of, map_graph(HybridParallel(plan), of, host(devices)), tf.SGD(0.1))
        return [run.train(feeds) for _ in range(2)]

    assert losses(placed, "d2 e2", 2) == pytest.approx(losses(graph, "d1", 1), rel=1e-5)
