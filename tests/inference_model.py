"""A small network with everything that evaluation does in another way than training, and batches for it."""

from __future__ import annotations

import numpy as np

import taskflow


def network(
    batch: int = 6, samples: int | None = None, dtype: str = "float64", last: str = "fc"
) -> taskflow.OperatorGraph:
    """Convolution, batch normalisation, dropout: everything that evaluation does in another way than training."""
    graph = taskflow.OperatorGraph(dtype, "network")
    images = taskflow.input(graph, (batch, 2, 6, 5), name="images")
    labels = taskflow.input(graph, (batch,), "int64", name="labels")
    x = taskflow.conv2d(images, 4, 3, name="conv1")
    x = taskflow.relu(taskflow.batch_norm(x, samples=samples, name="bn1"))
    x = taskflow.dropout(taskflow.flatten(x, 1), 0.5, name="drop")
    graph.minimize(taskflow.cross_entropy(taskflow.linear(x, 3, name=last), labels))
    return graph


def data(seed: int, batch: int = 6) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {"images": random.normal(size=(batch, 2, 6, 5)), "labels": random.integers(0, 3, batch)}
