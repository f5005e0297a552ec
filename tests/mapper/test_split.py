"""Micro-batches whose parts take turns: notation, files, order, time, and the plan without them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from taskflow.export import exported, nearest_plan
from taskflow.graph import OperatorGraph
from taskflow.machine import Cluster, host, load_machine
from taskflow.mapper import (
    HybridParallel,
    HybridPlan,
    Pipeline,
    Strategy,
    joined_parts,
    load,
    map_graph,
    parse_plan,
    save,
)
from taskflow.models import build
from taskflow.models.gpt import GPTConfig, gpt
from taskflow.models.moe import MoEConfig, moe
from taskflow.optimizer import make_evaluator
from taskflow.optimizer.budget import Budget
from taskflow.optimizer.explain import split_gain
from taskflow.optimizer.grid import PlanGrid, neighbours
from taskflow.optimizer.grid.plan_search import plan_search
from taskflow.optimizer.options import SearchOptions
from taskflow.rules import Adam
from taskflow.tasks import Kind
from taskflow.tasks.lower import lower

RULE = Adam()


def decoder(batch: int = 8) -> OperatorGraph:
    return gpt(replace(GPTConfig.small(), batch=batch, layers=2))


def experts() -> OperatorGraph:
    """Layers with experts whose words travel for a third of the time."""
    sizes = {"batch": 64, "steps": 4096, "hidden": 1024, "inner": 4096, "experts": 16, "vocabulary": 256, "layers": 2}
    return moe(replace(MoEConfig.small(), **sizes, head_size=128), "bfloat16")


def planned(graph: OperatorGraph, text: str, machine: Cluster | None = None) -> Strategy:
    plan = parse_plan(text)
    count = plan.tensor * plan.context * plan.pipeline * (plan.data or len(plan.shares))
    return map_graph(HybridParallel(plan), graph, machine or host(count))


def test_a_plan_says_it() -> None:
    assert parse_plan("t2 d2 mb4 split=2") == HybridPlan(tensor=2, data=2, micro_batch=4, split=2)
    assert parse_plan(str(parse_plan("t2 mb4 split=2"))) == parse_plan("t2 mb4 split=2")
    assert "split" not in str(parse_plan("t2 mb4 split=1"))


@pytest.mark.parametrize(("text", "message"), [
    ("t2 d2 mb1 split=2", r"split=2 divides what a replica takes of a micro-batch, which is 1 sample: 2 does not divide 1"),
    ("t2 d2 mb2 split=0", "split must be at least 1, got 0"),
    ("t2 d2 mb2 split=half", "split must be a number of parts of a micro-batch, got 'half'"),
    ("t2 d2 mb2 split=", "write for example split=2"),
    ("d2 shares=3,1 split=2", "2 does not divide 3"),
])
def test_what_does_not_divide_is_an_error(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        planned(decoder(), text)


def test_a_file_has_it(tmp_path: Path) -> None:
    graph = decoder()
    strategy = planned(graph, "t2 d2 mb2 split=2")
    save(strategy, graph, "host", tmp_path / "plan.json")
    found = load(tmp_path / "plan.json", graph, 4)
    assert found.pipeline == strategy.pipeline and found.pipeline is not None and found.pipeline.split == 2
    assert found.configs == strategy.configs and "parts that take turns" in str(found.pipeline)
    with pytest.raises(ValueError, match="split must be a positive integer"):
        Pipeline(2, {}, split=0)


@pytest.mark.parametrize("text", ["t2 d2 mb2", "t2 p2 d1 mb4", "t2 nosp d2 mb4", "d2 shares=6,2", "c2 d2 mb2 zero3 recompute=full"])
def test_joined_parts_are_the_plan_without_them(text: str) -> None:
    graph = decoder()
    without, split = planned(graph, text), planned(graph, f"{text} split=2")
    found = joined_parts(graph, split)
    for node in graph:
        assert list(found[node.name].pieces(node)) == list(without[node.name].pieces(node)), node.name
    assert (found.pipeline, found.plan, found.name) == (without.pipeline, without.plan, f"{split.name} (parts joined)")
    assert joined_parts(graph, without) is without


def test_parts_that_are_placed_otherwise_are_not_joined() -> None:
    graph = decoder()
    strategy = planned(graph, "t2 d2 mb2 split=2")
    name = next(node.name for node in graph if node.parameters)
    config = strategy[name]
    moved = replace(config, processors=(*config.processors[2:4], *config.processors[:2], *config.processors[4:]))
    with pytest.raises(ValueError, match="not cut and placed alike"):
        joined_parts(graph, replace(strategy, configs={**strategy.configs, name: moved}))


def test_an_export_names_it_and_leaves_it_out() -> None:
    graph = decoder()
    strategy = planned(graph, "t2 nosp d2 mb2 split=2 zero1")
    found = exported(graph, strategy, "megatron", "flags.sh")
    assert [one.cut for one in found.differences] == ["split=2"]
    assert found.files == exported(graph, planned(graph, "t2 nosp d2 mb2 zero1"), "megatron", "flags.sh").files
    assert found.nearest.pipeline is not None and found.nearest.pipeline.split == 1
    assert nearest_plan(graph, strategy, "megatron").pipeline == found.nearest.pipeline


def test_parts_take_turns_where_values_are_exchanged() -> None:
    """On each processor the same operators of both parts follow each other, up to the next exchange; what sums up the whole batch
    comes once."""
    graph = decoder()
    strategy = planned(graph, "t2 d1 mb8 split=2")
    pipeline = strategy.pipeline
    assert pipeline is not None and pipeline.micro_batches == 1
    turns: list[int] = []
    stretches: list[list[str]] = [[]]
    for task in lower(graph, strategy, RULE):
        if task.kind is not Kind.FORWARD or task.processor:
            continue
        number = int(task.name.split("[")[1].split("]")[0])
        name = task.name.split("[")[0]
        part = pipeline.part(graph.node(name), strategy[name], number)
        if part is not None and part != (turns[-1] if turns else None):
            turns.append(part)
            stretches.append([])
        stretches[-1].append(name)
    assert turns == [0, 1] * (len(turns) // 2) and len(turns) > 8  # two layers, each with four exchanges
    own = [names for names in stretches if names]
    assert all(a == b[: len(a)] for a, b in zip(own[::2], own[1::2]))


def test_an_exchange_is_hidden_behind_the_other_part() -> None:
    graph, machine = experts(), load_machine("a100", 16)
    evaluator = make_evaluator(graph, machine, rule=RULE)
    whole, split = (evaluator.set(planned(graph, f"d16 mb4 e16{more}", machine)) for more in ("", " split=2"))
    assert split < 0.9 * whole
    grid = PlanGrid(graph, machine, RULE)
    for parts, seconds in ((1, whole), (2, split)):
        plan = HybridPlan(data=16, micro_batch=4, experts=16, split=parts)
        assert grid.prices(plan, 1) == pytest.approx(seconds, rel=0.13)
        assert evaluator.set(map_graph(HybridParallel(plan), graph, machine)) == seconds


def test_an_explanation_says_what_it_gains() -> None:
    graph, machine = experts(), load_machine("a100", 16)
    evaluator = make_evaluator(graph, machine, rule=RULE)
    seconds, said = {}, {}
    for text in ("d16 mb4 e16", "d16 mb4 e16 split=2"):
        strategy = planned(graph, text, machine)
        seconds[text] = evaluator.set(strategy)
        found = split_gain(evaluator)
        assert evaluator.strategy is strategy and found is not None and found.now == ("split" in text)
        said[text] = found
    assert all((one.whole_seconds, one.split_seconds) == tuple(seconds.values()) for one in said.values())
    evaluator.set(planned(graph, "d16 mb4 zero1", machine))
    assert split_gain(evaluator) is None


def test_a_search_splits_the_best_plan_of_the_grid() -> None:
    graph, machine = experts(), load_machine("a100", 16)
    asked = HybridPlan(data=16, micro_batch=4, experts=16)
    grid = PlanGrid(graph, machine, RULE, lambda plan: plan == asked)
    evaluator = make_evaluator(graph, machine, rule=RULE)
    found = plan_search(evaluator, SearchOptions(Budget.parse("20p")), grid).result
    assert found is not None and found.seconds < 0.9 * found.starts["grid"]
    assert found.strategy.pipeline is not None and found.strategy.pipeline.split == 2


def test_plans_without_exchanges_are_not_split() -> None:
    assert HybridPlan(data=4, micro_batch=2).may_split and not HybridPlan(data=4, micro_batch=2, split=2).may_split
    assert HybridPlan(tensor=2, data=2, micro_batch=2, split=2).may_split
    assert not HybridPlan(tensor=2, data=2, micro_batch=1, split=2).may_split
    grid = PlanGrid(decoder(), load_machine("h100", 4), RULE)
    next_to = list(neighbours(HybridPlan(tensor=2, data=2, micro_batch=2), grid.sums, 8, 4))
    assert any(one.split == 2 for one in next_to)
    assert all(one.micro_batch and one.micro_batch % one.split == 0 for one in next_to)


def test_batch_statistics_take_the_parts_together() -> None:
    graph = build("resnet-101", batch=8, preset="small")
    split = planned(graph, "d2 mb4 split=2")
    assert split.pipeline is not None
    together = split.pipeline.all_parts(graph, split.configs)
    kinds = {graph.nodes[number].operator.kind for number in together}
    assert "conv2d" not in kinds
    assert lower(graph, split, RULE)
