"""MLP: layers of linear and relu."""

from __future__ import annotations

from dataclasses import dataclass

from taskflow import operators as ops
from taskflow.graph import OperatorGraph
from taskflow.models.classifier import classify


@dataclass(frozen=True, slots=True)
class MLPConfig:
    """Sizes of the network. ``batch`` is of the whole machine, ``hidden`` the widths of the hidden layers."""

    batch: int = 64
    features: int = 784
    hidden: tuple[int, ...] = (1024, 1024)
    classes: int = 10

    @staticmethod
    def small() -> MLPConfig:
        """Return the same layers, narrow."""
        return MLPConfig(batch=6, features=9, hidden=(8, 7), classes=5)


def mlp(config: MLPConfig, dtype: str = "float32") -> OperatorGraph:
    """Build an MLP. Inputs: ``features`` (batch, features) and ``labels`` (batch) int64. Minimises the mean cross-entropy in
    nats."""
    c = config
    graph = OperatorGraph(dtype, "MLP")
    x = ops.input(graph, (c.batch, c.features), name="features")
    labels = ops.input(graph, (c.batch,), "int64", name="labels")
    for i, width in enumerate(c.hidden, 1):
        x = ops.relu(ops.linear(x, width, name=f"fc{i}"), name=f"relu{i}")
    return classify(graph, ops.linear(x, c.classes, name=f"fc{len(c.hidden) + 1}"), labels)
