"""Plans with products in 8 bits: cheaper where products are long, dearer by casts where they are short, exported and not run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from taskflow.export import exported
from taskflow.graph import OperatorGraph
from taskflow.machine import Cluster, load_machine
from taskflow.mapper import NARROW_PRODUCTS, HybridParallel, Strategy, map_graph
from taskflow.mapper.strategy_file import load, save
from taskflow.models.llama import LlamaConfig, llama
from taskflow.optimizer import make_evaluator, search
from taskflow.optimizer.cost import Roofline
from taskflow.optimizer.cost.adapter import multiplying_in
from taskflow.optimizer.cost.library import spent
from taskflow.regions import Rect
from taskflow.rules import Adam
from taskflow.runtime import Executor

FP8 = NARROW_PRODUCTS["fp8"]


def network(hidden: int, batch: int = 16, steps: int = 2048) -> OperatorGraph:
    return llama(replace(
        LlamaConfig.small(), batch=batch, steps=steps, vocabulary=1024, hidden=hidden, inner=3 * hidden, heads=8, key_heads=4
    ), "bfloat16")


def seconds(graph: OperatorGraph, plan: str, machine: Cluster) -> float:
    return make_evaluator(graph, machine, rule=Adam()).set(map_graph(HybridParallel(plan), graph, machine))


@pytest.mark.parametrize("machine", ["h100", "mi300x"])  # whose products are measured, and by the data sheet alone
def test_long_products_take_less(machine: str) -> None:
    cluster = load_machine(f"{machine}:bf16", 4)
    for plan in ("t2 d2 mb2", "p2 d2 mb2"):
        wide = network(8192)
        assert 0.5 < seconds(wide, f"{plan} products=fp8", cluster) / seconds(wide, plan, cluster) < 0.9


def test_what_is_not_a_linear_layer_costs_the_same() -> None:
    graph, machine = network(4096), load_machine("h100:bf16", 4)
    costs = make_evaluator(graph, machine, rule=Adam()).costs
    tasks = make_evaluator(graph, machine, rule=Adam())
    plain, eight = (map_graph(HybridParallel(plan), graph, machine) for plan in ("t2 d2 mb4", "t2 d2 mb4 products=fp8"))
    tasks.set(plain)
    lowered = tasks.current()[0]
    before, after = costs.pace(lowered, plain), costs._of(eight).task
    changed = {task.topic.name for task in lowered if costs.task(task) != after(task)}
    assert changed and all(name.endswith("_proj") for name in changed)  # and not lm_head, nor attention
    assert before(lowered.tasks[0]) >= 0


def test_casts_of_both_factors_are_counted() -> None:
    graph, device = network(4096), load_machine("h100", 1).processors[0].device
    node = graph.node("layers.0.mlp.up_proj")
    asked = node.operator, node.specs, node.space, False, (), ()
    eight, sixteen = (spent(*asked, of, "bfloat16", 1.0) for of in (multiplying_in(device, FP8), device))
    assert eight is not None and sixteen is not None
    assert sixteen.device > eight.device
    weights = node.parameters[0].spec.shape[0] * node.parameters[0].spec.shape[1]
    assert sixteen.device / 2 + 3 * weights / device.memory_rate < eight.device
    short = Rect((0, 0, 0, 0), (1, 64, 64, 64))
    eight, sixteen = (spent(*asked[:2], short, *asked[3:], of, "bfloat16", 1.0) for of in (multiplying_in(device, FP8), device))
    assert eight is not None and sixteen is not None and eight.device > sixteen.device


def test_plans_in_eight_bits_are_kept_in_files_exported_and_not_run(tmp_path) -> None:  # type: ignore[no-untyped-def]
    graph, machine = network(64, 8, 32), load_machine("h100", 4)
    strategy: Strategy = map_graph(HybridParallel("t2 d2 mb2 zero1 products=fp8"), graph, machine)
    save(strategy, graph, "h100", tmp_path / "plan.json")
    again = load(tmp_path / "plan.json", graph, 4)
    assert again.plan is not None and again.plan.products == "fp8"
    assert '"quantize.linear.float8"' in exported(graph, again, "torchtitan", "plan").files["plan"]
    assert "--fp8-format hybrid" in exported(graph, again, "megatron", "plan").files["plan"]
    with pytest.raises(ValueError, match="has no products=fp8"):
        exported(graph, again, "jax", "plan.py")
    with pytest.raises(ValueError, match="not run here"):
        Executor(graph, again, Adam())


def test_torchtitans_sections_come_once() -> None:
    tomllib = pytest.importorskip("tomllib")  # Python 3.11
    for of in (network(64, 8, 32), llama(LlamaConfig(batch=8), "bfloat16")):  # which torchtitan has by name
        strategy = map_graph(HybridParallel("d2 mb2 zero3 products=fp8"), of, load_machine("h100", 2))
        said = tomllib.loads(exported(of, strategy, "torchtitan", "plan.toml").files["plan.toml"])
        assert said["model"]["converters"] == ["quantize.linear.float8"]
        assert said["quantize"]["linear"]["float8"]["filter_fqns"] == ["output"]


def test_devices_without_rates_of_eight_bits_are_named() -> None:
    with pytest.raises(ValueError, match="a100 has none; leave it out"):
        seconds(network(64), "d4 products=fp8", load_machine("a100", 4))
    with pytest.raises(ValueError, match="products must be one of fp8, got 'fp4'"):
        HybridParallel("d4 products=fp4")


def test_searches_find_plans_in_eight_bits_where_asked() -> None:
    graph, machine = network(4096), load_machine("h100:bf16", 4)
    plain = search(graph, machine, budget="1p", rule=Adam())
    found = search(graph, machine, budget="1p", rule=Adam(), products="fp8")
    assert found.strategy.plan is not None and found.strategy.plan.products == "fp8" and "products=fp8" in found.strategy.name
    assert found.seconds == make_evaluator(graph, machine, rule=Adam()).set(found.strategy) < plain.seconds
    assert found.lower_bound <= found.seconds and found.lower_bound < plain.lower_bound
    barred = {phase.name: phase.barred for phase in found.phases}
    assert barred["operators"] == "only plans in notation have products=fp8"
    assert plain.strategy.plan is None or not plain.strategy.plan.products


def test_searches_in_eight_bits_name_what_cannot_be() -> None:
    graph, h100 = network(4096), load_machine("h100", 4)
    with pytest.raises(ValueError, match="a100 has none; leave it out"):
        search(graph, load_machine("a100", 4), budget="1p", products="fp8")
    with pytest.raises(ValueError, match="needs a described machine with analytic costs"):
        search(graph, h100, budget="1p", products="fp8", use=make_evaluator(graph, h100, costs=Roofline(h100)))
    with pytest.raises(ValueError, match="only plans in notation have products=fp8, and they are not searched: "):
        search(graph, h100, budget="1p", products="fp8", algorithm="mcmc")
    with pytest.raises(ValueError, match="a pin changes it, and only plans in notation"):
        search(graph, h100, budget="1p", products="fp8", constraints={"lm_head": {"pin": "whole @ 0"}})
