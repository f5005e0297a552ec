"""The compiled core against its definition: the same tasks in the same order, and the same times bit for bit."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from core_cases import Odd, random_changes, shared
from fast_and_slow import fast_among
from language_model import CONFIG, ONE_STEP, model, random_strategy

import taskflow
from taskflow.machine import host, load_machine
from taskflow.mapper import DataParallel, MessageSync, OpConfig, Strategy, SyncAlgorithm, UpdatePlacement, map_graph
from taskflow.mapper.strategy import SUMS
from taskflow.models import build
from taskflow.optimizer.cost.adapter import ModelCosts
from taskflow.optimizer.cost.analytic import AnalyticCosts
from taskflow.optimizer.cost.task_costs import Costs, Roofline
from taskflow.optimizer.evaluate.evaluator import PythonEvaluator
from taskflow.rules import SGD, Adam
from taskflow.tasks.simulate import on_grid
from taskflow.tasks.task import Kind

core = pytest.importorskip("taskflow.optimizer.evaluate.compiled", reason="the compiled core is not built")


def pair(seed: int):
    """The two evaluators of one random case."""
    random = Random(seed)
    graph = model(random.choice(("float32", "float64")), random.choice((CONFIG, ONE_STEP)))
    processors = random.randint(1, 6)
    machine = random.choice((host, shared))(processors)
    costs: Costs = random.choice((Roofline(machine), Odd(2)))
    rule = random.choice((SGD(0.1, momentum=0.9), SGD(0.1), Adam(), None))
    clip = random.choice((None, 1.0))
    return random, PythonEvaluator(graph, machine, costs, rule, clip), core.CompiledEvaluator(graph, machine, costs, rule, clip)


def same(reference, compiled) -> None:
    tasks, table = reference.lowered(), compiled.task_table()
    wanted = [
        (t.kind, t.processor, t.processors, t.flops, t.nbytes, on_grid(reference.costs.task(t))) for t in tasks
    ]
    columns = (table[k].tolist() for k in ("kind", "processor", "source", "flops", "nbytes", "cost"))
    given = [
        (core.KINDS[kind], processor, members(compiled, core.KINDS[kind], processor, source), *rest)
        for kind, processor, source, *rest in zip(*columns)
    ]
    for number, (a, b) in enumerate(zip(wanted, given)):
        assert a == b, f"task {number}: {tasks.tasks[number].name}"
    assert len(given) == len(wanted)
    assert compiled.timeline() == reference.timeline()
    assert compiled.seconds == reference.seconds and compiled.tasks == reference.tasks


def members(compiled, kind, processor: int, source: int) -> tuple[int, ...]:
    """What takes part in a task of the table."""
    if kind is Kind.COLLECTIVE:
        return compiled.groups[source]
    return (processor,) if source == processor else (source, processor)


@pytest.mark.parametrize("seed", fast_among(range(60), range(15)))
def test_random_strategies(seed):
    compare_strategies(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5000, 5400))
def test_many_random_strategies(seed):
    compare_strategies(seed)


def compare_strategies(seed):
    random, reference, compiled = pair(seed)
    for _ in range(2):
        strategy = random_strategy(reference.graph, len(reference.machine.processors), random)
        assert compiled.set(strategy) == reference.set(strategy)
        same(reference, compiled)


@pytest.mark.parametrize("seed", fast_among(range(1000, 1015), range(1000, 1008)))
def test_random_moves(seed):
    random, reference, compiled = pair(seed)
    graph, processors = reference.graph, len(reference.machine.processors)
    start = random_strategy(graph, processors, random)
    assert compiled.set(start) == reference.set(start)
    for _ in range(6):
        other = random_strategy(graph, processors, random)
        changes = random_changes(graph, other, random)
        syncs = dict(random.sample(sorted(other.syncs.items()), random.randint(0, 1)))
        sums = random.choice((None, None, *SUMS))
        assert compiled.propose(changes, syncs=syncs, sums=sums) == reference.propose(changes, syncs=syncs, sums=sums)
        if random.random() < 0.6:
            compiled.accept()
            reference.accept()
            same(reference, compiled)
    same(reference, compiled)


def test_as_many_tasks_synchronise_as_there_are():
    """Of a network of many operators a block has few names; all layers' messages together are one block, and many more."""
    graph, machine = build("Inception-v3", devices=32), load_machine("k80", 32)
    strategy = map_graph(DataParallel(), graph, machine)
    finest = MessageSync(SyncAlgorithm.RING, UpdatePlacement.SHARDED, 1 << 20)
    evaluator = core.CompiledEvaluator(graph, machine, Roofline(machine), SGD(0.1), None)
    seconds = evaluator.set(replace(strategy, syncs=dict.fromkeys(strategy.syncs, finest)))
    assert evaluator.tasks > 1 << 19
    ends = evaluator._core.times()[2]  # of the flat tasks; the seconds are of layers kept apart
    assert len(ends) == evaluator.tasks and ends.max() == seconds


def test_layers_that_touch_as_many_bytes_but_give_other_gradients_cost_differently():
    """Two layers share weights. The first adds to the weights' gradient, the second gives its input's: as many bytes here, but
    one product less and one more."""
    graph, machine, rule = taskflow.OperatorGraph(), load_machine("p100", 1), SGD(0.1)
    first = taskflow.linear(taskflow.input(graph, (3, 2), name="x"), 2, name="first")
    second = taskflow.linear(first, 2, name="second", parameters=graph.parameters_of(first))
    graph.minimize(taskflow.cross_entropy(second, taskflow.input(graph, (3,), "int64", name="label")))
    whole = Strategy(1, {node.name: OpConfig((1,) * len(node.dims), (0,)) for node in graph})
    costs = ModelCosts(AnalyticCosts(machine), graph, machine, rule)
    reference, compiled = (kind(graph, machine, costs, rule, None) for kind in (PythonEvaluator, core.CompiledEvaluator))
    backward = {t.work.node.name: t for t in reference.lowered(whole) if t.kind is Kind.BACKWARD}
    assert backward["first"].nbytes == backward["second"].nbytes
    assert costs.task(backward["first"]) < costs.task(backward["second"])
    assert compiled.set(whole) == reference.set(whole)
    same(reference, compiled)
