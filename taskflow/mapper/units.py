"""Units: layers whose weights are gathered, and whose gradients are summed, together: those of a block, or of a bucket."""

from __future__ import annotations

from taskflow.graph import Node, OperatorGraph
from taskflow.mapper.blocks import block_of
from taskflow.mapper.buckets import BucketLayer, divided
from taskflow.mapper.strategy import Strategy


def blocks_of(graph: OperatorGraph) -> dict[str, str]:
    """Return the block of each layer with weights: the operators whose names share a number (``h.3``), if all that read the
    weights are among them. Other layers (an embedding, the last norm, weights that several blocks share) are in none. Nor are
    weights of which something is made without samples: that is done once in a step, and their gradients come after all passes."""
    readers: dict[str, set[str]] = {}
    for node in graph:
        if node.parameters:
            for layer in {parameter.layer for parameter in node.parameters}:
                readers.setdefault(layer, set()).add(block_of(node.name))
    late = summed_last(graph)
    return {layer: next(iter(of)) for layer, of in readers.items() if len(of) == 1 and "" not in of and layer not in late}


def summed_last(graph: OperatorGraph) -> frozenset[str]:
    """Return the layers whose gradients come after all passes: of their weights something is made without samples."""
    return frozenset(parameter.layer for node in graph if node.of_weights for parameter in node.parameters)


def units_of(graph: OperatorGraph, strategy: Strategy) -> dict[str, str]:
    """Return, by layer, the name of the block (`gather_units`) or the bucket (`bucket_units`) that it is in, if it is in one."""
    return {**gather_units(graph, strategy), **bucket_units(graph, strategy)}


def bucket_units(graph: OperatorGraph, strategy: Strategy) -> dict[str, str]:
    """Return, by layer, the name of its bucket, for layers that share one (`CollectiveSync.bucket`): ``h.2.q..h.3.mlp``, of the
    first and the last of them. A layer's size is that of the weights that the first piece of each of its operators reads. Weights
    of which something is made without samples have buckets of their own, the last ones: their gradients come after all passes."""
    if not any(sync.bucket for sync in strategy.syncs.values()):
        return {}
    pipeline, blocks = strategy.pipeline, blocks_of(graph)
    sizes: dict[str, int] = {}
    stages: dict[str, set[int]] = {}
    seen: set[str] = set()
    for node in graph:
        for parameter, elements in zip(node.parameters, _read_by_first(node, strategy) if node.parameters else ()):
            if not parameter.trained or (parameter.layer not in sizes and not strategy.sync(parameter.layer).bucket):
                continue
            stages.setdefault(parameter.layer, set()).add(0 if pipeline is None else pipeline.stage(node.name))
            sizes[parameter.layer] = sizes.get(parameter.layer, 0) + (elements if parameter.name not in seen else 0)
            seen.add(parameter.name)
    layers, late = [], summed_last(graph)
    for layer in sorted(reversed(sizes), key=late.__contains__):
        sync = strategy.sync(layer)
        kind = sync, tuple(sorted(stages[layer])), layer in late
        layers.append(BucketLayer(layer, blocks.get(layer, layer), sizes[layer], kind, sync.bucket))
    found = [bucket for bucket in divided(layers) if len(bucket) > 1]
    return {layer.name: f"{bucket[-1].name}..{bucket[0].name}" for bucket in found for layer in bucket}


def _read_by_first(node: Node, strategy: Strategy) -> list[int]:
    """Elements of each weight that the first piece of an operator reads."""
    first = strategy[node.name].partition(node).rect((0,) * len(node.dims))
    return [rect.volume for rect in node.reads(first).weights]


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
