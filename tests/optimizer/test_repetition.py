"""Plans of a few processors for all: their seconds are those that their definition gives, and near those of the whole plan."""

from __future__ import annotations

from dataclasses import replace
from math import inf, prod
from random import Random

import pytest
from fast_and_slow import fast_among

from taskflow.graph import OperatorGraph
from taskflow.machine import load_machine
from taskflow.mapper import OpConfig, Strategy, Sync, SyncAlgorithm, UpdatePlacement
from taskflow.mapper.strategy import SUMS
from taskflow.models import build
from taskflow.models.llama import LlamaConfig, llama
from taskflow.models.rnnlm import RNNLMConfig, rnnlm
from taskflow.optimizer import make_evaluator
from taskflow.optimizer.evaluate.repetition import Repetition, repeated_seconds, repetition
from taskflow.rules import SGD, Adam, UpdateRule

core = pytest.importorskip("taskflow.optimizer.evaluate.compiled", reason="the compiled core is not built")
RULE = SGD(0.1, momentum=0.9)
WAYS = [Sync(SyncAlgorithm.COLLECTIVE, place) for place in (UpdatePlacement.REPLICATED, UpdatePlacement.SHARDED)]
PLACES = (("k80", 16, 4), ("k80", 32, 8), ("h100", 16, 4), ("h100", 8, 2), ("p100", 16, 8))


def networks() -> tuple[OperatorGraph, ...]:
    return (
        rnnlm(RNNLMConfig(batch=64, steps=4, vocabulary=48, hidden=16, layers=2, dropout=0.3, steps_per_operator=2), "float32"),
        llama(replace(LlamaConfig.small(), batch=64, layers=2)),
        build("MLP", batch=64),
        build("AlexNet", devices=2),
    )


def small_evaluator(of: Repetition, rule: UpdateRule = RULE):  # type: ignore[no-untyped-def]
    costs = make_evaluator(of.graph, of.whole, rule=rule).costs
    return core.CompiledEvaluator(of.graph, of.machine, costs, rule, None, "full", of)


def random_plan(graph: OperatorGraph, size: int, random: Random) -> Strategy:
    """Any degrees, any processors, either collective for each layer, either way to sum partial values."""
    configs = {}
    for node in graph:
        degrees = tuple(
            random.randint(1, min(dim.size, 2)) if dim.divisible and random.random() < 0.5 else 1 for dim in node.dims
        )
        configs[node.name] = OpConfig(degrees, tuple(random.randrange(size) for _ in range(prod(degrees))))
    syncs = {p.layer: random.choice(WAYS) for p in graph.parameters}
    return Strategy(size, configs, syncs, "random", random.choice(SUMS))


@pytest.mark.parametrize("seed", fast_among(range(40), range(12)))
def test_seconds_are_those_of_the_definition(seed: int) -> None:
    random = Random(seed)
    graph, (name, count, size) = random.choice(networks()), random.choice(PLACES)
    rule = random.choice((RULE, Adam()))
    of = repetition(graph, load_machine(name, count), size)
    assert of is not None
    evaluator = small_evaluator(of, rule)
    for _ in range(2):
        plan = random_plan(graph, size, random)
        assert evaluator.set(plan) == repeated_seconds(of, plan, evaluator.costs, rule)
    for _ in range(6):  # changes of single operators and layers, from what the core keeps
        other = random_plan(graph, size, random)
        node, layer = random.choice(list(graph)), random.choice(graph.parameters).layer
        changes, syncs = {node.name: other[node.name]}, {layer: other.sync(layer)}
        changed = evaluator.changed(changes, syncs)
        assert evaluator.propose(changes, inf, syncs) == repeated_seconds(of, changed, evaluator.costs, rule)
        if random.random() < 0.7:
            evaluator.accept()
