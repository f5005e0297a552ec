"""Synthetic batches: random values for every input of a graph, to time steps without data."""

from __future__ import annotations

from typing import Any

import numpy as np

from taskflow.graph import Node, OperatorGraph

_SHAPES = ("reshape", "flatten", "split", "narrow", "concat", "transpose", "pad")


def random_feeds(graph: OperatorGraph, seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    """Return an array for every input: normal numbers, or integers in the range that its reader (an embedding, a loss) accepts."""
    numbers, feeds = np.random.default_rng(seed), {}
    for node in graph:
        if node.operator.kind != "input":
            continue
        spec = node.outputs[0].spec
        if spec.differentiable:
            feeds[node.name] = numbers.normal(size=spec.shape).astype(spec.dtype)
        else:
            feeds[node.name] = numbers.integers(0, _below(graph, node), spec.shape).astype(spec.dtype)
    return feeds


def _below(graph: OperatorGraph, start: Node) -> int:
    """The least number that some reader of an input of whole numbers cannot take; 2 if none says."""
    names, limits = {tensor.name for tensor in start.outputs}, []
    for node in graph:
        read = [i for i, tensor in enumerate(node.inputs) if tensor.name in names]
        if not read:
            continue
        if (below := node.operator.integers_below(node.specs)) is not None:
            limits.append(below)
        elif node.operator.kind in _SHAPES:
            names |= {tensor.name for tensor in node.outputs}
    return min(limits, default=2)
