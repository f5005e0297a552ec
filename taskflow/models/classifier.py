"""Inputs and loss that the image classifiers share."""

from __future__ import annotations

from taskflow import operators as ops
from taskflow.graph import OperatorGraph
from taskflow.operators.tensor import Tensor


def image_inputs(graph: OperatorGraph, batch: int, channels: int, image: int) -> tuple[Tensor, Tensor]:
    """Add the inputs ``images`` (batch, channels, image, image) floats and ``labels`` (batch) int64."""
    images = ops.input(graph, (batch, channels, image, image), name="images")
    return images, ops.input(graph, (batch,), "int64", name="labels")


def classify(graph: OperatorGraph, scores: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> OperatorGraph:
    """Minimise the mean cross-entropy of the scores (batch, classes), in nats."""
    graph.minimize(ops.cross_entropy(scores, labels, label_smoothing=label_smoothing, name="loss"))
    return graph
