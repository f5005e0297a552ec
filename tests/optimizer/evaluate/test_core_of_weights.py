"""The compiled core against its definition where what is made of weights alone is computed on several processors."""

from __future__ import annotations

from random import Random

import pytest
from core_cases import Odd, random_changes, shared
from fast_and_slow import fast_among
from of_weights import model, with_copies
from test_core_equal import same

from taskflow.machine import host
from taskflow.mapper import DataParallel, Megatron, map_graph
from taskflow.optimizer.cost.task_costs import Costs, Roofline
from taskflow.optimizer.evaluate.evaluator import PythonEvaluator
from taskflow.rules import SGD, Adam

core = pytest.importorskip("taskflow.optimizer.evaluate.compiled", reason="the compiled core is not built")


@pytest.mark.parametrize("seed", fast_among(range(80), range(20)))
def test_random_strategies_and_moves(seed: int) -> None:
    random = Random(seed)
    graph, processors = model(random.choice(("float32", "float64")), random.random() < 0.5), random.randint(1, 6)
    machine = random.choice((host, shared))(processors)
    costs: Costs = random.choice((Roofline(machine), Odd(2)))
    rule, clip = random.choice((SGD(0.1, momentum=0.9), Adam(), None)), random.choice((None, 1.0))
    algorithm = random.choice(("full", "delta"))
    reference = PythonEvaluator(graph, machine, costs, rule, clip)
    compiled = core.CompiledEvaluator(graph, machine, costs, rule, clip, algorithm)
    kinds = (DataParallel(), Megatron(2))
    first = random.choice((with_copies(graph, processors, random), *(map_graph(kind, graph, machine) for kind in kinds)))
    assert compiled.set(first) == reference.set(first)
    same(reference, compiled)
    for _ in range(6):
        changes = random_changes(graph, with_copies(graph, processors, random), random)
        assert compiled.propose(changes) == reference.propose(changes)
        if random.random() < 0.6:
            compiled.accept()
            reference.accept()
            same(reference, compiled)
    assert compiled.reference is None
