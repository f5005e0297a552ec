"""Folded steps: one replica and four micro-batches stand for all, with the same tasks at the same times."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from taskflow.graph import OperatorGraph
from taskflow.machine import Cluster, load_machine
from taskflow.mapper import HybridParallel, Strategy, map_graph
from taskflow.models.gpt import GPTConfig, gpt
from taskflow.models.llama import LlamaConfig, llama
from taskflow.optimizer import MemoryCheck, make_evaluator
from taskflow.optimizer.evaluate import Evaluator
from taskflow.optimizer.evaluate.evaluator import PythonEvaluator
from taskflow.optimizer.evaluate.folded import FoldedStep, folded_step, folded_use
from taskflow.optimizer.evaluate.folded.arrays import simulate_arrays
from taskflow.optimizer.evaluate.ordered import OrderedEvaluator
from taskflow.optimizer.memory import memory_use
from taskflow.rules import Adam
from taskflow.tasks import Kind
from taskflow.tasks.lower import NotAlikeError

pytestmark = pytest.mark.timeout(1200)  # whole steps are lowered in Python
MACHINE = load_machine("h100", 16)
RULE = Adam()
PLANS = (
    "t1 p2 d8 mb1 zero1", "t2 p4 d2 mb2", "p2 mb1 v2", "p4 d4 mb1 schedule=zb-h1", "p2 d8 mb1 schedule=zbv",
    "p2 d8 schedule=gpipe mb1 recompute=selective",
    "t1 d16 mb1", "t4 p2 d2 mb2 recompute=full", "t2 p2 d4 mb2 recompute=whole", "p2 d8 mb1 overlap=none",
    "d16 mb3 recompute=full", "d16 mb3 overlap=none", "p2 d8 mb1 zero1 overlap=all",
)


def network(name: str, batch: int) -> OperatorGraph:
    if name == "llama":
        return llama(replace(LlamaConfig.small(), batch=batch, layers=4))
    return gpt(replace(GPTConfig.small(), batch=batch, layers=4))


def whole(graph: OperatorGraph, machine: Cluster = MACHINE) -> PythonEvaluator:
    costs = make_evaluator(graph, machine, rule=RULE).costs
    return PythonEvaluator(graph, machine, costs, RULE, None)


def fold(evaluator: Evaluator, strategy: Strategy) -> FoldedStep:
    return folded_step(evaluator.graph, strategy, evaluator.machine, evaluator.costs, RULE, None)


@pytest.mark.parametrize(("name", "plan"), [
    pytest.param("llama", PLANS[0], marks=pytest.mark.slow), ("gpt", PLANS[3]),
    pytest.param("gpt", "t2 nosp p2 d4 mb2", marks=pytest.mark.slow),
    pytest.param("llama", PLANS[4], marks=pytest.mark.slow),
    pytest.param("gpt", "t2 regather p2 d4 mb1 recompute=selective", marks=pytest.mark.slow),
    pytest.param("llama", "t2 p2 d4 mb2 recompute=light zero1", marks=pytest.mark.slow),
    pytest.param("llama", "t2 p2 d4 mb1 recompute=light zero1", marks=pytest.mark.slow),
    pytest.param("llama", "t4 nosp p2 d2 mb1 recompute=full zero1", marks=pytest.mark.slow),
    *(pytest.param("llama", plan, marks=pytest.mark.slow) for plan in (*PLANS[1:4], *PLANS[5:])),
    pytest.param("gpt", PLANS[0], marks=pytest.mark.slow), pytest.param("gpt", PLANS[8], marks=pytest.mark.slow),
    ("gpt", PLANS[10]),
    ("llama", "t2 p2 d4 mb2 split=2 zero1 recompute=light"), ("gpt", "t2 p2 d4 mb2 v2 zero1 overlap=all bucket=3K"),
    pytest.param("llama", "c2 d8 mb6 split=3", marks=pytest.mark.slow),
    pytest.param("gpt", "t2 nosp p2 d4 mb2 split=2 schedule=zb-h1", marks=pytest.mark.slow),
])
def test_times_tasks_bytes_and_memory_are_those_of_the_whole_step(name: str, plan: str) -> None:
    evaluator = whole(network(name, 48))
    strategy = map_graph(HybridParallel(plan), evaluator.graph, MACHINE)
    step, seconds = fold(evaluator, strategy), evaluator.set(strategy)
    assert step.replicas.count > 1
    assert step.makespan == pytest.approx(seconds, rel=5e-3 if "regather" in plan else 1e-12)
    assert step.tasks == evaluator.tasks
    tasks, timeline = evaluator.current()
    assert step.transfer_bytes == tasks.transfer_bytes
    for folded, use in zip(folded_use(step), memory_use(tasks, timeline.begun(tasks))):
        assert (folded.weights, folded.state, folded.packed) == (use.weights, use.state, use.packed)
        assert folded.buffers == pytest.approx(use.buffers, rel=0.01)


@pytest.mark.parametrize(("name", "plan", "batch"), [
    ("llama", "p2 d8 zero3 mb1", 32),
    pytest.param("gpt", "p2 d8 zero2 mb1", 96, marks=pytest.mark.slow),
    pytest.param("gpt", "p2 d8 zero2 mb1 overlap=all", 96, marks=pytest.mark.slow),
    pytest.param("gpt", "d8 zero2 t2 mb2", 96, marks=pytest.mark.slow),
    pytest.param("gpt", "t2 d8 zero3 mb1 recompute=full", 32, marks=pytest.mark.slow),
    pytest.param("gpt", "p2 d8 fsdp mb2 prefetch=2", 32, marks=pytest.mark.slow),
])
def test_steps_with_shares_of_gradients_and_weights_are_folded(name: str, plan: str, batch: int) -> None:
    evaluator = whole(network(name, batch))
    strategy = map_graph(HybridParallel(plan), evaluator.graph, MACHINE)
    step, seconds = fold(evaluator, strategy), evaluator.set(strategy)
    assert step.replicas.count > 1
    assert step.makespan == pytest.approx(seconds, rel=5e-3 if "t2" in plan else 1e-12)
    tasks, timeline = evaluator.current()
    assert (step.tasks, step.transfer_bytes) == (evaluator.tasks, tasks.transfer_bytes)
    for folded, use in zip(folded_use(step), memory_use(tasks, timeline.begun(tasks))):
        assert folded.weights + folded.state == pytest.approx(use.weights + use.state, rel=0.1)  # shares differ by one number
        assert folded.buffers == pytest.approx(use.buffers, rel=0.01)


def test_a_replica_sends_its_loss_to_a_processor_that_it_does_not_use() -> None:
    evaluator = whole(network("gpt", 8))
    strategy = map_graph(HybridParallel("d1 mb2"), evaluator.graph, load_machine("h100", 1))
    moved = replace(strategy, processors=16, configs={
        name: replace(config, processors=tuple([p + 2 for p in config.processors])) for name, config in strategy.configs.items()
    })
    step, seconds = fold(evaluator, moved), evaluator.set(moved)
    assert step.replicas.count == 1 and any(0 in task.processors for task in evaluator.current()[0])
    assert step.makespan == pytest.approx(seconds, rel=1e-12) and step.tasks == evaluator.tasks


@pytest.mark.parametrize(("plan", "batch", "layers"), [
    ("p2 d8 mb1 schedule=zbv", 40, 4),
    pytest.param("p2 d8 mb1 schedule=zbv", 48, 8, marks=pytest.mark.slow),
    pytest.param("p4 d4 mb1 schedule=zbv", 24, 8, marks=pytest.mark.slow),  # fewer micro-batches than the V has room for
    pytest.param("t2 p2 d4 mb2 schedule=zbv zero1 recompute=full", 64, 8, marks=pytest.mark.slow),
    pytest.param("t2 nosp p4 d2 mb1 schedule=zbv", 20, 8, marks=pytest.mark.slow),
])
def test_weights_that_both_ends_of_a_v_share_are_folded(plan: str, batch: int, layers: int) -> None:
    """A tied embedding has one gradient on the first rank, to which two stages add micro-batches that are apart."""
    evaluator = whole(gpt(replace(GPTConfig.small(), batch=batch, layers=layers)))
    strategy = map_graph(HybridParallel(plan), evaluator.graph, MACHINE)
    step, seconds = fold(evaluator, strategy), evaluator.set(strategy)
    tasks, timeline = evaluator.current()
    assert step.makespan == pytest.approx(seconds, rel=1e-12)
    assert (step.tasks, step.transfer_bytes) == (evaluator.tasks, tasks.transfer_bytes)
    for folded, use in zip(folded_use(step), memory_use(tasks, timeline.begun(tasks))):
        assert (folded.weights, folded.state, folded.packed) == (use.weights, use.state, use.packed)
        assert folded.buffers == pytest.approx(use.buffers, rel=0.01)


@pytest.mark.parametrize("plan", [PLANS[2], *(pytest.param(PLANS[i], marks=pytest.mark.slow) for i in (0, 1, 3, 9, 10))])
def test_every_task_begins_and_ends_when_it_does_in_the_whole_step(plan: str) -> None:
    """All times are equal, bit for bit."""
    evaluator = whole(network("llama", 48))
    strategy = map_graph(HybridParallel(plan), evaluator.graph, MACHINE)
    step = fold(evaluator, strategy)
    evaluator.set(strategy)
    first, tasks = set(step.replicas.images), evaluator.current()[0]
    own = [
        (task.kind, task.name.partition("[")[0], task.source, task.processor, span.end)
        for task, span in zip(tasks, evaluator.timeline().spans)
        if (first & set(task.processors) if task.kind is Kind.COLLECTIVE else task.processor in first)
    ]
    lowered = step.lowered.tasks
    folded = [
        (lowered[o].kind, lowered[o].name.partition("[")[0], lowered[o].source, lowered[o].processor, float(end))
        for o, end in zip(step.whole.origin, step.end)
    ]
    assert len(own) == len(folded) >= len(lowered)
    assert [one[:4] for one in own] == [one[:4] for one in folded]
    assert Counter(own) == Counter(folded)


def test_both_simulations_of_arrays_are_equal() -> None:
    arrays = pytest.importorskip("taskflow.optimizer.evaluate.folded._arrays")
    random = Random(3)
    for _ in range(200):
        count, processors = random.randint(1, 40), random.randint(1, 5)
        after = [sorted(random.sample(range(t), random.randint(0, min(t, 3)))) for t in range(count)]
        offsets = np.cumsum([0, *map(len, after)])
        occupied = [(p,) for p in range(processors)]
        occupied += [
            tuple(random.sample(range(processors + 4), random.randint(2, 4))) for _ in range(3)
        ]
        together = [len(one) > 1 and random.random() < 0.5 for one in occupied]
        arguments = (
            processors, occupied, together, np.array([random.randint(0, 9) / 1024 for _ in range(count)]),
            np.array([random.randrange(len(occupied)) for _ in range(count)]), offsets,
            np.array([b for one in after for b in one], np.int64), lambda: None,
        )
        for ours, compiled in zip(simulate_arrays(*arguments), arrays.simulate_arrays(*arguments)):
            size = min(len(ours), len(compiled))
            assert ours[:size].tolist() == compiled[:size].tolist() and not ours[size:].any() and not compiled[size:].any()


def test_links_that_replicas_share_are_not_folded() -> None:
    """On K80s two GPUs share a link to the switch: replicas that do the same there are in each other's way."""
    evaluator = whole(network("llama", 32), machine := load_machine("k80", 8))
    strategy = map_graph(HybridParallel("p2 d4 mb1"), evaluator.graph, machine)
    try:
        step = fold(evaluator, strategy)
    except NotAlikeError:
        return
    assert step.makespan == pytest.approx(evaluator.set(strategy), rel=5e-3)


@pytest.mark.parametrize("sizes", [(3, 1, 2, 2, 2, 2), (3, 2, 2, 2, 2, 1)])
def test_micro_batches_of_unequal_size_are_not_folded(sizes: tuple[int, ...]) -> None:
    """The same with pieces that differ, where the first micro-batch is as large as the others."""
    graph = network("llama", 12)
    strategy = map_graph(HybridParallel("p2 d2 mb2"), graph, load_machine("h100", 4))
    configs = {
        name: replace(config, weights=tuple(tuple(map(float, sizes)) if k == 6 else () for k in config.degrees))
        for name, config in strategy.configs.items()
    }
    with pytest.raises(NotAlikeError, match="micro-batches differ in size"):
        fold(whole(graph, load_machine("h100", 4)), replace(strategy, configs=configs))


def test_the_evaluator_folds_large_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = network("llama", 32)
    monkeypatch.setattr("taskflow.optimizer.evaluate.ordered.MOST_WHOLE", 100_000)
    evaluator = make_evaluator(graph, MACHINE, rule=RULE)
    strategy = map_graph(HybridParallel("p2 d8 mb1"), graph, MACHINE)
    seconds, usage = evaluator.set(strategy), evaluator.usage()
    room = MemoryCheck(evaluator).peaks(strategy)
    monkeypatch.setattr("taskflow.optimizer.evaluate.ordered.MOST_WHOLE", 100)
    folding = make_evaluator(graph, MACHINE, rule=RULE)
    assert folding.set(strategy) == seconds == folding.seconds
    assert folding.tasks == evaluator.tasks
    found = folding.usage()
    assert found.transfer_bytes == usage.transfer_bytes
    assert found.processor_seconds == pytest.approx(usage.processor_seconds)
    assert found.link_seconds == pytest.approx(usage.link_seconds, abs=1e-5)  # one replica alone sends the loss
    peaks, planned = MemoryCheck(folding).peaks(strategy)
    assert planned and (peaks, True) == room
    assert folding.timeline().makespan == seconds  # of all tasks, when it is asked for
    other = map_graph(HybridParallel("p4 d4 mb1"), graph, MACHINE)
    changes = {name: other[name] for name in ("embed_tokens",) if name in other.configs}
    assert folding.propose(changes) == evaluator.propose(changes)


@pytest.mark.slow
def test_a_step_of_millions_of_tasks_is_evaluated_and_says_what_it_cannot_give() -> None:
    """4 layers of 8,192 on 512 GPUs, 1,024 sequences of 4,096 words: 2.8 million tasks."""
    machine = load_machine("h100:bf16", 512)
    config = replace(GPTConfig.small(), batch=1024, layers=4, hidden=8192, heads=64, steps=4096, vocabulary=128256)
    graph = gpt(config)
    evaluator = OrderedEvaluator(graph, machine, make_evaluator(graph, machine, rule=RULE).costs, RULE, None)
    seconds = evaluator.set(map_graph(HybridParallel("t8 p4 d16 mb1 recompute=full"), graph, machine))
    assert 0.2 < seconds < 5 and evaluator.tasks > 1_000_000
    assert len(evaluator.step.lowered) < 30_000  # type: ignore[union-attr]
    with pytest.raises(ValueError, match=r"what needs every task \(a timeline of all, ONNX files\) can be"):
        evaluator.timeline()
