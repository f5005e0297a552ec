"""Activations of straight pieces on and beyond their bends, and samples left out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import taskflow
from taskflow.operators.hard import Hardsigmoid, Hardswish, Hardtanh
from taskflow.operators.operator import Operator

X = np.array([-9.0, -3.5, -3.0, -2.9, -1.0, 0.0, 0.5, 1.0, 2.9, 3.0, 3.5, 6.0, 9.0]).reshape(1, -1)


def value_and_slope(operator: Operator) -> tuple[Any, Any]:
    """y and dy/dx at X, through a graph whose loss is the sum of y: the update by SGD with rate 1 is the slope."""
    graph = taskflow.OperatorGraph("float64")
    zeros = taskflow.input(graph, X.shape, name="x")
    x = taskflow.add_weight(zeros, X.shape, name="w")
    (y,) = graph.apply(operator, (x,), name="y")
    graph.minimize(taskflow.sum(y))
    run = taskflow.Executor(graph, taskflow.choose("data", graph, taskflow.host(1))[0], taskflow.SGD(lr=1.0))
    run.set_parameters({"w": X})
    value = run.predict({"x": np.zeros(X.shape)}, "y")
    run.train({"x": np.zeros(X.shape)})
    parameters = run.parameters()
    assert parameters is not None
    return value, X - parameters["w"]


@pytest.mark.parametrize(
    "operator, value, slope",
    [
        (Hardtanh(0.0, 6.0), np.clip(X, 0, 6), (X > 0) & (X < 6)),
        (Hardsigmoid(), np.clip(X / 6 + 0.5, 0, 1), ((X > -3) & (X < 3)) / 6),
        (
            Hardswish(), X * np.clip(X / 6 + 0.5, 0, 1),
            np.where(X <= -3, 0, np.where(X >= 3, 1, X / 3 + 0.5)),
        ),
    ],
    ids=["hardtanh", "hardsigmoid", "hardswish"],
)
def test_on_and_beyond_the_bends(operator: Operator, value: Any, slope: Any) -> None:
    found, gradient = value_and_slope(operator)
    np.testing.assert_allclose(found, value, rtol=1e-14, atol=1e-14)
    np.testing.assert_allclose(gradient, slope, rtol=1e-13, atol=1e-14)


def test_samples_are_left_out_whole_and_alike_under_every_cut() -> None:
    graph = taskflow.OperatorGraph("float64")
    x = taskflow.input(graph, (400, 6), name="x")
    y = taskflow.stochastic_depth(x, 0.25, name="drop")
    graph.minimize(taskflow.sum(taskflow.mul_weight(y, (6,), name="w")))
    values = np.random.default_rng(1).normal(size=(400, 6))
    steps = []
    for mapper, count in (("data", 1), ("random", 3)):
        run = taskflow.Executor(graph, taskflow.choose(mapper, graph, taskflow.host(count))[0], taskflow.SGD(lr=0.0), seed=4)
        losses = []
        for _ in range(2):
            losses.append(run.train({"x": values}))
        steps.append(losses)
        np.testing.assert_array_equal(run.predict({"x": values}, "drop"), values)  # nothing is left out
    np.testing.assert_allclose(steps[0], steps[1], rtol=1e-12)
    assert steps[0][0] != steps[0][1]  # each step leaves out others


def test_as_many_samples_stay_as_should() -> None:
    graph = taskflow.OperatorGraph("float64")
    x = taskflow.input(graph, (4000, 2), name="x")
    graph.minimize(taskflow.mean(taskflow.mul_weight(taskflow.stochastic_depth(x, 0.25), (2,), name="w")))
    run = taskflow.Executor(graph, taskflow.choose("data", graph, taskflow.host(1))[0], taskflow.SGD(lr=0.0), seed=2)
    stayed = run.train({"x": np.ones((4000, 2))}) * 0.75  # the mean of 0 and 1 / 0.75
    assert stayed * 4000 == pytest.approx(round(stayed * 4000), abs=1e-6)  # whole samples
    assert abs(stayed - 0.75) < 4 * (0.75 * 0.25 / 4000) ** 0.5


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda x: taskflow.hardtanh(x, 1.0, 1.0), "hardtanh: low must be below high, got 1.0 and 1.0"),
        (lambda x: taskflow.stochastic_depth(x, 1.0), "stochastic_depth: p must be at least 0 and below 1, got 1.0"),
        (lambda x: taskflow.add_weight(x, (3,)), r"add_weight: the weight's sizes must be 1 or those of \[4, 2\].* got \[3\]"),
        (lambda x: taskflow.expand_weight(x.graph, (2, 2), (2,)), r"expand_weight: the weight's sizes .* got \[2, 2\]"),
    ],
)
def test_what_does_not_fit_is_said(make: Any, message: str) -> None:
    graph = taskflow.OperatorGraph("float64")
    with pytest.raises(ValueError, match=message):
        make(taskflow.input(graph, (4, 2), name="x"))
