"""What of a kernel no task uses is held, and updated, all the same: the estimate of memory counts it as the plan does."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from language_model import random_strategy
from padded_kernels import network

import taskflow
from taskflow.graph import OperatorGraph
from taskflow.machine import host
from taskflow.mapper import DataParallel, OpConfig, Strategy, map_graph
from taskflow.optimizer.evaluate import make_evaluator
from taskflow.optimizer.memory.peak import peak_bytes
from taskflow.optimizer.memory_estimate import MemoryEstimate
from taskflow.regions import Rect
from taskflow.rules import SGD, Adam
from taskflow.tasks.lower.parameters import left_over


def centre(size: int = 1) -> OperatorGraph:
    """A convolution of 5 x 5 over a tiny image: 24 of 25 weights of a kernel meet nothing but padding where it is one pixel."""
    graph = OperatorGraph()
    x = taskflow.input(graph, (8, 16, size, size), "float32", name="x")
    labels = taskflow.input(graph, (8,), "int64", name="labels")
    y = taskflow.flatten(taskflow.conv2d(x, 32, 5, padding=2, name="conv"), 1)
    graph.minimize(taskflow.cross_entropy(taskflow.linear(y, 4, name="fc"), labels, name="loss"))
    return graph


def counted(estimate: MemoryEstimate, strategy: Strategy) -> list[int]:
    """Bytes of weights by processor."""
    rects, idle = estimate._weights(strategy)
    total: Counter[int] = Counter({0: idle})
    for (_, processor), sizes in rects.items():
        total[processor] += sum(sizes.values())
    return [total[p] for p in range(strategy.processors)]


@pytest.mark.parametrize("cut", ["n", "c"])
def test_bytes_of_unused_elements_are_the_plans(cut: str) -> None:
    graph, machine = centre(), host(4)
    evaluator = make_evaluator(graph, machine, rule=SGD(0.1))
    plan = map_graph(DataParallel(), graph, machine)
    if cut == "c":
        degrees = tuple(4 if dim.name == "c" else 1 for dim in graph.node("conv").dims)
        plan = Strategy(4, {**plan.configs, "conv": OpConfig(degrees, (2, 3, 1, 0))}, plan.syncs)
    evaluator.set(plan)
    planned = [use.weights for use in peak_bytes(graph, plan, SGD(0.1), machine=machine)]
    assert counted(MemoryEstimate(evaluator), plan) == planned
    assert max(planned) > 24 * 16 * 32 * 4


def test_what_is_not_used_at_all_is_processor_0s_alone() -> None:
    graph, machine = network(), host(2)
    evaluator = make_evaluator(graph, machine, rule=Adam())
    plan = map_graph(DataParallel(), graph, machine)
    evaluator.set(plan)
    assert counted(MemoryEstimate(evaluator), plan) == [use.weights for use in peak_bytes(graph, plan, Adam(), machine=machine)]


@pytest.mark.parametrize("seed", range(30))
def test_the_estimate_is_above_the_plan(seed: int) -> None:
    random = Random(seed)
    graph = random.choice((network, lambda: centre(1), lambda: centre(2)))()
    processors, rule = random.randint(1, 5), random.choice((SGD(0.1), SGD(0.1, momentum=0.9), Adam()))
    evaluator = make_evaluator(graph, host(processors), rule=rule)
    strategy = random_strategy(graph, processors, random)
    evaluator.set(strategy)
    estimate = MemoryEstimate(evaluator)
    weights, most = counted(estimate, strategy), estimate.at_most(strategy)
    for use in peak_bytes(graph, strategy, rule, machine=evaluator.machine):
        # A processor's own pieces may read Rects that overlap, which are counted once each; the plan begins arrays at lines.
        assert use.weights <= weights[use.processor] and use.nbytes <= most[use.processor] + 64 * len(graph)


def test_left_over() -> None:
    whole = Rect((0, 0), (4, 3))
    assert left_over(whole, {whole}) == (0, whole)
    assert left_over(whole, {Rect((1, 0), (2, 3)), Rect((1, 1), (4, 2))}) == (7, Rect((1, 0), (2, 1)))
    assert left_over(whole, set()) == (12, None)
    assert left_over(Rect((), ()), {Rect((), ())}) == (0, Rect((), ()))
