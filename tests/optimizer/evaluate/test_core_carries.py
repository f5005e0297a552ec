"""Carried state that nothing touched is taken over from the plan accepted last, also where several become one tensor."""

from __future__ import annotations

from random import Random

import pytest
from core_cases import Odd, random_changes, shared
from fast_and_slow import fast_among
from language_model import random_strategy
from test_core_equal import same

import taskflow
from taskflow.optimizer.evaluate.evaluator import PythonEvaluator
from taskflow.rules import SGD

core = pytest.importorskip("taskflow.optimizer.evaluate.compiled", reason="the compiled core is not built")


def network(together: bool) -> taskflow.OperatorGraph:
    """Layers, each with a state of its own that the next step's layer reads; ``together``: two of them become one tensor, a third
    one reads that tensor's state as well."""
    graph = taskflow.OperatorGraph("float64", "states")
    x = taskflow.input(graph, (8, 6), name="x")
    states, made = [], []
    for i in range(4):
        states.append(taskflow.state(graph, (8, 6), name=f"state {i}"))
        x = taskflow.linear(taskflow.add(x, states[-1]), 6, name=f"layer {i}")
        made.append(x)
    for i, state in enumerate(states):
        graph.carry(state, made[2 if together and i in (0, 3) else i])
    graph.minimize(taskflow.cross_entropy(x, taskflow.input(graph, (8,), "int64", name="label")))
    return graph


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("seed", fast_among(range(12), range(4)))
def test_moves_leave_the_other_states_as_they_were(seed: int, together: bool) -> None:
    random, graph = Random(seed), network(together)
    machine, rule = shared(random.randint(2, 5)), random.choice((SGD(0.1), None))
    evaluators = [kind(graph, machine, Odd(2), rule, None) for kind in (PythonEvaluator, core.CompiledEvaluator)]
    reference, compiled = evaluators
    processors = len(machine.processors)
    start = random_strategy(graph, processors, random)
    assert compiled.set(start) == reference.set(start)
    for _ in range(12):
        changes = random_changes(graph, random_strategy(graph, processors, random), random)
        assert compiled.propose(changes) == reference.propose(changes)
        if random.random() < 0.6:
            for evaluator in evaluators:
                evaluator.accept()
            same(reference, compiled)
