"""scatter_add with distinct places: entries that are put, not added."""

from __future__ import annotations

import numpy as np
import pytest

import taskflow
from taskflow import operators as ops


def test_a_step_refuses_a_place_that_is_named_twice() -> None:
    graph = taskflow.OperatorGraph("float64")
    x, at = ops.input(graph, (2, 3), name="x"), ops.input(graph, (2, 3), "int64", name="at")
    graph.minimize(ops.sum(ops.scatter_add(ops.add_weight(x, (3,)), at, 4, distinct=True, name="put")))
    run = taskflow.Executor(graph, taskflow.choose("data", graph, taskflow.host(1))[0], taskflow.SGD(lr=0.1))
    feeds = {"x": np.ones((2, 3)), "at": np.array([[3, 0, 1], [0, 1, 2]])}
    run.train(feeds)
    with pytest.raises(ValueError, match="put: entries are put, not added, so each place may be named once in a row, but 2 is"):
        run.train(feeds | {"at": np.array([[3, 0, 1], [2, 0, 2]])})
