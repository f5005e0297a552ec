"""A network of convolutions of whose kernels some elements meet nothing but padding."""

from __future__ import annotations

import numpy as np

import taskflow
from taskflow.graph import OperatorGraph


def network(batch: int = 4) -> OperatorGraph:
    """Windows that reach far beyond a small image: of ``a`` the middle row and two columns, which row of it depends on the cut
    of the height; of ``b``, in groups, all columns but one; of ``c`` everything but the bias."""
    graph = OperatorGraph()
    x = taskflow.input(graph, (batch, 3, 2, 1), "float64", name="x")
    a = taskflow.conv2d(x, 4, 3, stride=3, padding=((2, 2), (1, 1)), name="a")
    b = taskflow.conv2d(a, 6, (3, 5), padding=(1, 2), groups=2, name="b")
    c = taskflow.conv2d(x, 2, 1, stride=(1, 2), padding=((0, 0), (1, 0)), name="c")
    joined = taskflow.flatten(taskflow.concat([b, c], 1), 1)
    labels = taskflow.input(graph, (batch,), "int64", name="labels")
    graph.minimize(taskflow.cross_entropy(taskflow.linear(joined, 3, name="fc"), labels, name="loss"))
    return graph


def data(step: int, batch: int = 4) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(step)
    return {"x": rng.normal(size=(batch, 3, 2, 1)), "labels": rng.integers(0, 3, batch)}
