"""Wrong arguments to the Python API that once gave an unclear error, or none: each is a ValueError that says what was needed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import taskflow
from taskflow.models import build


def network() -> taskflow.OperatorGraph:
    graph = taskflow.OperatorGraph()
    x, label = taskflow.input(graph, (8, 6), name="x"), taskflow.input(graph, (8,), "int64", name="label")
    graph.minimize(taskflow.cross_entropy(taskflow.linear(x, 4, name="fc"), label))
    return graph


GRAPH, PAIR = network(), taskflow.host(2)
STRATEGY = taskflow.choose("data", GRAPH, PAIR)[0]
FEEDS = {"x": np.zeros((8, 6), "float32"), "label": np.zeros(8, "int64")}


def executor(**options: Any) -> taskflow.Executor:
    return taskflow.Executor(GRAPH, STRATEGY, taskflow.SGD(lr=0.1), **options)


CASES: list[tuple[Callable[[], Any], str]] = [
    (lambda: executor(clip_norm=-1.0), "clip_norm must be a number above 0, or None, got -1.0"),
    (lambda: executor(clip_norm=float("nan")), "clip_norm must be a number above 0, or None, got nan"),
    (lambda: executor(machine=taskflow.host(1)), "the tasks are for 2 processors, the machine has 1"),
    (lambda: executor().train(FEEDS, lr=float("nan")), "lr must be a number from 0, got nan"),
    (lambda: executor().train({**FEEDS, "x": FEEDS["x"].tolist()}), r"x: each step needs an array float32\[8, 6\], got list"),
    (lambda: taskflow.load_machine("p100", 1.5), "devices must be 1 or more, got 1.5"),  # type: ignore[arg-type]
    (lambda: taskflow.host(1.5), "needs at least 1 processor, got 1.5"),  # type: ignore[arg-type]
    (lambda: taskflow.search("mlp", PAIR), "graph must be an OperatorGraph, .* got str"),  # type: ignore[arg-type]
    (lambda: taskflow.search(taskflow.OperatorGraph(), PAIR), "graph must be an OperatorGraph, .* got one without operators"),
    (lambda: taskflow.search(GRAPH, "p100"), "machine must be a machine, .* got 'p100'"),  # type: ignore[arg-type]
    (lambda: taskflow.search(GRAPH, PAIR, rule="adam"), "rule must be an update rule, .* got 'adam'"),  # type: ignore[arg-type]
    (lambda: taskflow.choose(None, GRAPH, PAIR), "named by text, such as 'data', got None"),  # type: ignore[arg-type]
    (lambda: taskflow.choose("data", GRAPH, "p100"), "machine must be a machine, .* got 'p100'"),  # type: ignore[arg-type]
    (lambda: taskflow.input(GRAPH, 3, name="y"), "shape must be a sequence of sizes, .* got 3"),  # type: ignore[arg-type]
    (lambda: taskflow.input(GRAPH, (3,), "complex64", name="y"), "dtype must be of floats, integers or truth values"),
    (lambda: taskflow.input(GRAPH, (3,), "floatx", name="y"), "dtype must be of floats, integers or truth values"),
]


@pytest.mark.parametrize(("call", "message"), CASES, ids=[message for _, message in CASES])
def test_wrong_arguments_are_said(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_a_strategy_is_saved_with_its_own_graph(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"strategy data does not fit model MLP: no configuration for: fc1, "):
        taskflow.save_strategy(STRATEGY, build("mlp", preset="small"), "host-2", tmp_path / "plan.json")
