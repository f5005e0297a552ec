"""Gather units: the layers of a block, whose weights are gathered, and whose gradients are summed, together."""

from __future__ import annotations

from taskflow.graph import OperatorGraph
from taskflow.mapper.layers import numbered_layer
from taskflow.mapper.strategy import Strategy


def blocks_of(graph: OperatorGraph) -> dict[str, str]:
    """Return the block of each layer with weights: the operators whose names share a number (``h.3``), if all that read the
    weights are among them. Other layers (an embedding, the last norm, weights that several blocks share) are in none."""
    readers: dict[str, set[str]] = {}
    for node in graph:
        if node.parameters:
            for layer in {parameter.layer for parameter in node.parameters}:
                readers.setdefault(layer, set()).add(numbered_layer(node.name))
    return {layer: next(iter(of)) for layer, of in readers.items() if len(of) == 1 and "" not in of}


def gather_units(graph: OperatorGraph, strategy: Strategy) -> dict[str, str]:
    """Return, by layer, the name of the unit that it is gathered with, for layers that are gathered in blocks: ``h.3.*``. A
    block whose layers are synchronised in several ways, or are in several stages, is several units. Layers that are not named
    are gathered by themselves. So are all under a schedule that computes gradients of weights in passes of their own, since
    those of a block come in two passes."""
    pipeline = strategy.pipeline
    if not any(sync.in_blocks for sync in strategy.syncs.values()):
        return {}
    if pipeline is not None and pipeline.schedule.weights_apart:
        return {}
    stages: dict[str, set[int]] = {}
    for node in graph:
        for parameter in node.parameters:
            stages.setdefault(parameter.layer, set()).add(0 if pipeline is None else pipeline.stage(node.name))
    found: dict[str, str] = {}
    kinds: dict[str, list[object]] = {}
    for layer, block in blocks_of(graph).items():
        sync = strategy.sync(layer)
        if sync.in_blocks:
            of_block, kind = kinds.setdefault(block, []), (sync, stages.get(layer))
            if kind not in of_block:
                of_block.append(kind)
            number = of_block.index(kind)
            found[layer] = f"{block}.*{number or ''}"
    return found
