"""Steps in which replicas divide experts: one replica stands for all, with all-to-alls in which each member does the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from taskflow.graph import OperatorGraph
from taskflow.machine import load_machine
from taskflow.mapper import HybridParallel, map_graph
from taskflow.models.moe import MoEConfig, moe
from taskflow.optimizer import make_evaluator
from taskflow.optimizer.evaluate.evaluator import PythonEvaluator
from taskflow.optimizer.evaluate.folded import folded_step, folded_use
from taskflow.optimizer.memory import memory_use
from taskflow.rules import Adam
from taskflow.tasks import AllToAll

MACHINE = load_machine("a100", 16)
RULE = Adam()


def network(experts: int = 32) -> OperatorGraph:
    return moe(replace(
        MoEConfig.small(), batch=32, steps=64, vocabulary=64, hidden=64, inner=128, head_size=16, experts=experts, factor=2.0
    ))


@pytest.mark.parametrize(("plan", "experts", "count"), [
    ("p2 d8 e8 mb2", 16, 8), ("d16 e16 mb2 split=2", 32, 16), ("t2 d8 e4 mb1", 32, 8),
    pytest.param("d16 e16", 32, 16, marks=pytest.mark.slow),
    pytest.param("d16 e16 mb1 recompute=full zero1", 32, 16, marks=pytest.mark.slow),
    pytest.param("d16 e16 mb1 zero3", 16, 8, marks=pytest.mark.slow),
    pytest.param("p2 d8 e8 mb1 zero2", 8, 8, marks=pytest.mark.slow),
    pytest.param("d16 e8 mb1", 32, 16, marks=pytest.mark.slow), pytest.param("d16 e2 mb1", 8, 16, marks=pytest.mark.slow),
    pytest.param("t2 p2 d4 e4 mb1 zero2", 32, 4, marks=pytest.mark.slow),
    pytest.param("t2 p2 d4 e2 mb1 zero1 recompute=full", 32, 4, marks=pytest.mark.slow),
    pytest.param("t4 d4 e2 mb2", 32, 4, marks=pytest.mark.slow),
])
def test_times_tasks_bytes_and_memory_are_those_of_the_whole_step(plan: str, experts: int, count: int) -> None:
    """16 devices on two nodes: a replica is a device, or one of each rank, or a tensor-parallel group: there all read what experts
    have made of each word, and so give gradients of the same numbers."""
    graph = network(experts)
    evaluator = PythonEvaluator(graph, MACHINE, make_evaluator(graph, MACHINE, rule=RULE).costs, RULE, 1.0)
    strategy = map_graph(HybridParallel(plan), graph, MACHINE)
    step = folded_step(graph, strategy, MACHINE, evaluator.costs, RULE, 1.0)
    seconds = evaluator.set(strategy)
    tasks, timeline = evaluator.current()
    assert step.replicas.count == count
    assert step.makespan == pytest.approx(seconds, rel=1e-12)
    assert (step.tasks, step.transfer_bytes) == (len(tasks), tasks.transfer_bytes)
    for folded, use in zip(folded_use(step), memory_use(tasks, timeline.begun(tasks))):
        assert (folded.packed, folded.weights) == (use.packed, use.weights)
        assert folded.state == pytest.approx(use.state, rel=0.1)
        assert folded.buffers == pytest.approx(use.buffers, rel=0.01)


def test_one_replica_has_its_experts_and_its_part_of_the_all_to_alls() -> None:
    graph = network()
    strategy = map_graph(HybridParallel("d16 e16"), graph, MACHINE)
    step = folded_step(graph, strategy, MACHINE, make_evaluator(graph, MACHINE, rule=RULE).costs, RULE, None)
    assert {name.split(".")[-1] for name in step.replicas.spread} == {"wi", "act", "wo"}
    exchanges = [task.work for task in step.lowered if isinstance(task.work, AllToAll)]
    assert len(exchanges) == 4  # to the experts and back, forward and backward
    assert all(len(work.group) == 16 and len(work.packed) == 1 for work in exchanges)
    experts = [
        bundle for bundle in step.lowered.bundles
        if any(".moe.w" in cell.parameter and ".wg" not in cell.parameter for cell in bundle.cells)
    ]
    assert experts and all(len(bundle.group) == 1 for bundle in experts)
