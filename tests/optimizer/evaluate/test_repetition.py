"""Plans of a few processors for all: their seconds are those that their definition gives, and near those of the whole plan."""

from __future__ import annotations

from dataclasses import replace
from math import inf, prod
from random import Random

import of_weights
import pytest
from fast_and_slow import fast_among

from taskflow.graph import OperatorGraph
from taskflow.machine import load_machine
from taskflow.mapper import (
    CollectiveSync,
    DataParallel,
    MessageSync,
    OpConfig,
    Strategy,
    SyncAlgorithm,
    UpdatePlacement,
    map_graph,
)
from taskflow.mapper.strategy import SUMS
from taskflow.models import build
from taskflow.models.llama import LlamaConfig, llama
from taskflow.models.rnnlm import RNNLMConfig, rnnlm
from taskflow.optimizer import make_evaluator
from taskflow.optimizer.algorithms import repetitions
from taskflow.optimizer.evaluate.repetition import Repetition, repeated_seconds, repetition
from taskflow.optimizer.memory_estimate import MemoryEstimate
from taskflow.optimizer.options import SearchOptions
from taskflow.optimizer.result import Progress
from taskflow.optimizer.search import search
from taskflow.optimizer.session import SearchSession
from taskflow.optimizer.space import SpaceOptions
from taskflow.rules import SGD, Adam, UpdateRule
from taskflow.tasks.lower.gradient_sync import SyncStep, make_sync_table
from taskflow.tasks.lower.sync_part import first_repetition

core = pytest.importorskip("taskflow.optimizer.evaluate.compiled", reason="the compiled core is not built")
RULE = SGD(0.1, momentum=0.9)
WAYS = [CollectiveSync(place) for place in (UpdatePlacement.REPLICATED, UpdatePlacement.SHARDED)]
PLACES = (("k80", 16, 4), ("k80", 32, 8), ("h100", 16, 4), ("h100", 8, 2), ("p100", 16, 8))


def networks() -> tuple[OperatorGraph, ...]:
    return (
        rnnlm(RNNLMConfig(batch=64, steps=4, vocabulary=48, hidden=16, layers=2, dropout=0.3, steps_per_operator=2), "float32"),
        llama(replace(LlamaConfig.small(), batch=64, layers=2)),
        build("MLP", batch=64),
        build("AlexNet", devices=2),
    )


def small_evaluator(of: Repetition, rule: UpdateRule = RULE):  # type: ignore[no-untyped-def]
    costs = make_evaluator(of.graph, of.whole, rule=rule).costs
    return core.CompiledEvaluator(of.graph, of.machine, costs, rule, None, "full", of)


def random_plan(graph: OperatorGraph, size: int, random: Random) -> Strategy:
    """Any degrees, any processors, either collective for each layer, either way to sum partial values."""
    configs = {}
    for node in graph:
        degrees = tuple(
            random.randint(1, min(dim.size, 2)) if dim.divisible and random.random() < 0.5 else 1 for dim in node.dims
        )
        configs[node.name] = OpConfig(degrees, tuple(random.randrange(size) for _ in range(prod(degrees))))
    syncs = {p.layer: random.choice(WAYS) for p in graph.parameters}
    return Strategy(size, configs, syncs, "random", random.choice(SUMS))


@pytest.mark.parametrize("seed", fast_among(range(40), range(6)))
def test_seconds_are_those_of_the_definition(seed: int) -> None:
    random = Random(seed)
    graph, (name, count, size) = random.choice(networks()), random.choice(PLACES)
    rule = random.choice((RULE, Adam()))
    of = repetition(graph, load_machine(name, count), size)
    assert of is not None
    evaluator = small_evaluator(of, rule)
    for _ in range(2):
        plan = random_plan(graph, size, random)
        assert evaluator.set(plan) == repeated_seconds(of, plan, evaluator.costs, rule)
    for _ in range(6):  # changes of single operators and layers, from what the core keeps
        other = random_plan(graph, size, random)
        node, layer = random.choice(list(graph)), random.choice(graph.parameters).layer
        changes, syncs = {node.name: other[node.name]}, {layer: other.sync(layer)}
        changed = evaluator.changed(changes, syncs)
        assert evaluator.propose(changes, inf, syncs) == repeated_seconds(of, changed, evaluator.costs, rule)
        if random.random() < 0.7:
            evaluator.accept()


@pytest.mark.parametrize("seed", fast_among(range(30), range(4)))
def test_the_whole_plan_takes_about_as_long(seed: int) -> None:
    """What is left out is little of a large step. A collective that waits at one repetition's links waits at all others', too."""
    random = Random(seed)
    graph = build(random.choice(("AlexNet", "RNNTC")), devices=16)
    of = repetition(graph, load_machine("k80", 16), random.choice((4, 8)))
    assert of is not None
    evaluator, plan = small_evaluator(of), map_graph(DataParallel(), graph, of.machine)
    node = random.choice(list(graph))
    configs = {**plan.configs, node.name: random_plan(graph, of.size, random)[node.name]}
    plan = replace(plan, configs=configs)
    whole = make_evaluator(graph, of.whole, rule=RULE)
    assert 0.85 <= evaluator.set(plan) / whole.set(of.expand(plan)) <= 1.02


@pytest.mark.parametrize("seed", range(4))
def test_memory_is_that_of_the_first_processors_of_the_whole_plan(seed: int) -> None:
    random = Random(seed)
    graph = networks()[seed % 2]
    of = repetition(graph, load_machine("k80", 16), 4)
    assert of is not None
    plan = random_plan(graph, 4, random)
    small, whole = MemoryEstimate(small_evaluator(of)), MemoryEstimate(make_evaluator(graph, of.whole, rule=RULE))
    assert small.at_most(plan) == whole.at_most(of.expand(plan))[:4]
    assert small.likely(plan) == whole.likely(of.expand(plan))[:4]


def test_what_cannot_be_repeated() -> None:
    graph = networks()[0]
    k80 = load_machine("k80", 16)
    assert repetition(graph, k80, 4) is not None
    assert repetition(graph, k80, 3) is None and repetition(graph, k80, 16) is None
    assert repetition(rnnlm(RNNLMConfig(batch=6, steps=4, vocabulary=11, hidden=6), "float32"), k80, 4) is None  # samples
    assert repetition(graph, load_machine("a100-v100"), 4) is None  # kinds of processors
    of = repetition(graph, k80, 4)
    assert of is not None
    node = next(node for node in graph if node.parameters)
    evaluator = small_evaluator(of)
    evaluator.set(map_graph(DataParallel(), graph, of.machine))
    assert evaluator.propose({node.name: OpConfig((3, *(1,) * (len(node.dims) - 1)), (0, 1, 2))}) == inf  # 16 samples in 3
    assert evaluator.propose({}, inf, {node.parameters[0].layer: MessageSync(SyncAlgorithm.RING)}) == inf
    with pytest.raises(ValueError, match="only even pieces"):
        of.expanded(node, OpConfig((2, *(1,) * (len(node.dims) - 1)), (0, 1), ((3, 1), *((),) * (len(node.dims) - 1))))


def test_the_first_repetition_of_a_table() -> None:
    with pytest.raises(ValueError, match="only collectives"):
        first_repetition(make_sync_table(MessageSync(SyncAlgorithm.RING), (True,) * 8, 100, 4), 2)
    spread = first_repetition(make_sync_table(WAYS[1], (True, False) * 4, 100, 4), 2)
    rows = spread.chunks[0].pattern.rows
    assert [row.step for row in rows] == [
        SyncStep.FILL, SyncStep.REDUCE_SCATTER, SyncStep.UPDATE, SyncStep.UPDATE, SyncStep.ALL_GATHER
    ]
    assert [(chunk.low, chunk.high) for chunk in spread.chunks] == [(0, 13), (13, 26)]  # as 8 holders have it
    alone = first_repetition(make_sync_table(WAYS[0], (True,) * 8, 100, 4), 1)
    assert [row.step for row in alone.chunks[0].pattern.rows] == [SyncStep.ALL_REDUCE, SyncStep.UPDATE]


def test_the_search_begins_with_repeated_plans_and_is_repeatable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repetitions, "LEAST", 16)
    graph, machine = networks()[0], load_machine("k80", 16)
    first = search(graph, machine, budget="150p", seed=3, workers=1)
    again = search(graph, machine, budget="150p", seed=3, workers=1)
    assert first.strategy == again.strategy and first.seconds == again.seconds and first.proposals <= 150
    assert [improvement.seconds for improvement in first.history] == [improvement.seconds for improvement in again.history]


@pytest.mark.parametrize(("machine", "devices", "wanted"), [
    ("h100", 64, []), ("h100", 256, [2, 4, 8, 16, 32]),
])  # fmt: skip
def test_which_sizes_are_searched(machine: str, devices: int, wanted: list[int]) -> None:
    graph = build("MLP", batch=8192)
    run = SearchSession("guided", make_evaluator(graph, load_machine(machine, devices)), SearchOptions())
    assert [of.size for of in repetitions.sizes(run)] == wanted
    pinned = replace(SearchOptions(), space=SpaceOptions(placements="contiguous"))
    assert not list(repetitions.sizes(SearchSession("guided", run.evaluator, pinned)))


def test_repeated_plans_end_with_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repetitions, "LEAST", 16)
    told: list[str] = []

    def stop(progress: Progress) -> None:
        told.append(progress.phase)
        if sum(phase.startswith("plans of") for phase in told) == 2:
            raise KeyboardInterrupt  # once

    found = search(networks()[0], load_machine("k80", 16), budget="60s", progress=stop, workers=1)
    assert found.stopped == "interrupted" and found.search_seconds < 20


def test_what_is_made_of_weights_alone_has_copies_in_every_repetition() -> None:
    graph = of_weights.model()
    some, node = Repetition(graph, load_machine("k80", 16), 4), graph.node("mixed")
    config = OpConfig((2,) + (1,) * (len(node.dims) - 1), (0, 1, 2, 3), copies=2)
    found = some.expanded(node, config)
    assert found == OpConfig(config.degrees, (0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15), copies=8)
