"""Folded steps with clipping, and with gradients and weights by shares: what waits for passes of other micro-batches is found."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

import taskflow
from taskflow.graph import OperatorGraph
from taskflow.machine import Cluster, load_machine
from taskflow.mapper import HybridParallel, MessageSync, SyncAlgorithm, map_graph
from taskflow.models.gpt import GPTConfig, gpt
from taskflow.optimizer import make_evaluator
from taskflow.optimizer.evaluate.evaluator import PythonEvaluator
from taskflow.optimizer.evaluate.folded import FoldedStep, folded_step, folded_use
from taskflow.optimizer.memory import memory_use
from taskflow.programs import load_program
from taskflow.rules import Adam
from taskflow.tasks import Compute, Kind, Task
from taskflow.tasks.lower import NotAlikeError

MACHINE = load_machine("h100", 16)
RULE = Adam()
SMALL = replace(GPTConfig.small(), hidden=64, heads=8, steps=32)
LARGE = replace(GPTConfig.small(), hidden=2048, heads=16, steps=1024, vocabulary=51200)  # arithmetic takes longer than launching
SHARES = (
    ("p2 d8 zero3 mb1 schedule=zb-h1", 40, 4), ("p2 d8 zero2 mb1 schedule=zbv", 48, 4), ("d16 hsdp8 mb1", 96, 2),
    ("p2 d8 v2 zero2 mb1", 48, 4), ("p2 d8 fsdp mb1 prefetch=2 recompute=full", 48, 3), ("p2 d8 zero3 mb1 schedule=gpipe", 48, 2),
    ("t2 p2 d4 hsdp2 mb1", 24, 2), ("p2 d8 zero3 mb1 prefetch=0", 48, 13), ("p2 d8 v2 zero3 mb1", 48, 4),
    ("p2 d8 zero3 mb1 schedule=zbv", 40, 4), ("d16 zero3 mb3 recompute=full", 48, 4), ("d16 zero3 mb3", 48, 1),
)


def network(config: GPTConfig, batch: int, layers: int) -> OperatorGraph:
    return gpt(replace(config, batch=batch, layers=layers))


def both(
    graph: OperatorGraph, plan: str, clip: float | None = 1.0, machine: Cluster = MACHINE
) -> tuple[FoldedStep, PythonEvaluator]:
    """A folded step, and an evaluator of all of it."""
    costs = make_evaluator(graph, machine, rule=RULE).costs
    evaluator = PythonEvaluator(graph, machine, costs, RULE, clip)
    strategy = map_graph(HybridParallel(plan), graph, machine)
    evaluator.set(strategy)
    return folded_step(graph, strategy, machine, costs, RULE, clip), evaluator


@pytest.mark.parametrize(("plan", "batch", "layers"), [
    SHARES[11], *(pytest.param(*case, marks=pytest.mark.slow) for case in SHARES[:11]),
])
def test_tasks_wait_for_what_they_wait_for_in_the_whole_step(plan: str, batch: int, layers: int) -> None:
    step, evaluator = both(network(SMALL, batch, layers), plan)
    assert step.replicas.count > 1
    first, tasks = set(step.replicas.images), evaluator.current()[0]
    own = [t for t in tasks if (first & set(t.processors) if t.kind is Kind.COLLECTIVE else t.processor in first)]
    lowered = step.lowered.tasks
    assert [_of(task) for task in own] == [_of(lowered[o]) for o in step.whole.origin]
    place = {task.number: i for i, task in enumerate(own)}
    offsets, after = step.whole.after_offset.tolist(), step.whole.after.tolist()
    wanted: list[int] = []  # all that a task comes after, as bits
    found: list[int] = []
    for i, task in enumerate(own):
        wanted.append(_behind(wanted, [place[n] for n in task.after if n in place]))
        found.append(_behind(found, after[offsets[i] : offsets[i + 1]]))
        assert wanted[i] == found[i], task


def _of(task: Task) -> tuple[object, ...]:
    """What layers that are alike have in common."""
    return task.kind, re.sub(r"\d+", "", task.name.partition("[")[0]), task.source, task.processor


def _behind(known: list[int], befores: list[int]) -> int:
    bits = 0
    for before in befores:
        bits |= known[before] | (1 << before)
    return bits


@pytest.mark.parametrize(("plan", "batch", "layers"), [
    ("t2 d8 mb2 split=2 zero3", 48, 2),
    *(pytest.param(*case, marks=pytest.mark.slow) for case in (
        ("p2 d8 zero3 mb1", 48, 2),
        ("t2 p2 d4 zero1 mb1", 24, 2),
        ("d16 hsdp8 mb1", 96, 2), ("p2 d8 hsdp2 mb1", 48, 2),
        ("p2 d8 zero2 hsdp4 mb1", 96, 2), ("t2 p2 d4 hsdp2 mb2", 32, 2), ("t8 d2 zero3 mb2", 16, 2),
        ("p2 d8 zero3 mb1 schedule=zb-h1", 96, 4), ("p2 d8 zero2 mb1 schedule=zbv", 96, 4), ("p2 d8 v2 zero2 mb1", 96, 4),
        ("p2 d8 mb1", 48, 2), ("t2 nosp p2 d4 mb1", 24, 2), ("p2 d8 zero3 mb1 recompute=full", 96, 16),
        ("p2 d8 mb1 schedule=zbv", 48, 4),
    )),
])
def test_times_tasks_bytes_and_memory_are_those_of_the_whole_step(plan: str, batch: int, layers: int) -> None:
    step, evaluator = both(network(LARGE, batch, layers), plan)
    assert step.replicas.count > 1
    assert step.makespan == pytest.approx(evaluator.seconds, rel=5e-3)
    tasks, timeline = evaluator.current()
    assert (step.tasks, step.transfer_bytes) == (evaluator.tasks, tasks.transfer_bytes)
    for folded, use in zip(folded_use(step), memory_use(tasks, timeline.begun(tasks))):
        assert (folded.weights, folded.state, folded.packed) == (use.weights, use.state, use.packed)
        assert folded.buffers == pytest.approx(use.buffers, rel=0.01)


@pytest.mark.parametrize(("plan", "lowered"), [
    pytest.param("zero=2*8,3*8", {0, 1, 2, 7, 8, 9, 10, 15}, marks=pytest.mark.slow),
    ("zero=2*5,3*11 recompute=full*10,light*6", {0, 1, 2, 4, 5, 6, 7, 9, 10, 11, 12, 15}),
    ("zero=2*1,3*14,2*1", {0, 1, 2, 3, 14, 15}),
])
def test_layers_with_stage_2_before_others_with_stage_3_are_folded(plan: str, lowered: set[int]) -> None:
    """Each of the two is a run of layers, of which four are lowered; recomputation divides a run once more."""
    step, evaluator = both(network(SMALL, 24, 16), f"d8 mb1 {plan}", None, load_machine("h100", 8))
    names = [task.work.node.name for task in step.lowered if isinstance(task.work, Compute)]
    assert {int(name.split(".")[1]) for name in names if name.startswith("h.")} == lowered
    assert step.replicas.count == 8
    assert step.makespan == pytest.approx(evaluator.seconds, rel=5e-3)


@pytest.mark.parametrize(("plan", "batch"), [("d16 zero3 mb1", 96), ("p2 d8 zero2 mb1", 48), ("t2 d8 fsdp mb1", 48)])
def test_passes_take_as_long_where_a_program_waits_for_collectives_of_the_micro_batch_before(plan: str, batch: int) -> None:
    """The lowered micro-batches stand for all: what the third waits for in turn may lie behind it among them."""
    step, evaluator = both(network(SMALL, batch, 2), plan, None, MACHINE.driven_by(load_program("fsdp")))
    assert any(before >= task for task, before in step.whole.turns), "the case that is tested"
    assert step.makespan == pytest.approx(evaluator.seconds, rel=1e-12)


def test_a_norm_that_comes_together_at_one_processor_is_not_folded() -> None:
    graph = network(SMALL, 48, 2)
    strategy = map_graph(HybridParallel("p2 d8 mb1"), graph, MACHINE)
    ring = replace(strategy, syncs={p.layer: MessageSync(SyncAlgorithm.RING) for p in graph.parameters})
    evaluator = make_evaluator(graph, MACHINE, rule=RULE)
    with pytest.raises(NotAlikeError, match="not synchronised by collectives"):
        folded_step(graph, ring, MACHINE, evaluator.costs, RULE, 1.0)


def test_a_processor_that_gathers_what_another_micro_batch_reads_is_not_folded() -> None:
    """Micro-batches take turns on two groups of four, of which all eight hold shares of the weights."""
    graph = network(SMALL, 16, 2)
    one = map_graph(HybridParallel("d4 mb1 zero3 prefetch=3"), graph, load_machine("h100", 4))
    turns = {
        name: replace(config, processors=tuple(p + i // 4 % 2 * 4 for i, p in enumerate(config.processors)))
        for name, config in one.configs.items()
    }
    assert all(len(config.processors) == 16 for config in turns.values())
    strategy = replace(one, processors=8, configs=turns, plan=None)
    strategy.verify(graph)
    machine = load_machine("h100", 8)
    with pytest.raises(NotAlikeError, match="gathers weights of which it reads none"):
        folded_step(graph, strategy, machine, make_evaluator(graph, machine, rule=RULE).costs, RULE, None)


def test_shares_in_groups_across_some_replicas_are_lowered_with_these_replicas() -> None:
    """Groups of four in nodes of eight: four replicas, each of which is such a group."""
    step, _ = both(network(SMALL, 32, 2), "d16 hsdp4 mb1", None)
    assert step.replicas.count == 4 and len(step.replicas.images) == 4


def test_weights_of_fewer_elements_than_replicas_are_kept_whole() -> None:
    """So that all replicas do the same, and one stands for them: a norm of 4 features, on 16 devices."""
    graph = OperatorGraph("float32", "narrow")
    x = taskflow.input(graph, (64, 64), name="x")
    for i in range(8):
        x = taskflow.relu(taskflow.linear(x, 64, name=f"layers.{i}.linear"), name=f"layers.{i}.relu")
    x = taskflow.linear(taskflow.rms_norm(taskflow.linear(x, 4, name="down"), name="norm"), 64, name="up")
    graph.minimize(taskflow.mse_loss(x, taskflow.input(graph, x.shape, name="targets"), name="loss"))
    for plan in ("d16 zero3 mb1", "d16 zero2 mb1"):
        step, evaluator = both(graph, plan, None)
        assert step.replicas.count == 16 and step.makespan == evaluator.seconds
        assert min(bundle.size for bundle in evaluator.current()[0].bundles) == 4
