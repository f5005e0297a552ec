"""Operators: configuration, cost of tasks, and bytes moved of each, as JSON values."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskflow.graph import Node, OperatorGraph
from taskflow.mapper import Strategy
from taskflow.report.spans import BACKWARD, CATEGORIES, FORWARD, MESSAGES, Spans

_SOAP = {"sample": "S", "attribute": "A", "parameter": "P", "reduction": "R"}


def operator_values(
    graph: OperatorGraph, strategy: Strategy, spans: Spans, operator: NDArray[np.int64]
) -> list[dict[str, Any]]:
    """Return one value for each operator, in the graph's order. ``seconds`` and ``bytes`` are by category, summed over its
    tasks (so over all devices). ``piece_seconds``: the longest forward and backward task."""
    count, kinds = len(graph), len(CATEGORIES)
    known = (operator >= 0) & spans.first
    place = operator[known] * kinds + spans.category[known]
    took = (spans.end - spans.start)[known]
    seconds = np.bincount(place, took, count * kinds).reshape(count, kinds)
    bytes_of = np.bincount(spans.task, np.where(np.isin(spans.category, MESSAGES), spans.nbytes, 0))
    moved = bytes_of[spans.task[known]]
    nbytes = np.bincount(place, moved, count * kinds).reshape(count, kinds)
    tasks = np.bincount(place, minlength=count * kinds).reshape(count, kinds)
    longest = np.zeros((count, kinds))
    np.maximum.at(longest.reshape(-1), place, took)
    return [
        {
            **_configuration(node, strategy),
            "seconds": seconds[node.number].tolist(),
            "bytes": nbytes[node.number].astype(np.int64).tolist(),
            "tasks": tasks[node.number].tolist(),
            "piece_seconds": [float(longest[node.number][FORWARD]), float(longest[node.number][BACKWARD])],
        }
        for node in graph
    ]


def _configuration(node: Node, strategy: Strategy) -> dict[str, Any]:
    config = strategy[node.name]
    layer = node.parameters[0].layer if node.parameters else None
    return {
        "name": node.name,
        "kind": node.operator.kind,
        "dims": [[dim.name, dim.size, _SOAP[dim.soap.value], degree] for dim, degree in zip(node.dims, config.degrees)],
        "cuts": [list(c) for c in config.partition(node).cuts] if config.weights else None,  # else even ones
        "processors": list(config.processors),
        "configuration": config.describe(node),
        "inputs": list(dict.fromkeys(t.node for t in node.inputs)),
        "outputs": [f"{t.name} {t.spec}" for t in node.outputs],
        "parameters": sum(p.spec.rect.volume for p in node.parameters),
        "parameter_bytes": sum(p.spec.nbytes for p in node.parameters),
        "layer": layer,
        "sync": str(strategy.sync(layer)) if layer is not None else None,
        "sums": strategy.sums.value if strategy.partial(node) else None,
        "flops": int(node.operator.flops(node.specs, node.space)),
    }


def shared_layers(graph: OperatorGraph) -> bool:
    """True if operators share weights: an unrolled recurrent network, which is drawn by layer and step."""
    layers = [node.parameters[0].layer for node in graph if node.parameters]
    return len(layers) > len(set(layers))
