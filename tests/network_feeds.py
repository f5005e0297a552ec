"""Random batches for the small presets of the networks."""

from __future__ import annotations

import numpy as np

from taskflow.graph import OperatorGraph
from taskflow.models import find


def feeds(name: str, graph: OperatorGraph, seed: int) -> dict[str, np.ndarray]:
    """Random images, tokens and labels for the small preset of a model."""
    config = find(name)[1].small
    numbers, result = np.random.default_rng(seed), {}
    for node in graph:
        if node.operator.kind == "input":
            spec = node.outputs[0].spec
            known = "classes" if node.name == "labels" and hasattr(config, "classes") else "vocabulary"
            if spec.differentiable:
                result[node.name] = numbers.normal(size=spec.shape).astype(spec.dtype)
            else:
                result[node.name] = numbers.integers(0, getattr(config, known), spec.shape)
    return result
