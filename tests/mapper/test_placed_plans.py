"""Plans on unequal devices: which devices have which places, and how many samples and layers each gets."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from language_model import undivided

import taskflow
from taskflow.graph import OperatorGraph
from taskflow.machine import load_machine
from taskflow.mapper import (
    HybridParallel,
    HybridPlan,
    Strategy,
    choose,
    load,
    map_graph,
    parse_config,
    parse_plan,
    save,
)
from taskflow.mapper.pipeline import in_micro_batches, sample_dim
from taskflow.models.gpt import GPTConfig, gpt
from taskflow.optimizer import make_evaluator
from taskflow.optimizer.evaluate.evaluator import PythonEvaluator
from taskflow.optimizer.evaluate.folded import folded_step
from taskflow.rules import Adam

CONFIG = replace(GPTConfig.small(), batch=12, layers=3)


def decoder(layers: int = 3, batch: int = 12) -> OperatorGraph:
    return gpt(replace(CONFIG, layers=layers, batch=batch), "float64")


def planned(plan: str, devices: int, graph: OperatorGraph | None = None) -> Strategy:
    return choose(plan, graph or decoder(), taskflow.host(devices))[0]


def test_places_and_shares_are_read_and_say_themselves() -> None:
    text = "t1 p2 d2 stages=2,1 shares=2,1 devices=4-5,0-1"
    plan = parse_plan(text)
    assert plan == HybridPlan(pipeline=2, data=2, stages=(2, 1), shares=(2, 1), devices=(4, 5, 0, 1))
    assert str(plan) == text and parse_plan("p2 d2 stages=2,1 shares=2,1 devices=4,5,0,1") == plan
    assert str(parse_plan("p2 devices=v100,a100")) == "t1 p2 devices=v100,a100"
    assert str(parse_plan("p2 devices=v100,3,0-1,a100")) == "t1 p2 devices=v100,3,0-1,a100"
    assert (plan.samples_a_pass, HybridPlan(data=4, micro_batch=2).samples_a_pass) == (3, 8)


@pytest.mark.parametrize(("plan", "message"), [
    ("d2 shares=2,1 mb1", "shares= says how many samples of a micro-batch each replica takes, which mb1 says of all"),
    ("d3 shares=2,1", "shares= needs 1 sample or more for each of 3 replicas, got 2,1"),
    ("d2 shares=2,0", "shares= needs 1 sample or more for each of 2 replicas, got 2,0"),
    ("d2 e2 shares=2,1", "e2 deals experts to replicas that take as many samples each"),
    ("d2 shares=2:1", "shares must be numbers of samples such as"),
    ("d4 shares=2,1,1,1", "12 samples a step cannot be taken in micro-batches of the 5 that shares= adds up to"),
    ("d4 devices=0-2", r"t x p x d must be the 3 devices, got 1 x 1 x 4 = 4"),
    ("d4 devices=0-2,4", "devices= names device 4; the machine has 0 to 3"),
    ("d4 devices=0-2,2", "devices= gives device 2 two places"),
    ("d4 devices=quick", "devices= names kind 'quick'; the machine has cpu"),
    ("d4 devices=2-0", "range 2-0 runs backwards"),
])
def test_what_does_not_fit_is_said(plan: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        planned(plan, 4)


def test_stages_stand_on_the_devices_that_the_plan_names() -> None:
    machine, graph = load_machine("a100-v100"), decoder()
    for plan in ("p2 d4 mb1 devices=v100,a100 stages=1,2", "p2 d4 mb1 devices=4-7,0-3 stages=1,2"):
        strategy = map_graph(HybridParallel(plan), graph, machine)
        assert strategy["h.0.mlp.c_fc"].processors[:4] == (4, 5, 6, 7) and strategy["h.1.mlp.c_fc"].processors[:4] == (0, 1, 2, 3)
    some = map_graph(HybridParallel("p2 d2 mb1 devices=0-1,5-6"), graph, machine)
    assert {p for config in some.configs.values() for p in config.processors} == {0, 1, 5, 6}
    assert some.processors == 8


def test_each_micro_batch_is_dealt_by_shares() -> None:
    strategy, graph = planned("p2 d2 shares=2,1", 4), decoder()
    node = graph.node("h.0.mlp.c_fc")
    config = strategy["h.0.mlp.c_fc"]
    assert config.describe(node) == "n/(2:1)*4 @ (0-1)*4" and parse_config(config.describe(node), node, 4) == config
    dim = sample_dim(node)
    assert dim is not None and strategy.pipeline is not None
    cuts = config.partition(node).cuts[dim]
    assert [b - a for a, b in pairwise(cuts)] == [2, 1] * 4
    assert [strategy.pipeline.micro_batch(node, config, piece) for piece in range(8)] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert planned("d2 shares=6,6", 2)["h.0.mlp.c_fc"].weights == ()
    with pytest.raises(ValueError, match="4 micro-batches of 12 samples, each cut as 9:1, leave a piece empty"):
        in_micro_batches(node, parse_config("n/9:1", node, 2), 4)


@pytest.mark.parametrize("plan", [
    "p2 d2 stages=2,1 shares=2,1 devices=3,0,1-2", "t2 d2 shares=3,1 devices=2-3,0-1", "d4 zero2 shares=3,1,1,1",
    "d3 shares=7,2,3 devices=0,3,1", "p2 d2 shares=1,2 zero3 recompute=full", "p3 mb1 schedule=zb-h1 stages=1,1,1 devices=3,1,0",
    "c2 d2 shares=1,3 zero1", "p2 mb2 schedule=zbv devices=3,1",
])
def test_they_train_as_one_processor_does(plan: str, tmp_path: Path) -> None:
    graph = decoder(4 if "zbv" in plan else 3)
    strategy = planned(plan, 4, graph)
    save(strategy, graph, "host-4", tmp_path / "plan.json")
    again = load(tmp_path / "plan.json", graph, 4)
    assert (again.pipeline, again.configs) == (strategy.pipeline, strategy.configs)
    random = np.random.default_rng(0)
    batches = [{k: random.integers(0, 17, (12, 5)) for k in ("tokens", "targets")} for _ in range(2)]
    losses = []
    for made in (undivided(graph), again):
        run = taskflow.Executor(graph, made, taskflow.Adam(0.01), clip_norm=1.0)
        losses.append([run.train(batch) for batch in batches])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-9)


@pytest.mark.parametrize("plan", [
    "p2 d4 shares=2,2,1,1 devices=0,2,4,6,1,3,5,7",
    pytest.param("t2 p2 d2 mb4 devices=v100,a100 stages=1,3", marks=pytest.mark.slow),
    pytest.param("d8 shares=2,2,2,2,1,1,1,1", marks=pytest.mark.slow),
    pytest.param("t2 p2 d2 mb1 devices=v100,a100 stages=1,3", marks=pytest.mark.slow),
])
def test_micro_batches_that_are_dealt_alike_are_folded(plan: str) -> None:
    machine, graph = load_machine("a100-v100"), decoder(4, 48)
    costs = make_evaluator(graph, machine, rule=Adam()).costs
    evaluator = PythonEvaluator(graph, machine, costs, Adam(), None)
    strategy = map_graph(HybridParallel(plan), graph, machine)
    step, seconds = folded_step(graph, strategy, machine, costs, Adam(), None), evaluator.set(strategy)
    assert step.makespan == pytest.approx(seconds, rel=5e-3)
    assert step.tasks == evaluator.tasks
