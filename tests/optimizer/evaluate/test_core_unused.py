"""The compiled core has what of a kernel no task uses where lowering has it."""

from __future__ import annotations

from random import Random

import pytest
from core_cases import Odd, shared
from language_model import random_strategy
from padded_kernels import network
from test_core_equal import same

from taskflow.optimizer.evaluate.evaluator import PythonEvaluator
from taskflow.rules import SGD, Adam

core = pytest.importorskip("taskflow.optimizer.evaluate.compiled", reason="the compiled core is not built")


@pytest.mark.parametrize("seed", range(12))
def test_the_compiled_core_lowers_the_same(seed: int) -> None:
    random, graph = Random(seed), network()
    machine = shared(random.randint(1, 6))
    rule, clip = random.choice((SGD(0.1, weight_decay=0.1), Adam(), None)), random.choice((None, 1.0))
    reference = PythonEvaluator(graph, machine, Odd(2), rule, clip)
    compiled = core.CompiledEvaluator(graph, machine, Odd(2), rule, clip)
    for _ in range(3):
        strategy = random_strategy(graph, len(machine.processors), random)
        assert compiled.set(strategy) == reference.set(strategy)
        same(reference, compiled)
