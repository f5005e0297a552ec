"""Tokens that go to a node once: how many bytes that is, and what it does to steps and prices."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import combinations, product

import pytest

from taskflow.graph import OperatorGraph
from taskflow.machine import Cluster, exchange, load_machine
from taskflow.mapper import HybridParallel, map_graph, parse_plan
from taskflow.models.deepseek import DeepSeekConfig, deepseek
from taskflow.models.huggingface import from_config
from taskflow.models.moe import MoEConfig, moe
from taskflow.models.places import with_places
from taskflow.optimizer import make_evaluator
from taskflow.optimizer.cost import TokenRoute, crossing_bytes, token_routes
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
    sent = crossing_bytes(10**9, TokenRoute(choices), cluster, range(8 * nodes))
    assert sent == pytest.approx(10**9 * once / copies, rel=1e-6)
    assert crossing_bytes(10**9, TokenRoute(choices), cluster, range(8)) == 10**9  # within a node


@pytest.mark.parametrize(
    ("nodes", "groups", "chosen", "choices"),
    [(4, 4, 2, 3), (8, 4, 2, 3), (2, 4, 2, 3), (2, 8, 3, 4), (4, 8, 4, 2), (4, 4, 4, 3), (3, 4, 2, 3)],
)
def test_tokens_of_chosen_groups_go_to_fewer_nodes(nodes: int, groups: int, chosen: int, choices: int) -> None:
    """All ways are counted; where nodes do not divide the groups, as if there were none."""
    parts = nodes * groups  # of the experts: a node has ``groups`` of them in a row, a group ``nodes``
    counted, ways = 0, 0
    for some in combinations(range(groups), chosen):
        inside = [part for part in range(parts) if part // nodes in some or (nodes, groups) == (3, 4)]
        for going in product(inside, repeat=choices):
            counted, ways = counted + len({part // groups for part in going}), ways + 1
    assert TokenRoute(choices, groups, chosen).nodes(nodes) == pytest.approx(counted / ways)


DEEPSEEK = {
    "model_type": "deepseek_v3", "first_k_dense_replace": 1, "hidden_size": 64, "intermediate_size": 128, "kv_lora_rank": 16,
    "moe_intermediate_size": 32, "n_group": 4, "topk_group": 2, "n_routed_experts": 16, "num_experts_per_tok": 4,
    "num_attention_heads": 4, "num_key_value_heads": 4, "num_hidden_layers": 2, "q_lora_rank": 24, "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8, "v_head_dim": 16, "vocab_size": 512,
}  # fmt: skip


@pytest.mark.parametrize(("changes", "expected"), [({}, TokenRoute(4, 4, 2)), ({"n_group": 1, "topk_group": 1}, TokenRoute(4))])
def test_groups_of_experts_are_read_from_imported_networks(changes: dict[str, int], expected: TokenRoute) -> None:
    pytest.importorskip("transformers")
    graph = with_places(from_config({**DEEPSEEK, **changes}, batch=2, steps=32), 1.0)
    assert set(token_routes(graph, machine("megatron-deepep")).values()) == {expected}


def test_groups_of_experts_are_read_from_built_ones() -> None:
    graph = with_places(deepseek(DeepSeekConfig.small()), 1.0)
    assert set(token_routes(graph, machine("megatron-deepep")).values()) == {TokenRoute(2, 2, 1)}


def test_messages_of_tokens_are_those_to_the_experts_and_back() -> None:
    graph, once = network(), machine("megatron-deepep")
    routes = token_routes(graph, once)
    assert routes and set(routes.values()) == {TokenRoute(2)} and not token_routes(graph, machine("megatron"))
    strategy = map_graph(HybridParallel("d16 e16"), graph, once)
    costs = make_evaluator(graph, once, rule=RULE).costs
    tasks = [task for task in folded_step(graph, strategy, once, costs, RULE, None).lowered if isinstance(task.work, AllToAll)]
    assert len(tasks) == 4 and {task.topic.name for task in tasks} <= routes.keys()
    for task in tasks:
        less = crossing_bytes(task.nbytes, TokenRoute(2), once, task.work.group)
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
