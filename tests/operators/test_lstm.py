"""The builder of recurrent layers: names, sharing, order, states."""

from __future__ import annotations

import numpy as np
import pytest
from operator_bench import evaluate

import taskflow.operators as ops
from taskflow.graph import OperatorGraph
from taskflow.operators.operator import Spec

FEEDS = {"x": np.random.default_rng(1).normal(size=(2, 5, 3))}


def _model(steps: int | None, dropout: float = 0.0) -> tuple[OperatorGraph, list, dict]:
    graph = OperatorGraph("float64")
    y, (h, c) = ops.lstm(ops.input(graph, (2, 5, 3), name="x"), 4, 2, steps=steps, dropout=dropout)
    parameters = {
        p.name: np.random.default_rng(i).uniform(-0.5, 0.5, p.shape) for i, p in enumerate(graph.parameters)
    }
    return graph, [y, *h, *c], parameters


@pytest.mark.parametrize("steps", [1, 2, 5, 9])
def test_grouping_of_steps_does_not_change_the_result(steps: int) -> None:
    whole, expected, parameters = _model(None)
    cut, results, same = _model(steps)
    assert parameters.keys() == same.keys()
    wanted, wanted_grads = evaluate(whole, FEEDS, parameters, {t: np.ones(t.shape) for t in expected})
    given, grads = evaluate(cut, FEEDS, parameters, {t: np.ones(t.shape) for t in results})
    for one, other in zip(expected, results):
        np.testing.assert_allclose(given[other], wanted[one], rtol=1e-12)
    for name in (*parameters, "x"):
        np.testing.assert_allclose(grads[name], wanted_grads[name], rtol=1e-10, atol=1e-13)


def test_chunks_share_parameters_and_follow_the_wavefront() -> None:
    graph, _, _ = _model(2, dropout=0.5)
    layers = [n.name for n in graph if n.operator.kind == "lstm"]
    assert layers == ["lstm.l0", "lstm.l1", "lstm.l0.1", "lstm.l1.1", "lstm.l0.2", "lstm.l1.2"]
    assert [n.name for n in graph if n.operator.kind == "dropout"] == ["lstm.drop1", "lstm.drop1.1", "lstm.drop1.2"]
    for layer in (0, 1):
        assert graph.node(f"lstm.l{layer}").parameters == graph.node(f"lstm.l{layer}.2").parameters
    assert len(graph.parameters) == 8
    assert graph.parameter_count == sum(16 * (width + 4 + 2) for width in (3, 4))


def test_states_start_as_zeros_and_can_be_carried() -> None:
    graph = OperatorGraph()
    _, (h, c) = ops.lstm(ops.input(graph, (2, 5, 3), name="x"), 4)
    starts = [node.outputs[0] for node in graph if node.operator.kind == "state"]
    assert [s.spec for s in starts] == [Spec((2, 4), np.dtype(np.float32))] * 2
    for start, last in zip(starts, (*h, *c)):
        graph.carry(start, last)
    assert [node.name for node in graph if node.operator.kind in ("split", "concat")] == []


def test_hidden_units_can_be_cut_only_over_one_step() -> None:
    graph, _, _ = _model(2)
    hidden = [graph.node(name).dims[1] for name in ("lstm.l0", "lstm.l0.1", "lstm.l0.2")]
    assert [dim.divisible for dim in hidden] == [False, False, True]


def test_wrong_arguments() -> None:
    graph = OperatorGraph()
    x = ops.input(graph, (2, 5, 3), name="x")
    h = ops.state(graph, (2, 4), name="h")
    with pytest.raises(ValueError, match="num_layers must be a positive integer, got 0"):
        ops.lstm(x, 4, 0)
    with pytest.raises(ValueError, match="steps must be a positive integer, got 0"):
        ops.lstm(x, 4, steps=0)
    with pytest.raises(ValueError, match=r"state must have h and c of 2 layers, got 1 and 1"):
        ops.lstm(x, 4, 2, state=([h], [h]))
    with pytest.raises(ValueError, match=r"initial states must be float32\[2, 5\]"):
        ops.lstm_layer(x, 5, (h, h))
    with pytest.raises(ValueError, match=r"input must be \(N, T, features\)"):
        ops.lstm(h, 4)
