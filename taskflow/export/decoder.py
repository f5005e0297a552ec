"""Sizes of a decoder, read from its operators: what frameworks with networks of their own are told of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from taskflow.graph import Node, OperatorGraph
from taskflow.mapper import numbered_layer
from taskflow.operators.rotary import Rotary
from taskflow.operators.top_k_routing import TopKRouting

PRODUCTS = ("linear", "expert_linear", "routed_linear")
NORMS = ("layer_norm", "rms_norm")


@dataclass(frozen=True, slots=True)
class DecoderSizes:
    """Sizes of a network of layers with causal self-attention. ``inner``: width of the feed-forward layers, of each expert;
    ``experts``: 0: none; ``chosen``: of them for each token; ``theta``: base of rotary positions, None: there are none;
    ``tied``: the last layer has the embedding's weights."""

    heads: int
    key_heads: int
    head_size: int
    inner: int
    gated: bool
    rms: bool
    eps: float
    bias: bool
    theta: float | None
    experts: int
    chosen: int
    layers: int = 0
    hidden: int = 0
    steps: int = 0
    vocabulary: int = 0
    tied: bool = False


def sizes_of(graph: OperatorGraph) -> DecoderSizes | None:
    """Return the sizes of a decoder whose layers are all alike; None of any other network."""
    layers: dict[str, list[Node]] = {}
    for node in graph:
        if (layer := numbered_layer(node.name)) and layer != node.name:
            layers.setdefault(layer, []).append(node)
    every = {_of_layer(nodes) for nodes in layers.values()}
    tables = [node for node in graph if node.operator.kind == "embedding"]
    shape, last = graph.nodes[0].space.shape, next((node for node in reversed(list(graph)) if node.parameters), None)
    if len(every) != 1 or not tables or len(shape) < 2 or last is None:
        return None
    one = every.pop()
    vocabulary, hidden = tables[0].parameters[0].spec.shape
    return one and replace(
        one, layers=len(layers), hidden=hidden, steps=shape[1], vocabulary=vocabulary,
        head_size=one.head_size or hidden // one.heads,
        tied=last.parameters[0].name == tables[0].parameters[0].name,
    )


def _of_layer(nodes: Sequence[Node]) -> DecoderSizes | None:
    """What a layer says, of its first attention and its last product; None if it has none of one of these."""
    attention = next((found for node in nodes if (found := _attention(node)) is not None), None)
    norm = next((node for node in nodes if node.operator.kind in NORMS), None)
    products = [node for node in nodes if node.operator.kind in PRODUCTS and node.parameters]
    if attention is None or norm is None or not products:
        return None
    sizes, last = {dim.name: dim.size for dim in products[-1].dims}, products[-1]
    heads, key_heads, head_size = attention
    return DecoderSizes(
        heads, key_heads, head_size, last.inputs[0].spec.shape[-1],
        any(node.operator.kind == "swiglu" for node in nodes), norm.operator.kind == "rms_norm",
        getattr(norm.operator, "eps", 0.0), any(len(node.parameters) > 1 for node in products),
        next((node.operator.theta for node in nodes if isinstance(node.operator, Rotary)), None),
        sizes.get("e", 0) if last.operator.kind != "linear" else 0,
        next((node.operator.k for node in nodes if isinstance(node.operator, TopKRouting)), 0),
    )


def _attention(node: Node) -> tuple[int, int, int] | None:
    """Heads of queries and of keys and their size, of an operator that is causal attention, or its scores' softmax (which
    does not know the size: 0)."""
    if not getattr(node.operator, "causal", False):
        return None
    if node.operator.kind == "flash_attention":
        queries, keys = (tensor.spec.shape for tensor in node.inputs[:2])
        return queries[2], keys[2], queries[3]
    return (node.space.shape[1], node.space.shape[1], 0) if node.operator.kind == "softmax" else None
