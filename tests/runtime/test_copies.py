"""Pieces that several processors compute, each for itself (`OpConfig.copies`; Megatron-LM without sequence parallelism): the
numbers are those of one processor, and what is sent is Megatron-LM's."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from beside_one_processor import STEPS, compare, compare_network, same, trained
from language_model import random_strategy, undivided
from pipelines import GPT, random_pipeline, random_shares, tokens

import taskflow
from taskflow.graph import Node, OperatorGraph
from taskflow.machine import host
from taskflow.mapper import DataParallel, Exchange, HybridParallel, OpConfig, Strategy, map_graph
from taskflow.mapper.config import writes_together
from taskflow.models.gpt import gpt
from taskflow.rules import SGD, AdamW
from taskflow.tasks.lower import lower
from taskflow.tasks.task import AllReduce, Kind, TaskGraph
from taskflow.tasks.topic import Purpose


def copied(node: Node, config: OpConfig, processors: int, random: Random) -> OpConfig:
    """A configuration with each piece on several processors; the same if it may have none."""
    added = any(degree > 1 and writes_together(node, i) for i, degree in enumerate(config.degrees))
    if added or node.operator.kind == "state" or random.random() < 0.5:
        return config
    copies = random.randint(2, processors)
    places: list[int] = []
    for _ in config.processors:
        places += random.sample(range(processors), copies)
    return replace(config, processors=tuple(places), copies=copies)


def plan(graph: OperatorGraph, random: Random, number: int) -> Strategy:
    """Every second with micro-batches, of these every second with shares. Copies of one operator are on the same processors for
    all micro-batches, as its pieces are."""
    processors = random.randint(2, 5)
    strategy = (random_pipeline if number % 2 else random_strategy)(graph, processors, random)
    if number % 4 == 1:
        strategy = random_shares(graph, strategy, random)
    strategy = replace(strategy, exchange=random.choice(list(Exchange)))
    configs = {node.name: copied(node, strategy[node.name], processors, random) for node in graph}
    if all(config.copies == 1 for config in configs.values()):
        raise ValueError("no piece has copies in this plan; draw another")
    return replace(strategy, configs=configs)


@pytest.mark.parametrize(("seed", "count"), [(0, 2), *(pytest.param(s, 20, marks=pytest.mark.slow) for s in range(4))])
def test_a_decoder_with_copies_of_any_operators(seed: int, count: int) -> None:
    dtype, rule = ("float64", "float32")[seed % 2], (SGD(0.1, momentum=0.9), AdamW(0.003, eps=1e-3))[seed % 2]
    batches = [tokens(s) for s in range(STEPS)]
    assert compare(lambda: gpt(GPT, dtype), batches, plan, f"copies gpt {seed}", count, dtype, rule, 1.0) == count


def test_random_networks_with_copies() -> None:
    assert sum(compare_network(seed, plan, "copies", 3) for seed in range(4)) >= 6


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 40, 10))
def test_more_random_networks_with_copies(first: int) -> None:
    assert sum(compare_network(seed, plan, "copies", 6) for seed in range(first, first + 10)) >= 30


# ---- what moves ------------------------------------------------------------------------------------------------------
def step(text: str, layers: int) -> tuple[OperatorGraph, TaskGraph]:
    graph = gpt(replace(GPT, layers=layers, heads=4, hidden=16), "float32")
    strategy = map_graph(HybridParallel(text), graph, host(4))
    assert any(config.copies > 1 for config in strategy.configs.values())
    return graph, lower(graph, strategy, SGD(0.1))


def test_a_layer_sends_two_all_reduces_forward_and_two_backward() -> None:
    """Shoeybi et al., arXiv 1909.08053, figure 4; their bytes are those of the activations."""
    (_, two), (_, three) = step("t4 nosp", 2), step("t4 nosp", 3)
    counted = [
        Counter(
            (task.topic.purpose, type(task.work)) for task in tasks
            if task.kind.travels and task.topic.purpose not in (Purpose.WEIGHT_GRADIENTS, Purpose.NEW_WEIGHTS)
        )
        for tasks in (two, three)
    ]
    assert counted[1] - counted[0] == {(Purpose.PARTIAL, AllReduce): 2, (Purpose.GRADIENT, AllReduce): 2}


def test_weights_of_copies_get_their_gradient_once() -> None:
    graph, tasks = step("t4 nosp", 2)
    norm = graph.node("h.0.ln_1")
    backward = [task.work for task in tasks if task.kind is Kind.BACKWARD and task.work.node is norm]
    assert len(backward) == 4
    assert [work.grad_weights != (None,) * len(norm.parameters) for work in backward] == [True, False, False, False]


def test_owners_that_take_a_gradient_from_different_copies_add_it_once() -> None:
    """The first layer's output is in two halves, on processors 0 and 2. Its gradient comes from copies on 1 and 2, of which each
    half takes the nearest, and from a reader on 0: three processors with one gradient each, which must not be one sum."""

    def make() -> OperatorGraph:
        graph = OperatorGraph()
        x = taskflow.input(graph, (2, 4, 6), "float64", name="x")
        first = taskflow.linear(x, 6, name="first")
        both = taskflow.add(taskflow.linear(first, 6, name="copied"), taskflow.linear(first, 6, name="other"), name="both")
        graph.minimize(taskflow.mse_loss(both, taskflow.input(graph, (2, 4, 6), "float64", name="wanted"), name="loss"))
        return graph

    graph = make()
    configs = map_graph(DataParallel(), graph, host(1)).configs
    configs |= {"first": OpConfig((1, 2, 1, 1), (0, 2)), "copied": OpConfig((1, 1, 1, 1), (1, 2), copies=2)}
    strategy = Strategy(3, configs, exchange=Exchange.COLLECTIVES)
    strategy.verify(graph)
    random = np.random.default_rng(0)
    batches = [{name: random.normal(size=(2, 4, 6)) for name in ("x", "wanted")} for _ in range(2)]
    wanted, found = (trained(make(), s, batches, SGD(0.1), None) for s in (undivided(make()), strategy))
    same(found, wanted, "copies", "float64")
