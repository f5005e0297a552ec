"""The compiled core against its definition on graphs of 16-bit floats, whose gradients and updates are in float32."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from random import Random

import pytest
from core_cases import Odd, random_changes, shared
from fast_and_slow import fast_among
from language_model import CONFIG, ONE_STEP, model, random_strategy
from test_core_equal import same

from taskflow.machine import host, load_machine
from taskflow.mapper import DataParallel, MessageSync, Strategy, SyncAlgorithm, UpdatePlacement, map_graph
from taskflow.models import build
from taskflow.optimizer.algorithms.initial import known
from taskflow.optimizer.bounds.work_and_path import lower_bound
from taskflow.optimizer.cost.adapter import ModelCosts
from taskflow.optimizer.cost.analytic import AnalyticCosts
from taskflow.optimizer.cost.task_costs import Costs, Roofline
from taskflow.optimizer.evaluate import make_evaluator
from taskflow.optimizer.evaluate.evaluator import PythonEvaluator
from taskflow.optimizer.memory_check import MemoryCheck
from taskflow.optimizer.memory_estimate import MemoryEstimate
from taskflow.optimizer.space.space import SearchSpace, SpaceOptions
from taskflow.rules import SGD, Adam
from taskflow.tasks import Kind

core = pytest.importorskip("taskflow.optimizer.evaluate.compiled", reason="the compiled core is not built")
pytest.importorskip("ml_dtypes")


@pytest.mark.parametrize("seed", fast_among(range(40), range(7)))
def test_random_strategies_and_moves(seed: int) -> None:
    random = Random(seed)
    graph = model(random.choice(("bfloat16", "float16")), random.choice((CONFIG, ONE_STEP)))
    processors = random.randint(1, 6)
    machine = random.choice((host, shared))(processors)
    costs: Costs = random.choice((Roofline(machine), Odd(2)))
    rule, clip = random.choice((SGD(0.1, momentum=0.9), SGD(0.1), Adam())), random.choice((None, 1.0))
    reference, compiled = (made(graph, machine, costs, rule, clip) for made in (PythonEvaluator, core.CompiledEvaluator))
    start = random_strategy(graph, processors, random)
    assert compiled.set(start) == reference.set(start)
    same(reference, compiled)
    for _ in range(3):
        changes = random_changes(graph, random_strategy(graph, processors, random), random)
        assert compiled.propose(changes) == reference.propose(changes)
        compiled.accept()
        reference.accept()
    same(reference, compiled)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_described_machine_multiplies_at_the_types_rate(dtype: str) -> None:
    machine, seconds = load_machine("h100", 4), {}
    for kind in ("float32", dtype):
        graph = build("GPT-2", 32, preset="paper", dtype=kind, layers=2)
        costs = ModelCosts(AnalyticCosts(machine), graph, machine, Adam())
        reference, compiled = (made(graph, machine, costs, Adam(), None) for made in (PythonEvaluator, core.CompiledEvaluator))
        strategy = map_graph(DataParallel(), graph, machine)
        seconds[kind] = reference.set(strategy)
        assert compiled.set(strategy) == seconds[kind]
        products = [t for t in reference.lowered() if t.kind is Kind.FORWARD and "lm_head" in t.name]
        seconds[f"{kind} product"] = costs.task(products[0])
    assert seconds[f"{dtype} product"] < seconds["float32 product"] / 8
    assert seconds[dtype] < seconds["float32"] / 3


@pytest.mark.parametrize("seed", range(12))
def test_estimated_memory_is_no_less_than_what_is_planned(seed: int) -> None:
    """What the check calls enough is enough: copies of weights, and gradients twice as large as weights, count."""
    random = Random(seed)
    graph = model(random.choice(("bfloat16", "float16")))
    processors = random.randint(1, 5)
    evaluator = make_evaluator(graph, host(processors), rule=random.choice((SGD(0.1), Adam())))
    check, strategy = MemoryCheck(evaluator), random_strategy(graph, processors, random)
    evaluator.set(strategy)
    planned, exact = check.peaks(strategy)
    assert exact
    for most, need in zip(MemoryEstimate(evaluator).at_most(strategy), planned, strict=True):
        assert most >= need


@pytest.mark.parametrize("name", ["MLP", "GPT-2", "RNNTC"])
def test_the_bound_holds(name: str) -> None:
    graph, machine = build(name, preset="small", dtype="bfloat16"), load_machine("a100", 4)
    evaluator, options, random = make_evaluator(graph, machine, rule=Adam()), SpaceOptions(placements="arbitrary"), Random(name)
    bound, space = lower_bound(evaluator, options), SearchSpace(graph, 4, options)
    assert bound > 0
    for strategy in (*known(graph, machine), *(Strategy(4, space.random(random)) for _ in range(25))):
        assert evaluator.set(strategy) >= bound
    for travel, place in product((SyncAlgorithm.OWNER, SyncAlgorithm.TREE, SyncAlgorithm.RING), UpdatePlacement):
        way = MessageSync(travel, place)
        assert evaluator.set(replace(known(graph, machine)[0], syncs={p.layer: way for p in graph.parameters})) >= bound
