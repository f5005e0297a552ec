"""Tokens that go to a node once: how many bytes that is, and what it does to steps and prices."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product

import pytest

from taskflow.graph import OperatorGraph
from taskflow.machine import Cluster, exchange, load_machine
from taskflow.mapper import HybridParallel, map_graph, parse_plan
from taskflow.models.moe import MoEConfig, moe
from taskflow.optimizer import make_evaluator
from taskflow.optimizer.cost import crossing_bytes, token_choices
from taskflow.optimizer.evaluate.evaluator import PythonEvaluator
from taskflow.optimizer.evaluate.folded import folded_step
from taskflow.optimizer.grid import PlanGrid
from taskflow.programs import load_program
from taskflow.rules import Adam
from taskflow.tasks import AllToAll

RULE = Adam()


@cache
def network() -> OperatorGraph:
    return moe(replace(
        MoEConfig.small(), batch=32, steps=2048, vocabulary=64, hidden=4096, inner=512, head_size=64, experts=32, factor=2.0
    ))


@cache
def machine(program: str) -> Cluster:
    return load_machine("a100", 16).driven_by(load_program(program))


@pytest.mark.parametrize(("nodes", "choices"), [(2, 1), (2, 2), (4, 3), (8, 4)])
def test_a_token_crosses_once_for_each_node_that_it_goes_to(nodes: int, choices: int) -> None:
    cluster = load_machine("h100", 8 * nodes)
    going = [set(nodes_of) for nodes_of in product(range(nodes), repeat=choices)]
    copies = sum(sum(node > 0 for node in nodes_of) for nodes_of in product(range(nodes), repeat=choices))
    once = sum(len(there - {0}) for there in going)
    sent = crossing_bytes(10**9, choices, cluster, range(8 * nodes))
    assert sent == pytest.approx(10**9 * once / copies, rel=1e-6)
    assert crossing_bytes(10**9, choices, cluster, range(8)) == 10**9  # within a node


def test_messages_of_tokens_are_those_to_the_experts_and_back() -> None:
    graph, once = network(), machine("megatron-deepep")
    choices = token_choices(graph, once)
    assert choices and set(choices.values()) == {2} and not token_choices(graph, machine("megatron"))
    strategy = map_graph(HybridParallel("d16 e16"), graph, once)
    costs = make_evaluator(graph, once, rule=RULE).costs
    tasks = [task for task in folded_step(graph, strategy, once, costs, RULE, None).lowered if isinstance(task.work, AllToAll)]
    assert len(tasks) == 4 and {task.topic.name for task in tasks} <= choices.keys()
    for task in tasks:
        less = crossing_bytes(task.nbytes, 2, once, task.work.group)
        assert less == pytest.approx(0.75 * task.nbytes)
        assert costs.task(task) == exchange(once, task.work.group).seconds(less, 0)


@pytest.mark.parametrize(("plan", "faster"), [("d16 e16 mb2", True), ("d16 e8 mb2", False), ("p2 d8 e8 mb2", False)])
def test_steps_and_prices_are_shorter_by_as_much_where_experts_are_on_several_nodes(plan: str, faster: bool) -> None:
    graph = network()
    steps, prices = [], []
    for program in ("megatron", "megatron-deepep"):
        cluster = machine(program)
        strategy = map_graph(HybridParallel(plan), graph, cluster)
        costs = make_evaluator(graph, cluster, rule=RULE).costs
        evaluator = PythonEvaluator(graph, cluster, costs, RULE, None)
        steps.append(evaluator.set(strategy))
        assert folded_step(graph, strategy, cluster, costs, RULE, None).makespan == pytest.approx(steps[-1], rel=1e-12)
        grid, of = PlanGrid(graph, cluster, RULE), parse_plan(plan)
        prices.append(grid.prices(of, 32 // of.samples_a_pass))
    if faster:
        assert steps[1] < 0.96 * steps[0] and prices[1] < 0.96 * prices[0]
        assert steps[0] - steps[1] == pytest.approx(prices[0] - prices[1], rel=0.2)
    else:
        assert steps[1] == steps[0] and prices[1] == prices[0]


def test_the_preset_is_megatron_but_for_its_tokens() -> None:
    plain, once = load_program("megatron"), load_program("megatron-deepep")
    assert replace(once, name=plain.name, about=plain.about, source=plain.source, once_a_node=False) == plain
