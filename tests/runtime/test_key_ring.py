"""Keys and values go around a ring: the numbers are those of one processor, each sends to its neighbour only, and as much as when
keys are gathered."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from fast_and_slow import fast_among
from language_model import random_strategy, undivided
from programs.start import rows
from rings import STEPS, llama, tokens
from starting import needs_mpi

import taskflow
from taskflow import operators as ops
from taskflow.graph import OperatorGraph
from taskflow.machine import load_machine
from taskflow.mapper import Exchange, HybridParallel, OpConfig, Strategy, choose, load, map_graph, parse_plan, save
from taskflow.optimizer import make_evaluator
from taskflow.optimizer.evaluate.evaluator import PythonEvaluator
from taskflow.optimizer.evaluate.folded import folded_step
from taskflow.optimizer.memory import memory_use
from taskflow.rules import SGD
from taskflow.runtime.executor import Executor
from taskflow.runtime.program import schedule
from taskflow.tasks import Placement, roofline, simulate
from taskflow.tasks.lower import lower
from taskflow.tasks.task import Compute, Kind, Task, TaskGraph
from taskflow.tasks.topic import Purpose, Topic

PLANS = (
    ("c2 ring", 2, 4), ("c4 ring", 4, 4), ("c4 ring mb2 recompute=full", 4, 4), ("c2 ring t2 mb2", 4, 4), ("c3 ring", 3, 3),
    ("c2 ring p2 d2 mb1", 8, 4), ("c2 ring d2 zero3 mb1", 4, 2), ("c2 ring p2 mb2 schedule=zb-h1 recompute=full", 4, 2),
    ("c5 ring mb2", 5, 5),
)


def trained(graph: OperatorGraph, strategy: Strategy, clip_norm: float | None = 1.0) -> tuple[list[Any], dict[str, Any]]:
    run = Executor(graph, strategy, SGD(0.1, momentum=0.9), seed=3, clip_norm=clip_norm)
    losses = []
    for step in range(STEPS):
        losses += [run.train(tokens(graph, step)), run.evaluate(tokens(graph, step))]
    weights = run.weights()
    assert weights is not None
    return losses, weights


def same(found: tuple[list[Any], dict[str, Any]], wanted: tuple[list[Any], dict[str, Any]], which: str, rtol: float) -> None:
    np.testing.assert_allclose(found[0], wanted[0], rtol=rtol, err_msg=which)
    for name, value in wanted[1].items():
        np.testing.assert_allclose(found[1][name], value, rtol=100 * rtol, atol=rtol, err_msg=f"{which}: {name}")


@pytest.mark.parametrize(("plan", "devices", "blocks"), fast_among(PLANS, [PLANS[i] for i in (0, 2, 3, 6, 7, 8)]))
def test_numbers_are_those_of_one_processor(plan: str, devices: int, blocks: int) -> None:
    graph = llama(blocks)
    strategy = map_graph(HybridParallel(plan), graph, taskflow.host(devices))
    assert strategy.exchange is Exchange.RING
    same(trained(graph, strategy), trained(llama(blocks), undivided(graph)), plan, 1e-10)


def test_in_float32_too() -> None:
    graph = llama(4, "float32")
    strategy = map_graph(HybridParallel("c4 ring mb2"), graph, taskflow.host(4))
    found, wanted = (trained(llama(4, "float32"), s)[0] for s in (strategy, undivided(graph)))
    np.testing.assert_allclose(found, wanted, rtol=1e-4)


@pytest.mark.parametrize("strategies", fast_among([6, 24], [6]))
def test_any_cuts_and_places_around_a_ring(strategies: int) -> None:
    """What goes around is found in what is read, whatever the strategy: also where queries and blocks lie anywhere."""
    wanted, around, compared = trained(llama(), undivided(llama())), 0, 0
    for seed in range(strategies):
        random, graph = Random(f"ring {seed}"), llama()
        processors = random.randint(2, 5)
        base = random_strategy(graph, processors, random)
        configs = dict(base.configs)
        for node in graph:
            if node.operator.kind == "attention_blocks":
                cuts = (random.choice((1, 2)), random.choice((1, 3, processors)), 1, random.choice((2, 4)))
                configs[node.name] = OpConfig(cuts, tuple(random.randrange(processors) for _ in range(int(np.prod(cuts)))))
        strategy = replace(base, configs=configs, exchange=Exchange.RING)
        same(trained(graph, strategy), wanted, f"strategy {seed}", 1e-10)
        others = lower(graph, replace(strategy, exchange=Exchange.COLLECTIVES), SGD(0.1))
        around += Counter(t.kind for t in lower(graph, strategy, SGD(0.1)))[Kind.COPY] > Counter(t.kind for t in others)[Kind.COPY]
        compared += 1
    assert compared == strategies and around >= strategies // 2, around


# ---- what is sent ----------------------------------------------------------------------------------------------------
def attention(causal: bool, blocks: int, queries: int = 12) -> OperatorGraph:
    graph = OperatorGraph("float64")
    x = ops.input(graph, (2, queries, 2, 4), name="x")
    q, k, v = (ops.linear(x, 4, name=name) for name in "qkv")
    y = ops.flash_attention(q, k, v, causal=causal, key_blocks=blocks, name="attention")
    graph.minimize(ops.mse_loss(y, ops.input(graph, (2, queries, 2, 4), name="y"), name="loss"))
    return graph


def around(graph: OperatorGraph, ranks: int, exchange: Exchange) -> TaskGraph:
    """All cut along the sequence; attention's blocks lie with their queries."""
    configs = {}
    for node in graph:
        names = [dim.name for dim in node.dims]
        degrees = [ranks if name in ("a1", "b") else 1 for name in names]
        places = np.broadcast_to(np.arange(ranks).reshape([ranks if name == "a1" else 1 for name in names]), degrees)
        configs[node.name] = OpConfig(tuple(degrees), tuple(places.reshape(-1).tolist()))
    return lower(graph, replace(Strategy(ranks, configs), exchange=exchange), SGD(0.1))


def messages(tasks: TaskGraph, name: str, purpose: Purpose) -> list[Task]:
    """Of an operator's output, or of its gradient."""
    found = [t for t in tasks if t.kind.travels and t.topic == Topic(purpose, name)]
    assert all(t.kind is Kind.COPY for t in found)
    return found


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("ranks", [3, 4, 6])
def test_each_sends_to_its_neighbour_as_much_as_is_gathered(ranks: int, causal: bool) -> None:
    """A block of n keys is read by all c ranks, or in causal attention by those behind: c (c - 1) blocks in all, or half as many;
    of keys, of values, and of both's gradients."""
    tasks = around(attention(causal, ranks), ranks, Exchange.RING)
    block = 8 * 2 * (12 // ranks) * 2 * 4  # float64 (N, keys, heads, width)
    hops = ranks * (ranks - 1) // (2 if causal else 1)
    for name in ("k", "v"):
        forward, back = (messages(tasks, name, purpose) for purpose in (Purpose.OUTPUT, Purpose.GRADIENT))
        assert sum(t.nbytes for t in forward) == sum(t.nbytes for t in back) == hops * block
        assert {(t.source + 1) % ranks for t in forward} == {t.processor for t in forward}
        assert all((t.source + 1) % ranks == t.processor for t in forward)
        if causal:
            assert all((t.processor + 1) % ranks == t.source for t in back)
        whole = around(attention(causal, ranks), ranks, Exchange.COPIES)
        assert [sum(t.nbytes for t in messages(whole, name, p)) for p in (Purpose.OUTPUT, Purpose.GRADIENT)] == [hops * block] * 2


def test_a_rank_computes_with_what_it_has_before_what_comes() -> None:
    """In the order of launches, which is that of devices in a pipeline: its own block first, then its neighbour's."""
    tasks = around(attention(False, 4), 4, Exchange.RING)
    order: dict[Kind, list[int]] = {}
    for task in tasks:
        if isinstance(task.work, Compute) and task.work.node.name == "attention" and task.processor == 2:
            order.setdefault(task.kind, []).append(task.work.piece.lo[3])
    assert order == {Kind.FORWARD: [2, 1, 0, 3], Kind.BACKWARD: [3, 0, 1, 2]}


def test_memory_is_planned() -> None:
    graph, machine = llama(), taskflow.host(4)
    for plan in ("c4 ring", "c4 ring mb2 recompute=full", "c2 ring p2 mb1"):
        tasks = lower(graph, map_graph(HybridParallel(plan), graph, machine), SGD(0.1))
        order = simulate(tasks, machine, roofline(machine)).begun(tasks)
        for use in memory_use(tasks, order):
            assert schedule(tasks, order, Placement(4, 4), use.processor).memory.peak_bytes == use.buffers > 0


@pytest.mark.mpi
@needs_mpi
@pytest.mark.parametrize(("ranks", "plans"), [
    pytest.param(2, ("c2 ring", "c2 ring mb2 recompute=full"), marks=pytest.mark.slow), (4, ("c4 ring mb2", "c2 ring p2 mb1")),
])
def test_ranks_train_as_virtual_processors_do(ranks: int, plans: tuple[str, ...]) -> None:
    found = rows(ranks, "train_ring.py", *plans, limit=200)
    assert [row["case"] for row in found] == list(plans)
    for row in found:
        graph = llama()
        run = Executor(graph, choose(row["case"], graph, taskflow.host(ranks))[0], SGD(0.1, momentum=0.9), seed=3, clip_norm=1.0)
        np.testing.assert_allclose(row["losses"], [run.train(tokens(graph, step)) for step in range(STEPS)], rtol=1e-12)


# ---- how it is said --------------------------------------------------------------------------------------------------
def test_the_notation_says_it_and_files_keep_it(tmp_path: Path) -> None:
    plan = parse_plan("c4 ring mb2")
    assert plan.ring and parse_plan(str(plan)) == plan and not parse_plan("c4 mb2").ring
    graph = llama()
    strategy = map_graph(HybridParallel("c4 ring mb2"), graph, taskflow.host(4))
    save(strategy, graph, "host", str(tmp_path / "ring.json"))
    assert load(str(tmp_path / "ring.json"), graph, 4).exchange is Exchange.RING


@pytest.mark.parametrize(("plan", "blocks", "message"), [
    ("ring", 4, "ring is how the keys of a context go around, which needs c2 or more"),
    ("c4 ring", None, "ring needs attention in blocks of keys, Llama has none; build it with key_blocks=4"),
    ("c4 ring", 3, "has 3 blocks of keys, which 4 devices cannot share evenly; build the network with key_blocks=4"),
    ("c4 ring ring", 4, "'ring' says ring for the second time"),
])
def test_what_does_not_fit_is_a_sentence(plan: str, blocks: int | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        map_graph(HybridParallel(plan), llama(blocks), taskflow.host(4))


@pytest.mark.parametrize("plan", [
    pytest.param("c4 ring d2 p2 mb1", marks=pytest.mark.slow), "c2 ring p2 d4 mb2 recompute=full",
])
def test_one_replica_stands_for_all(plan: str) -> None:
    graph, machine = llama(batch=32, steps=16), load_machine("h100", 16)
    evaluator = PythonEvaluator(graph, machine, make_evaluator(graph, machine, rule=SGD(0.1)).costs, SGD(0.1), None)
    strategy = map_graph(HybridParallel(plan), graph, machine)
    step = folded_step(graph, strategy, machine, evaluator.costs, SGD(0.1), None)
    assert step.makespan == evaluator.set(strategy) and step.replicas.count > 1
    assert step.tasks == evaluator.tasks and step.transfer_bytes == evaluator.lowered().transfer_bytes
