"""Sizes of a decoder, read from its operators: what frameworks with networks of their own are told of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isclose

import numpy as np

from taskflow.graph import Node, OperatorGraph
from taskflow.mapper import block_of
from taskflow.operators.rotary import Rotary, frequencies
from taskflow.operators.top_k import TopK
from taskflow.operators.top_k_routing import TopKRouting

PRODUCTS = ("linear", "expert_linear", "routed_linear")
NORMS = ("layer_norm", "rms_norm")
LAYOUT = ("reshape", "transpose", "cast", "split", "narrow")  # kinds that move numbers and compute none
AROUND = (*NORMS, *LAYOUT, "input", "embedding", "add", "add_weight", "constant", "dropout", "linear", "class_blocks", "scale",
          "cross_entropy", "cross_entropy_of_blocks", "reduce")  # before the first layer and after the last  # fmt: skip
LLAMA = (1.0, 4.0, 8192)  # low and high frequency factor and first context of Llama 3.1, which Megatron-LM has as constants
_GELU = r"(?:gelu|scale pow scale add scale tanh shift mul)"
_EXPERTS = r"(?:routed|expert)_linear"
_LAYER = re.compile(
    r"norm (?:(?:linear|rotary|scale|norm) )+(?:(?:flash_attention )+(?:merge_attention )?|matmul softmax matmul )linear add norm "
    rf"(?:(?P<plain>linear {_GELU} linear)|(?P<gated>linear (?:linear )?swiglu linear)"
    r"|linear (?P<router>top_k_routing|softmax top_k(?P<shares> reduce pow mul)?) (?:expert_places )?(?:dispatch )?"
    rf"(?:{_EXPERTS} {_GELU} {_EXPERTS}|(?P<gates>{_EXPERTS} (?:{_EXPERTS} )?swiglu {_EXPERTS})) (?:einsum|combine)"
    r"(?P<balance> scale reduce)?) add "
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class DecoderSizes:
    """Sizes of a network of layers with causal self-attention. ``inner``: width of the feed-forward layers, of each expert.
    ``experts``: 0: none. ``chosen``: of them for each token, in ``chosen_groups`` of ``expert_groups``.
    ``shared``: weights of the chosen add up to 1. ``places``: what an expert has places for, in means of its tokens, 0: no limit.
    ``balance``: there is an auxiliary loss. ``theta``: base of rotary positions, None: there are none. ``stretch``: Llama 3.1's
    factor of their waves, 0: none. ``neighbours``: how they pair. ``positions``: rows of a table of positions, 0: none. ``tied``:
    the last layer has the embedding's weights. ``head_norms``: queries and keys are normalised. ``dropout``: of the embedding and
    of what layers add. ``attention_dropout``: of scores."""

    layers: int
    hidden: int
    steps: int
    vocabulary: int
    heads: int
    key_heads: int
    head_size: int
    inner: int
    gated: bool
    rms: bool
    eps: float
    bias: bool
    head_bias: bool
    head_norms: bool
    theta: float | None
    stretch: float
    neighbours: bool
    positions: int
    experts: int
    chosen: int
    expert_groups: int
    chosen_groups: int
    shared: bool
    places: float
    balance: bool
    tied: bool
    dropout: float
    attention_dropout: float

    @property
    def parameters(self) -> int:
        """Return the number of weights of a network of these sizes."""
        norm = self.hidden * (1 if self.rms else 2)
        queries, keys = self.heads * self.head_size, self.key_heads * self.head_size
        attention = self.hidden * (2 * queries + 2 * keys) + (queries + 2 * keys) * (self.bias or self.head_bias)
        heads = 2 * self.head_size * (1 if self.rms else 2) * self.head_norms
        rows = self.inner * (2 if self.gated else 1)
        feed = self.hidden * (rows + self.inner) + (rows + self.hidden) * self.bias
        feed = feed * self.experts + self.hidden * self.experts if self.experts else feed
        layer = 2 * norm + attention + self.hidden * self.bias + heads + feed
        tables = self.vocabulary * (1 if self.tied else 2) + self.positions
        return self.layers * layer + norm + self.hidden * tables


def sizes_of(graph: OperatorGraph) -> DecoderSizes:
    """Return the sizes of a decoder whose layers are all alike, and are those of GPT, Llama or Mixtral. Raises ValueError that says
    what is otherwise: then these sizes, and what such frameworks have flags for, would name another network."""
    layers: dict[str, list[Node]] = {}
    around: list[Node] = []
    for node in graph:
        layer = block_of(node.name)
        (layers.setdefault(layer, []) if layer and layer != node.name else around).append(node)
    if not layers:
        raise ValueError("no layer has a number in its name")
    every = {_of_layer(graph, nodes) for nodes in layers.values()}
    if len(every) != 1:
        raise ValueError("layers are not all alike")
    tables = [node for node in graph if node.operator.kind == "embedding"]
    shape, last = graph.nodes[0].space.shape, next((node for node in reversed(list(graph)) if node.parameters), None)
    if not tables or len(shape) < 2 or last is None:
        raise ValueError("there is no table of words in front of the layers")
    if (odd := next((node for node in around if node.operator.kind not in AROUND or _scales(node, graph)), None)) is not None:
        raise ValueError(f"{odd.name} ({odd.operator.kind}) is beside the layers")
    (vocabulary, hidden), one = tables[0].parameters[0].spec.shape, every.pop()
    positions = sum(
        parameter.spec.rect.volume // hidden for node in around for parameter in node.parameters
        if node.operator.kind in ("embedding", "add_weight") and parameter.name != tables[0].parameters[0].name
    )
    found = replace(
        one, layers=len(layers), hidden=hidden, steps=shape[1], vocabulary=vocabulary, positions=positions,
        head_size=one.head_size or hidden // one.heads,
        tied=last.parameters[0].name == tables[0].parameters[0].name, dropout=_dropout(graph, len(layers)),
    )
    counted = sum(parameter.spec.rect.volume for parameter in graph.parameters)
    if found.parameters != counted:
        raise ValueError(f"it has {counted:,} parameters, and a network of such layers and sizes {found.parameters:,}")
    return found


def _scales(node: Node, graph: OperatorGraph) -> bool:
    """True if an operator beside the layers multiplies words or scores. What multiplies an auxiliary loss does not."""
    wide = any(len(graph.nodes[tensor.node].space.shape) > 1 for tensor in node.inputs)
    return wide and node.operator.kind in ("scale", "reduce")


def _source(graph: OperatorGraph, number: int) -> Node:
    """The operator whose numbers a tensor of an operator has, in whatever layout, and with whatever share dropped."""
    node = graph.nodes[number]
    while node.operator.kind in (*LAYOUT, "dropout"):
        node = graph.nodes[node.inputs[0].node]
    return node


def _dropout(graph: OperatorGraph, layers: int) -> float:
    """The share that is dropped behind the embedding and both parts of each layer, with which Megatron-LM knows one number."""
    shares = [
        node.operator.p for node in graph  # type: ignore[attr-defined]
        if node.operator.kind == "dropout" and graph.nodes[node.inputs[0].node].operator.kind != "softmax"
    ]
    if len({*shares}) > 1 or (shares and shares[0] and len(shares) != 2 * layers + 1):
        raise ValueError("dropout is not the same behind the embedding and in all layers")
    return shares[0] if shares else 0.0


def _of_layer(graph: OperatorGraph, nodes: Sequence[Node]) -> DecoderSizes:
    """What a layer says. Raises ValueError if it is another than that of GPT, Llama or Mixtral."""
    name = block_of(nodes[0].name)
    work = [node for node in nodes if node.operator.kind not in (*LAYOUT, "dropout")]
    kinds = "".join(("norm" if node.operator.kind in NORMS else node.operator.kind) + " " for node in work)
    match = _LAYER.fullmatch(kinds)
    if match is None:
        raise ValueError(f"{name} is not attention and feed-forward layers as GPT, Llama and Mixtral have them: {kinds.strip()}")
    return _matched(graph, name, work, match)


def _matched(graph: OperatorGraph, name: str, work: Sequence[Node], match: re.Match[str]) -> DecoderSizes:
    norms = [node for node in work if node.operator.kind in NORMS]
    first, second, last = norms[0], norms[-1], work[-1]
    middle = _source(graph, second.inputs[0].node)
    begin = _source(graph, first.inputs[0].node)
    reads = {_source(graph, tensor.node).number for tensor in middle.inputs}
    if middle.operator.kind != "add" or begin.number not in reads or middle.number not in {
        _source(graph, tensor.node).number for tensor in last.inputs
    }:
        raise ValueError(f"{name} does not add attention first, and the feed-forward layer of the sum then")
    attention = next(node for node in work if node.operator.kind in ("flash_attention", "softmax"))
    heads, key_heads, head_size = _heads(attention, name)
    scale = getattr(attention.operator, "scale", 1.0)
    for node in work:
        if node.operator.kind == "scale" and node.number < attention.number:
            scale *= node.operator.factor  # type: ignore[attr-defined]
    projections = [node for node in work if node.operator.kind == "linear" and node.number < attention.number]
    size = head_size or projections[0].space.shape[-2] // heads
    if not isclose(scale, size ** -0.5, rel_tol=1e-3):
        raise ValueError(f"{name} multiplies scores of attention by {scale:g}, not by {size ** -0.5:g}, the root of 1 / {size}")
    products = [node for node in work if node.operator.kind in PRODUCTS and node.number > attention.number]
    theta, stretch, neighbours = _rotary(work, size, name)
    experts, final = match["router"] is not None, products[-1]
    routing = next((node for node in work if isinstance(node.operator, TopKRouting | TopK)), None)
    chosen = routing.operator.k if routing is not None else 0  # type: ignore[attr-defined]
    groups = (r.expert_groups, r.chosen_groups) if routing and isinstance(r := routing.operator, TopKRouting) else (1, 1)
    count = {dim.name: dim.size for dim in final.dims}.get("e", 0) if experts else 0
    return DecoderSizes(
        layers=0, hidden=0, steps=0, vocabulary=0, heads=heads, key_heads=key_heads, head_size=head_size,
        inner=final.inputs[0].spec.shape[-1], gated=match["gated"] is not None or match["gates"] is not None,
        rms=first.operator.kind == "rms_norm", eps=getattr(first.operator, "eps", 0.0),
        bias=any(len(node.parameters) > 1 for node in products),
        head_bias=any(len(node.parameters) > 1 for node in projections), head_norms=len(norms) == 4,
        theta=theta, stretch=stretch, neighbours=neighbours, positions=0, experts=count, chosen=chosen,
        expert_groups=groups[0], chosen_groups=groups[1],
        shared=match["shares"] is not None or getattr(routing and routing.operator, "normalize", False),
        places=_places(work, routing, count), balance=match["balance"] is not None, tied=False, dropout=0.0,
        attention_dropout=_attention_dropout(graph, attention),
    )


def _places(work: Sequence[Node], routing: Node | None, experts: int) -> float:
    """What each expert has places for, in means of the tokens that choose it; 0: no limit."""
    capacity = next((c for node in work if (c := getattr(node.operator, "capacity", None)) is not None), None)
    if routing is None or capacity is None:
        return 0.0
    tokens = routing.inputs[0].spec.shape[1]
    return float(capacity * experts / (tokens * routing.operator.k))  # type: ignore[attr-defined]


def _attention_dropout(graph: OperatorGraph, attention: Node) -> float:
    behind = (node for node in graph if node.operator.kind == "dropout" and node.inputs[0].node == attention.number)
    return next((node.operator.p for node in behind), getattr(attention.operator, "dropout", 0.0))  # type: ignore[attr-defined]


def _heads(node: Node, name: str) -> tuple[int, int, int]:
    """Heads of queries and of keys and their size, of an operator that is causal attention, or its scores' softmax (which
    does not know the size: 0)."""
    if not getattr(node.operator, "causal", False):
        raise ValueError(f"{name} attends to later positions")
    if getattr(node.operator, "window", None) is not None:
        raise ValueError(f"{name} attends to a window of {node.operator.window} positions")  # type: ignore[attr-defined]
    if node.operator.kind == "flash_attention":
        queries, keys = (tensor.spec.shape for tensor in node.inputs[:2])
        return queries[2], keys[2], queries[3]
    return node.space.shape[1], node.space.shape[1], 0


def _rotary(work: Sequence[Node], size: int, name: str) -> tuple[float | None, float, bool]:
    """Base, Llama 3.1's factor (0: none) and pairs of a layer's rotary positions; None for the base if it has none."""
    of = [node for node in work if isinstance(node.operator, Rotary)]
    if not of:
        return None, 0.0, False
    operator = of[0].operator
    assert isinstance(operator, Rotary)
    if len({node.operator for node in of}) > 1 or operator.offset or operator.factor != 1 or of[0].inputs[0].spec.shape[-1] != size:
        raise ValueError(f"{name} turns a part of queries and keys, or not both alike")
    if operator.rates is None and operator.scaling is None:
        return operator.theta, 0.0, operator.neighbours
    if operator.rates is None and operator.scaling is not None and operator.scaling[1:] == LLAMA:
        return operator.theta, operator.scaling[0], operator.neighbours
    for factor in (0.0, 8.0, 32.0) if operator.rates is not None and size > 2 else ():
        slowest = operator.rates[-1] * (factor or 1)  # type: ignore[index]
        theta = float(f"{slowest ** (-size / (size - 2)):.5g}")
        if np.allclose(operator.rates, frequencies(size, theta, (factor, *LLAMA) if factor else None), rtol=1e-4):  # type: ignore[arg-type]
            return theta, factor, operator.neighbours
    raise ValueError(f"{name} has rotary positions of other wave lengths than Llama's")
