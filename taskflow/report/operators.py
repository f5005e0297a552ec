"""Operators: configuration, cost of tasks, and bytes moved of each, as JSON values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskflow.graph import Node, OperatorGraph
from taskflow.mapper import OpConfig, Strategy
from taskflow.optimizer.evaluate import Shown, ShownStep
from taskflow.report.spans import BACKWARD, CATEGORIES, FORWARD, MESSAGES, Spans

_SOAP = {"sample": "S", "attribute": "A", "parameter": "P", "reduction": "R"}


def operator_values(
    graph: OperatorGraph, strategy: Strategy, spans: Spans, operator: NDArray[np.int64], step: ShownStep
) -> list[dict[str, Any]]:
    """Return one value for each operator, in the graph's order. ``seconds`` and ``bytes`` are by category, summed over its
    tasks (so over all devices, also where one replica is shown). ``piece_seconds``: the longest forward and backward task."""
    count, kinds = len(graph), len(CATEGORIES)
    known = (operator >= 0) & spans.first
    place = operator[known] * kinds + spans.category[known]
    took, alike = (spans.end - spans.start)[known], step.alike[spans.task[known]]
    seconds = np.bincount(place, took * alike, count * kinds).reshape(count, kinds)
    bytes_of = np.bincount(spans.task, np.where(np.isin(spans.category, MESSAGES), spans.nbytes * step.shown.replicas, 0))
    moved = bytes_of[spans.task[known]]
    nbytes = np.bincount(place, moved, count * kinds).reshape(count, kinds)
    tasks = np.bincount(place, alike, count * kinds).astype(np.int64).reshape(count, kinds)
    own = {id(config): own_pieces(config, step.shown) for config in {id(c): c for c in strategy.configs.values()}.values()}
    at = {p: i for i, p in enumerate(step.shown.processors)}
    longest = np.zeros((count, kinds))
    np.maximum.at(longest.reshape(-1), place, took)
    return [
        {
            **_configuration(node, strategy, own[id(strategy[node.name])], at),
            "seconds": seconds[node.number].tolist(),
            "bytes": nbytes[node.number].astype(np.int64).tolist(),
            "tasks": tasks[node.number].tolist(),
            "piece_seconds": [float(longest[node.number][FORWARD]), float(longest[node.number][BACKWARD])],
        }
        for node in graph
    ]


def _configuration(node: Node, strategy: Strategy, own: OwnPieces, at: Mapping[int, int]) -> dict[str, Any]:
    config = strategy[node.name]
    layer = node.parameters[0].layer if node.parameters else None
    return {
        "name": node.name,
        "kind": node.operator.kind,
        "dims": [[dim.name, dim.size, _SOAP[dim.soap.value], degree] for dim, degree in zip(node.dims, config.degrees)],
        "cuts": [list(c) for c in config.partition(node).cuts] if config.weights else None,  # else even ones
        "grid": list(own.grid),
        "pieces": own.pieces,
        "processors": [at[p] for p in own.processors],
        "configuration": config.describe(node) if own.pieces is None else config.describe(node).partition(" @ ")[0],
        "inputs": list(dict.fromkeys(t.node for t in node.inputs)),
        "outputs": [f"{t.name} {t.spec}" for t in node.outputs],
        "parameters": sum(p.spec.rect.volume for p in node.parameters),
        "parameter_bytes": sum(p.spec.nbytes for p in node.parameters),
        "layer": layer,
        "sync": str(strategy.sync(layer)) if layer is not None else None,
        "sums": strategy.sums.value if strategy.partial(node) else None,
        "flops": int(node.operator.flops(node.specs, node.space)),
    }


@dataclass(frozen=True, slots=True)
class OwnPieces:
    """The pieces of an operator on shown devices. ``grid``: how many lie along each dimension. ``pieces``: their numbers (None: all
    are shown). ``processors``: as of `OpConfig`."""

    grid: tuple[int, ...]
    pieces: list[int] | None
    processors: tuple[int, ...]


def own_pieces(config: OpConfig, shown: Shown) -> OwnPieces:
    """Return the pieces that are shown."""
    if len(shown.processors) == len(shown.machine.processors):
        return OwnPieces(config.degrees, None, config.processors)
    processors = np.asarray(config.processors)
    own = np.flatnonzero(np.isin(processors, shown.processors))
    pieces = own // config.copies
    along = tuple(len(np.unique(of)) for of in np.unravel_index(pieces, config.degrees)) if config.degrees else ()
    grid = along if prod(along) * config.copies == len(own) else (len(own),)
    return OwnPieces(grid, pieces.tolist(), tuple(processors[own].tolist()))


def shared_layers(graph: OperatorGraph) -> bool:
    """True if operators share weights: an unrolled recurrent network, which is drawn by layer and step."""
    layers = [node.parameters[0].layer for node in graph if node.parameters]
    return len(layers) > len(set(layers))
