"""Weights that are gathered block by block, as FSDP2 does with `fully_shard` of each block: the numbers are those of one processor,
a block's collective is one, it waits for the block two before it, and memory is as planned."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from beside_one_processor import STEPS, compare
from pipelines import GPT, tokens

import taskflow
from taskflow.graph import OperatorGraph
from taskflow.mapper import BLOCK, Strategy, Sync, blocks_of, choose, gather_units
from taskflow.models.gpt import gpt
from taskflow.optimizer.memory import memory_use
from taskflow.rules import SGD, Adam
from taskflow.runtime.executor import Executor
from taskflow.runtime.program import schedule
from taskflow.tasks import Placement, roofline, simulate
from taskflow.tasks.lower import lower
from taskflow.tasks.task import AllGather, Compute, Kind, ReduceScatter, TaskGraph

LAYERS = 4


def decoder(batch: int = 8) -> OperatorGraph:
    return gpt(replace(GPT, batch=batch, layers=LAYERS), "float64")


def planned(plan: str, devices: int = 4) -> Strategy:
    return choose(plan, decoder(), taskflow.host(devices))[0]


def lowered(plan: str) -> TaskGraph:
    return lower(decoder(), planned(plan), SGD(0.1))


def test_a_block_is_what_shares_a_number() -> None:
    graph = decoder()
    blocks = blocks_of(graph)
    assert set(blocks.values()) == {f"h.{i}" for i in range(LAYERS)}
    assert all(layer.startswith(f"{block}.") for layer, block in blocks.items())
    assert "wte" not in blocks  # the first and the last operator read it
    for plan in ("d4 zero3", "d4 zero2"):
        units = gather_units(graph, planned(plan))
        assert set(units) == set(blocks) and all(units[layer] == f"{block}.*" for layer, block in blocks.items())
    assert not gather_units(graph, planned("d4 zero3 prefetch=1")) and not gather_units(graph, planned("d4 zero1"))
    assert not gather_units(graph, planned("p2 d2 mb1 zero3 schedule=zb-h1"))  # gradients come in two passes


def test_a_block_whose_layers_are_synchronised_in_two_ways_is_two_units() -> None:
    graph, strategy = decoder(), planned("d4 zero3")
    other = "h.1.mlp.up" if "h.1.mlp.up" in strategy.syncs else next(n for n in strategy.syncs if n.startswith("h.1."))
    units = gather_units(graph, replace(strategy, syncs={**strategy.syncs, other: replace(strategy.sync(other), shard_group=2)}))
    assert {unit for layer, unit in units.items() if layer.startswith("h.1.")} == {"h.1.*", "h.1.*1"}


def test_a_block_is_gathered_at_once_and_waits_for_the_block_two_before() -> None:
    tasks = lowered("d4 zero3")
    before = [set(task.after) for task in tasks]
    for task in tasks:
        before[task.number].update(*(before[other] for other in task.after))
    gathers = [t.topic.name for t in tasks if isinstance(t.work, AllGather)]
    scatters = [t.topic.name for t in tasks if isinstance(t.work, ReduceScatter)]
    for i in range(LAYERS):
        assert (gathers.count(f"h.{i}.*"), scatters.count(f"h.{i}.*")) == (2, 1)  # forward and backward
    last = {}
    for t in tasks:
        if isinstance(t.work, Compute) and t.kind is Kind.FORWARD and t.processor == 0 and t.work.node.parameters:
            last[t.work.node.name.rsplit(".", 1)[0].split(".attn")[0].split(".mlp")[0]] = t.number
    forward = [t for t in tasks if isinstance(t.work, AllGather) and t.topic.name.startswith("h.")][:LAYERS]
    for i, gather in enumerate(forward):
        there = {n for n in range(LAYERS) if last[f"h.{n}"] in before[gather.number]}
        assert there == set(range(max(0, i - 1)))


@pytest.mark.parametrize("plan", ["d4 zero3", "d4 zero3 mb1 recompute=full", "p2 d2 mb1 hsdp2"])
def test_the_planned_peak_is_what_is_allocated(plan: str) -> None:
    graph, strategy, machine = decoder(), planned(plan), taskflow.host(4)
    tasks = lower(graph, strategy, Adam(), clip_norm=1.0)
    order = simulate(tasks, machine, roofline(machine)).begun(tasks)
    use = memory_use(tasks, order)[0]
    memory = schedule(tasks, order, Placement(4, 4), 0).memory
    assert memory.peak_bytes == use.buffers
    run = Executor(graph, strategy, Adam(), machine=machine, clip_norm=1.0)
    assert sum(array.nbytes for name, array in run.kept.arrays.items() if name.endswith("@ 0")) == use.weights + use.state


def test_two_blocks_are_in_memory_where_two_layers_would_be() -> None:
    machine, peaks = taskflow.host(4), {}
    for ahead in (0, 1, BLOCK):
        tasks = lower(decoder(), planned(f"d4 zero3 mb1 prefetch={ahead}"), SGD(0.1))
        peaks[ahead] = memory_use(tasks, simulate(tasks, machine, roofline(machine)).begun(tasks))[0].buffers
    assert peaks[0] <= peaks[1] < peaks[BLOCK]


def test_losses_and_weights_are_those_of_one_processor() -> None:
    texts = ["d2 zero3", "d2 mb1 zero3 recompute=full", "p2 d2 mb1 zero3", "t2 d2 mb1 zero3", "p2 d2 v2 mb1 hsdp2"]

    def graph() -> OperatorGraph:
        return gpt(replace(GPT, layers=LAYERS), "float64")

    def plan(graph: OperatorGraph, random: Random, number: int) -> Strategy:
        text = texts[number % len(texts)]
        strategy = choose(text, graph, taskflow.host(4 if text[0] in "pt" else 2))[0]
        assert gather_units(graph, strategy)
        return strategy

    rule = SGD(0.1, momentum=0.9)
    assert compare(graph, [tokens(s) for s in range(STEPS)], plan, "blocks", len(texts), "float64", rule, 1.0) == len(texts)


def test_nothing_but_weights_by_shares_has_a_prefetch() -> None:
    two = planned("d4 zero2").sync("wte")
    assert two.prefetch == BLOCK and two.in_blocks and replace(two, prefetch=3) == two
    with pytest.raises(ValueError, match="Sync: prefetch must be an integer, 0 or more, or 'block', got -1"):
        replace(two, zero=3, prefetch=-1)
    assert isinstance(two, Sync)
