"""Operators that choose in a random walk, and those that go with them."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from taskflow.graph import OperatorGraph
from taskflow.machine import load_machine
from taskflow.mapper import OpConfig
from taskflow.models import build
from taskflow.optimizer.algorithms.initial import random_start
from taskflow.optimizer.algorithms.mcmc import mcmc
from taskflow.optimizer.budget import Budget
from taskflow.optimizer.evaluate import DEFAULT_RULE, make_evaluator
from taskflow.optimizer.evaluate.evaluator import PythonEvaluator
from taskflow.optimizer.options import SearchOptions
from taskflow.optimizer.space.followers import CoupledMoves, elementwise, followed
from taskflow.optimizer.space.space import SearchSpace, SpaceOptions

EVEN = SpaceOptions("even", reduction=False)


def moves(graph: OperatorGraph, follow: str, devices: int = 4) -> CoupledMoves:
    return CoupledMoves(graph, SearchSpace(graph, devices, replace(EVEN, follow=follow)))


def test_alexnet_has_the_papers_twelve_operators() -> None:
    graph = build("AlexNet", devices=4)
    kinds = [node.operator.kind for node in moves(graph, "elementwise").leaders]
    assert len(kinds) == 12  # 5 convolutions, 3 poolings, 3 dense layers, softmax with the loss
    assert sorted(kinds) == ["conv2d"] * 5 + ["cross_entropy"] + ["linear"] * 3 + ["max_pool2d"] * 3


@pytest.mark.parametrize(("model", "count"), [("ResNet-101", 107), ("Inception-v3", 109), ("RNNTC", 22), ("RNNLM", 24)])
def test_layers_choose(model: str, count: int) -> None:
    graph = build(model, devices=4)
    chosen = moves(graph, "elementwise").leaders
    assert len(chosen) == count
    heavy = {"conv2d", "linear", "lstm", "embedding"}
    assert {n.number for n in graph if n.operator.kind in heavy} <= {n.number for n in chosen}
    assert not {n.operator.kind for n in chosen} & {"relu", "normalize", "moments", "running_statistics", "state", "input"}


@pytest.mark.parametrize("model", ["LeNet", "AlexNet", "ResNet-101", "Inception-v3", "RNNTC", "RNNLM", "NMT", "Transformer", "MLP"])
@pytest.mark.parametrize("follow", ["passive", "elementwise", "weightless"])
def test_everybody_is_moved_by_exactly_one_choice(model: str, follow: str) -> None:
    graph = build(model, devices=4)
    together = moves(graph, follow)
    configs = together.everything(Random(model))
    assert set(configs) == {node.name for node in graph}
    for node in graph:
        configs[node.name].verify(node, 4)
    towards = followed(graph, follow)
    assert len(together) + len(towards) == len(list(graph))
    for node in together.leaders:  # each of a group is moved with it, and nobody else
        assert node.number not in towards
    moved = [name for _ in range(200) for name in list(together.draw(Random(_)))[1:]]
    assert not set(moved) & {node.name for node in together.leaders}


def test_nobody_follows_if_all_choose() -> None:
    graph = build("RNNLM", devices=4)
    space = SearchSpace(graph, 4, EVEN)
    together = CoupledMoves(graph, space)
    assert together.leaders == list(graph)
    one, two, names = Random(7), Random(7), [node.name for node in graph]
    for _ in range(50):
        name = names[two.randrange(len(names))]
        assert together.draw(one) == {name: space[name].draw(two)}


def test_followers_are_where_what_they_read_is() -> None:
    """Batch normalisation, activation and sum after a convolution: each piece on the processor that wrote what it reads."""
    graph = build("ResNet-101", devices=4)
    nodes, towards = {node.name: node for node in graph}, followed(graph, "elementwise")
    configs = moves(graph, "elementwise").everything(Random(3))
    assert elementwise(nodes["relu"]) and elementwise(nodes["bn1"]) and not elementwise(nodes["conv1"])
    seen = 0
    for node in graph:
        if node.number not in towards or not elementwise(node) or towards[node.number] != node.inputs[0].node:
            continue
        leader = graph.nodes[towards[node.number]]
        if any(d > 1 for d, dim in zip(configs[leader.name].degrees, leader.dims) if dim.soap.value.startswith("r")):
            continue
        where = {written: p for rect, p in configs[leader.name].pieces(leader) for written in leader.writes(rect)[:1]}
        for rect, processor in configs[node.name].pieces(node):
            assert where[node.reads(rect).inputs[0]] == processor
            seen += 1
    assert seen > 400


def test_pieces_follow_through_other_names() -> None:
    """A convolution's channels are called k, the activation's a1: places are matched by position and size."""
    graph = build("AlexNet", devices=4)
    together = moves(graph, "elementwise")
    conv = next(n for n in together.leaders if n.operator.kind == "conv2d")
    relu = next(n for n in graph if n.operator.kind == "relu" and n.inputs[0].node == conv.number)
    for seed in range(300):
        changes = together.draw(Random(seed))
        if conv.name in changes and changes[conv.name].degrees[1] == 2:
            config = changes[conv.name]
            assert changes[relu.name] == OpConfig(config.degrees[: len(relu.dims)], config.processors)
            return
    raise AssertionError("no move of the first convolution cuts its channels in two")


def test_a_walk_with_followers_is_the_twins() -> None:
    """The core and the reference take the same decisions, and the best plan's seconds are those of its own simulation."""
    graph, machine = build("LeNet", devices=4), load_machine("k80", 4)
    options = replace(EVEN, follow="elementwise")
    found = []
    for evaluator in (make_evaluator(graph, machine), None):
        if evaluator is None:
            evaluator = PythonEvaluator(graph, machine, make_evaluator(graph, machine).costs, DEFAULT_RULE, None)
        start = random_start(graph, machine, SearchSpace(graph, 4, options), Random(5))
        found.append(mcmc(evaluator, SearchOptions(Budget(proposals=60), 1, options, starts=(start,)), patient=False))
    core, twin = found
    assert (core.seconds, core.strategy) == (twin.seconds, twin.strategy)
    assert (core.accepted, core.proposals) == (twin.accepted, twin.proposals)
    assert core.accepted > 5
    assert make_evaluator(graph, machine).set(core.strategy) == core.seconds


@pytest.mark.parametrize("model", ["LeNet", "RNNTC"])
def test_pieces_and_strategy_follow_what_is_accepted(model: str) -> None:
    graph, machine = build(model, devices=4), load_machine("k80", 4)
    evaluator, together, random = make_evaluator(graph, machine), moves(graph, "elementwise"), Random(2)
    evaluator.set(random_start(graph, machine, SearchSpace(graph, 4, EVEN), random))
    expected = dict(evaluator.strategy.configs)
    for _ in range(60):
        changes = together.draw(random)
        evaluator.propose(changes)
        if random.random() < 0.5:
            evaluator.accept()
            expected |= changes
        if random.random() < 0.3:
            assert evaluator.strategy.configs == expected
        assert evaluator.pieces == sum(len(c.processors) for c in expected.values())
    assert evaluator.strategy.configs == expected
    seconds = evaluator.seconds
    assert make_evaluator(graph, machine).set(evaluator.strategy) == seconds
