"""Updates by shares in the search: the compiled core's times are the definition's, and memory counts a share of the state."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from fast_and_slow import fast_among
from language_model import model, random_strategy
from test_core_equal import pair, same

import taskflow
from taskflow.machine import host, load_machine
from taskflow.mapper import (
    CollectiveSync,
    DataParallel,
    MessageSync,
    Strategy,
    Sync,
    SyncAlgorithm,
    UpdatePlacement,
    map_graph,
)
from taskflow.models import build
from taskflow.optimizer.evaluate import make_evaluator
from taskflow.optimizer.explain.explain import explain
from taskflow.optimizer.memory.peak import peak_bytes
from taskflow.optimizer.memory_estimate import MemoryEstimate
from taskflow.optimizer.traffic.messages import Messages
from taskflow.rules import Adam
from taskflow.tasks.task import AllGather, Kind

SHARES = CollectiveSync(UpdatePlacement.SHARDED)
REPLICATED = CollectiveSync(UpdatePlacement.REPLICATED)


def synchronised(strategy: Strategy, sync: Sync) -> Strategy:
    return replace(strategy, syncs=dict.fromkeys(strategy.syncs, sync))


@pytest.mark.parametrize("seed", fast_among(range(20), range(4)))
def test_the_compiled_core_has_the_same_tasks_and_times(seed: int) -> None:
    random, reference, compiled = pair(seed)
    processors = len(reference.machine.processors)
    strategy = synchronised(random_strategy(reference.graph, processors, random), SHARES)
    assert compiled.set(strategy) == reference.set(strategy)
    same(reference, compiled)
    for _ in range(4):  # layers come to it, and leave it, one by one
        layer = random.choice(sorted(strategy.syncs))
        change = {layer: random.choice((SHARES, REPLICATED, MessageSync(SyncAlgorithm.RING, UpdatePlacement.SHARDED, 3)))}
        assert compiled.propose({}, syncs=change) == reference.propose({}, syncs=change)
        compiled.accept()
        reference.accept()
        same(reference, compiled)


@pytest.mark.parametrize("seed", range(8))
def test_room_is_above_the_planned_memory(seed: int) -> None:
    graph, random = model(), Random(seed)
    evaluator = make_evaluator(graph, host(4), rule=Adam())
    strategy = synchronised(random_strategy(graph, 4, random), SHARES)
    most = MemoryEstimate(evaluator).at_most(strategy)
    for use in peak_bytes(graph, strategy, Adam(), machine=evaluator.machine):
        assert use.nbytes <= most[use.processor]


def test_memory_counts_a_share_of_the_state() -> None:
    graph, machine = build("MLP", devices=4), load_machine("p100", 4)
    plan = map_graph(DataParallel(), graph, machine)
    evaluator = make_evaluator(graph, machine, rule=Adam())
    every, spread = (synchronised(plan, sync) for sync in (REPLICATED, SHARES))
    whole = 2 * 4 * graph.parameter_count
    planned = [peak_bytes(graph, strategy, Adam(), machine=machine) for strategy in (every, spread)]
    for a, b in zip(*planned):
        assert a.weights == b.weights and a.state == whole and abs(b.state - whole // 4) <= 8 * len(plan.syncs)
        assert b.buffers <= a.buffers
    for a, b in zip(MemoryEstimate(evaluator).at_most(every), MemoryEstimate(evaluator).at_most(spread)):
        assert a - b == pytest.approx(whole * 3 / 4, rel=1e-3)


def test_one_collective_is_not_counted_as_many_messages() -> None:
    graph = build("MLP", devices=64)
    plan = map_graph(DataParallel(), graph, load_machine("k80", 64))
    counts = [
        Messages(graph).synchronising(plan.configs, dict.fromkeys(plan.syncs, sync))
        for sync in (REPLICATED, SHARES, MessageSync(SyncAlgorithm.RING, UpdatePlacement.SHARDED, 64))
    ]
    # Of each of the three layers: an all-reduce; a reduce-scatter and an all-gather; messages around rings.
    assert counts[0] == 3 and counts[1] == 6 < counts[2] // 10


def test_a_pinned_layer_is_searched_proved_and_explained() -> None:
    graph, machine = build("MLP", preset="small"), load_machine("p100", 2)
    pins = {p.layer: {"sync": "collective/spread"} for p in graph.parameters}
    found = taskflow.search(graph, machine, budget="200p", constraints=pins, rule=Adam(), workers=1)
    assert set(found.strategy.syncs.values()) == {SHARES}
    evaluator = make_evaluator(graph, machine, rule=Adam())
    evaluator.set(synchronised(map_graph(DataParallel(), graph, machine), SHARES))
    told = explain(evaluator)  # verifies that the path has no gap
    tasks = evaluator.lowered()
    gathers = [task for task in tasks if isinstance(task.work, AllGather)]
    assert gathers and sum(o.sync_bytes for o in told.operators) == sum(t.nbytes for t in tasks if t.kind is Kind.COLLECTIVE)
    assert told.seconds == evaluator.seconds == evaluator.timeline().makespan
