"""Steps in which the members of a tensor-parallel group do the same: one stands for all, with collectives among the whole group."""

from __future__ import annotations

from dataclasses import replace

import pytest

from taskflow.graph import OperatorGraph
from taskflow.machine import load_machine
from taskflow.mapper import HybridParallel, map_graph
from taskflow.models import build
from taskflow.models.gpt import GPTConfig, gpt
from taskflow.models.llama import LlamaConfig, llama
from taskflow.optimizer import make_evaluator
from taskflow.optimizer.evaluate.evaluator import PythonEvaluator
from taskflow.optimizer.evaluate.folded import FoldedStep, folded_step, folded_use
from taskflow.optimizer.evaluate.folded.replicas import replicas
from taskflow.optimizer.memory import memory_use
from taskflow.rules import Adam
from taskflow.tasks import AllGather, AllReduce, AllToAll, ReduceScatter

MACHINE = load_machine("h100", 16)
RULE = Adam()


def network(layers: int = 4, batch: int = 48) -> OperatorGraph:
    return llama(replace(
        LlamaConfig.small(), batch=batch, steps=32, vocabulary=64, hidden=64, inner=128, heads=8, key_heads=4, layers=layers
    ))


def both(graph: OperatorGraph, plan: str, clip_norm: float | None = None) -> tuple[FoldedStep, PythonEvaluator]:
    """The folded step of a plan, and the whole one."""
    evaluator = PythonEvaluator(graph, MACHINE, make_evaluator(graph, MACHINE, rule=RULE).costs, RULE, clip_norm)
    strategy = map_graph(HybridParallel(plan), graph, MACHINE)
    step = folded_step(graph, strategy, MACHINE, evaluator.costs, RULE, clip_norm)
    evaluator.set(strategy)
    return step, evaluator


@pytest.mark.parametrize(("plan", "layers", "processors"), [
    pytest.param("t2 p2 d4 mb2 recompute=light zero1", 4, 2, marks=pytest.mark.slow),
    pytest.param("t2 c2 p2 d2 mb1 v2 recompute=selective", 8, 4, marks=pytest.mark.slow),
    pytest.param("t4 d4 mb2 overlap=none", 3, 1, marks=pytest.mark.slow),
    ("t2 p2 d4 mb2 v2 zero1", 4, 2),
    ("t2 p2 d4 mb1 v4 zero1", 6, 2),  # stages of what is before and after the layers alone
    pytest.param("t2 p2 d4 mb1 v4 recompute=full", 3, 4, marks=pytest.mark.slow),  # stages that end within layers
    pytest.param("t4 p2 d2 mb1 recompute=full", 4, 2, marks=pytest.mark.slow),
    pytest.param("t4 p2 d2 mb1 recompute=whole bucket=3K", 4, 2, marks=pytest.mark.slow),
    pytest.param("t2 regather p2 d4 mb1 recompute=selective", 4, 2, marks=pytest.mark.slow),
    pytest.param("t4 p2 d2 mb1 schedule=zbv", 8, 2, marks=pytest.mark.slow),
    pytest.param("t2 d8 zero2 mb1", 4, 2, marks=pytest.mark.slow),
    pytest.param("t2 d8 zero1 overlap=all mb2", 4, 1, marks=pytest.mark.slow),
])
def test_one_member_stands_for_a_tensor_parallel_group(plan: str, layers: int, processors: int) -> None:
    step, evaluator = both(network(layers), plan, 1.0)
    tasks, timeline = evaluator.current()
    assert len(step.replicas.images) == processors and step.replicas.count * processors == 16
    assert step.makespan == pytest.approx(timeline.makespan, rel=1e-12)
    assert (step.tasks, step.transfer_bytes) == (len(tasks), tasks.transfer_bytes)
    for folded, use in zip(folded_use(step), memory_use(tasks, timeline.begun(tasks))):
        assert (folded.weights, folded.packed) == (use.weights, use.packed)
        assert folded.state == pytest.approx(use.state, rel=0.1)
        assert folded.buffers == pytest.approx(use.buffers, rel=0.02)


def test_collectives_are_among_the_whole_group() -> None:
    graph = network()
    strategy = map_graph(HybridParallel("t4 p2 d2 mb2"), graph, MACHINE)
    step = folded_step(graph, strategy, MACHINE, make_evaluator(graph, MACHINE, rule=RULE).costs, RULE, None)
    groups = {
        kind: {task.work.group for task in step.lowered if isinstance(task.work, kind) and 0 in task.work.group}
        for kind in (AllGather, ReduceScatter, AllToAll, AllReduce)
    }
    assert list(step.replicas.images) == [0, 8]
    assert groups[AllGather] == groups[ReduceScatter] == {(0, 1, 2, 3)}  # of sequences, and of sums of what each has a part of
    assert groups[AllReduce] == {(0, 4), tuple(range(8))}  # weights of one member, and those that all have


def test_members_add_biases_to_a_share_of_the_channels_each() -> None:
    """So they do the same although Megatron-LM's second linear layers have biases that are added once."""
    graph = gpt(replace(GPTConfig.small(), batch=48, vocabulary=64, hidden=32, heads=4, steps=16, dropout=0.0))
    step, evaluator = both(graph, "t4 p2 d2 mb2 zero1")
    tasks, timeline = evaluator.current()
    assert len(step.replicas.images) == 2 and step.replicas.count == 8
    assert step.makespan == pytest.approx(timeline.makespan, rel=1e-12)
    assert (step.tasks, step.transfer_bytes) == (len(tasks), tasks.transfer_bytes)
    weights = {use.weights for use in memory_use(tasks, timeline.begun(tasks))}
    assert {use.weights for use in folded_use(step)} == weights and len(weights) == 2  # one for each stage


def test_what_members_do_otherwise_is_not_taken_for_the_same() -> None:
    """The first member chooses experts for all words, and with causal attention the last piece of a sequence has most to do."""
    graph = build("Mixtral-8x7B", preset="small", batch=16)
    strategy = map_graph(HybridParallel("t2 d8 mb1"), graph, MACHINE)
    assert max(of.count for of in replicas(graph, strategy, MACHINE)) == 8
    strategy = map_graph(HybridParallel("c2 d8 mb1"), network(), MACHINE)
    assert max(of.count for of in replicas(network(), strategy, MACHINE)) == 8
