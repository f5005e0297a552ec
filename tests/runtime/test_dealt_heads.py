"""Groups that share a sequence deal attention's heads among them (``ulysses``): the numbers are those of one processor, and what is
sent is what DeepSpeed-Ulysses sends (Jacobs et al., arXiv 2309.14509, section 3): four all-to-alls instead of two all-gathers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from beside_one_processor import same, trained
from fast_and_slow import fast_among
from language_model import undivided
from rings import STEPS, llama, tokens

from taskflow.graph import OperatorGraph
from taskflow.machine import host, load_machine
from taskflow.mapper import HybridParallel, OpConfig, choose, load, map_graph, parse_plan, save
from taskflow.models import build
from taskflow.models.llama import LlamaConfig
from taskflow.models.llama import llama as llama_of
from taskflow.optimizer import make_evaluator
from taskflow.optimizer.evaluate.evaluator import PythonEvaluator
from taskflow.optimizer.evaluate.folded import folded_step
from taskflow.optimizer.grid import PlanGrid, neighbours
from taskflow.optimizer.grid.plans import PlanAxes
from taskflow.rules import SGD, Adam
from taskflow.tasks.lower import lower
from taskflow.tasks.task import Compute, Kind, TaskGraph
from taskflow.tasks.topic import Purpose, Topic

PLANS = (
    ("c2 ulysses", 2), ("c4 ulysses mb2 recompute=full", 4), ("t2 c2 ulysses mb2", 4), ("t2 nosp c2 ulysses mb1 zero3", 4),
    ("c2 ulysses p2 d2 mb1", 8), ("c2 ulysses d2 zero3 mb1 recompute=light", 4), ("c3 ulysses", 3),
    ("t2 c2 ulysses mb2 split=2", 4), ("c2 ulysses p2 mb2 schedule=zb-h1 recompute=full", 4),
)


def four_heads(dtype: str = "float64") -> OperatorGraph:
    """Llama, four heads of queries and two of keys."""
    return llama(None, dtype, hidden=16, heads=4, key_heads=2)


@pytest.mark.parametrize(("plan", "devices"), fast_among(PLANS, [PLANS[i] for i in (1, 2, 4, 5, 6)]))
def test_numbers_are_those_of_one_processor(plan: str, devices: int) -> None:
    graph = four_heads()
    batches = [tokens(graph, step) for step in range(STEPS)]
    strategy = map_graph(HybridParallel(plan), graph, host(devices))
    found, wanted = (trained(four_heads(), s, batches, SGD(0.1, momentum=0.9), 1.0) for s in (strategy, undivided(graph)))
    same(found, wanted, plan, "float64")


def test_a_member_of_a_tensor_group_deals_its_own_heads() -> None:
    """Of eight heads member 0 of a group of two has four, and of these each of two groups has two."""
    graph = llama(None, hidden=32, heads=8, key_heads=8)
    strategy = map_graph(HybridParallel("t2 c2 ulysses"), graph, host(4))
    attention = next(node for node in graph if node.operator.kind == "flash_attention")
    assert strategy[attention.name] == OpConfig((1, 1, 4), (0, 2, 1, 3))  # device = 2 group + member
    projected = strategy[graph.nodes[attention.inputs[0].node].name]
    assert projected == OpConfig((1, 2, 2, 1), (0, 1, 2, 3))


def attention_alone(ranks: int, plan: str) -> tuple[TaskGraph, OperatorGraph]:
    graph = llama(None, batch=2, hidden=ranks * 4, heads=ranks, key_heads=ranks, layers=1)
    return lower(graph, map_graph(HybridParallel(plan), graph, host(ranks)), SGD(0.1)), graph


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_each_sends_all_but_its_own_part_of_queries_keys_values_and_results(ranks: int) -> None:
    """Of four tensors of N L h elements each device sends all but one in c of its part; backward the same. Keys and values that
    causal attention gathers go to those behind: c (c - 1) / 2 parts of each of the two."""
    tensor = 8 * 2 * 12 * ranks * 4  # float64 (N, L, h)
    for plan, times in (("ulysses", 4), ("", ranks)):
        tasks, graph = attention_alone(ranks, f"c{ranks} {plan}")
        attention = next(node for node in graph if node.operator.kind == "flash_attention")
        names = {graph.nodes[x.node].name for x in attention.inputs} | ({attention.name} if plan else set())
        for purpose in (Purpose.OUTPUT, Purpose.GRADIENT):
            sent = sum(t.nbytes for t in tasks if t.kind.travels and t.topic in {Topic(purpose, name) for name in names})
            assert sent == times * tensor * (ranks - 1) // ranks, (plan, purpose)


def test_all_devices_compute_as_much_of_causal_attention() -> None:
    def flops(plan: str) -> list[int]:
        tasks, _ = attention_alone(4, plan)
        found = [0] * 4
        for task in tasks:
            if isinstance(task.work, Compute) and task.kind is Kind.FORWARD and task.work.node.operator.kind == "flash_attention":
                found[task.processor] += task.flops
        return found

    assert len(set(flops("c4 ulysses"))) == 1 and len(set(flops("c4"))) == 4
    assert sum(flops("c4 ulysses")) == sum(flops("c4"))


# ---- how it is said --------------------------------------------------------------------------------------------------
def test_the_notation_says_it_and_files_keep_it(tmp_path: Path) -> None:
    graph = four_heads()
    strategy = map_graph(HybridParallel("c2 ulysses mb2"), graph, host(2))
    save(strategy, graph, "host", str(tmp_path / "heads.json"))
    loaded = load(str(tmp_path / "heads.json"), graph, 2)
    assert loaded.plan == strategy.plan == parse_plan("t1 c2 ulysses p1 d1 mb2") and loaded.configs == strategy.configs


@pytest.mark.parametrize(("plan", "name", "message"), [
    ("ulysses", "Llama", "ulysses deals the heads of attention to the groups of a context, which needs c2 or more"),
    ("c2 ulysses ring", "Llama", "ulysses gives each group all keys of its heads, so that none go around a ring; leave ring out"),
    ("c4 ulysses t2", "Llama", r"ulysses deals the 4 heads of layers.0.self_attn.attention to 8 devices; take a smaller c"),
    ("c2 ulysses", "GPT-2", "ulysses deals the heads of flash_attention, which GPT-2 does not have"),
])
def test_what_does_not_fit_is_a_sentence(plan: str, name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        map_graph(HybridParallel(plan), build(name, 8, preset="small"), host(8))


# ---- predicted -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("plan", [
    "c2 ulysses d8 mb1 zero1", pytest.param("t2 c2 ulysses d2 p2 mb1", marks=pytest.mark.slow),
    "c4 ulysses d4 mb2 zero3 recompute=full",
])
def test_one_replica_stands_for_all(plan: str) -> None:
    graph, machine = llama(None, batch=32, steps=16, hidden=32, heads=8, key_heads=4), load_machine("h100", 16)
    evaluator = PythonEvaluator(graph, machine, make_evaluator(graph, machine, rule=SGD(0.1)).costs, SGD(0.1), None)
    strategy = map_graph(HybridParallel(plan), graph, machine)
    step = folded_step(graph, strategy, machine, evaluator.costs, SGD(0.1), None)
    assert step.makespan == pytest.approx(evaluator.set(strategy), rel=1e-12) and step.replicas.count > 1
    assert step.tasks == evaluator.tasks and step.transfer_bytes == evaluator.lowered().transfer_bytes


def long_network(**more: Any) -> OperatorGraph:
    """Layers of some milliseconds."""
    sizes: dict[str, Any] = {"steps": 16384, "hidden": 2048, "inner": 5632, "vocabulary": 8192, "heads": 16, "key_heads": 4, **more}
    return llama_of(LlamaConfig(batch=16, layers=2, **sizes), "bfloat16")


@pytest.mark.parametrize("devices", [8, 16])
def test_prices_are_near_simulated_steps(devices: int) -> None:
    """On one node and between two, of groups whose size is that of the tensor groups, too."""
    graph, machine = long_network(), load_machine("h100", devices)
    grid, evaluator = PlanGrid(graph, machine, Adam()), make_evaluator(graph, machine, rule=Adam())
    for text in ("c8 ulysses mb1 zero3", "c4 ulysses mb1 zero1", "t2 c2 ulysses mb1 zero1", "t4 c4 ulysses mb1", "t4 c4 mb1"):
        if "t4" in text and devices == 8:
            continue
        strategy = choose(text, graph, machine)[0]
        plan = strategy.plan
        assert plan is not None and plan.micro_batch is not None
        price = grid.prices(plan, 16 // plan.samples_a_pass)
        assert price == pytest.approx(evaluator.set(strategy), rel=0.05), text


def test_searches_change_it_and_share_long_sequences_between_nodes() -> None:
    graph, machine = long_network(), load_machine("h100", 64)
    sums = PlanGrid(graph, machine, Adam()).sums
    plan = parse_plan("c4 d16 mb1 zero1")
    assert any(one.ulysses and one.context == 4 for one in neighbours(plan, sums, 16, 8))
    few = PlanGrid(long_network(heads=2, key_heads=1), machine, Adam()).sums  # which four groups cannot share
    assert not any(one.ulysses and one.context == 4 for one in neighbours(plan, few, 16, 8))
    near = list(neighbours(parse_plan("c2 ulysses d32 mb1 zero1"), sums, 64, 8))
    assert any(one.context == 1 and not one.ulysses for one in near) and all(one.context > 1 or not one.ulysses for one in near)
    axes = PlanAxes(graph, machine)
    assert (axes.contexts(1), axes.contexts(4), axes.contexts(8)) == ([1, 2, 4, 8], [1, 2, 4], [1, 2, 4])
    assert PlanAxes(long_network(steps=2048), machine).contexts(8) == [1]
    assert any((plan.tensor, plan.context) == (8, 4) for plan, _ in axes.plans())
