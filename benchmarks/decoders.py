"""Decoders whose steps others measured, and their steps under a plan, priced as a search prices the plans of its grid.

A row names the sizes of a network, a machine, a program and a plan in notation. The grid adds up one device's part of each operator
(`taskflow.optimizer.grid`), with the costs that evaluators ask, so a row takes some hundredths of a second where a whole step takes
seconds.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from functools import lru_cache

from taskflow import operators as ops
from taskflow.graph import OperatorGraph
from taskflow.machine import Cluster
from taskflow.mapper import parse_plan
from taskflow.mapper.hybrid import samples
from taskflow.models.llama import LlamaConfig, attend
from taskflow.models.vocabulary import blocks_of
from taskflow.optimizer.grid import GraphTables, PlanPrices, PlanSums, bytes_in_program
from taskflow.rules import Adam

MOST_TABLES = 6  # of networks on machines, that are kept


@dataclass(frozen=True, slots=True)
class Decoder:
    """Sizes of a decoder. ``kind``: ``llama``, or ``gpt`` (layer normalisation, GELU, no biases, no dropout, positions that cost
    nothing). ``tied``: the scores' weights are the embedding's."""

    kind: str
    layers: int
    hidden: int
    heads: int
    key_heads: int
    inner: int
    vocabulary: int
    sequence: int
    tied: bool = False

    @property
    def weights(self) -> float:
        """Number of weights, but for those of norms."""
        each = self.hidden // self.heads
        attention = self.hidden * each * (2 * self.heads + 2 * self.key_heads)
        shared = (3 if self.kind == "llama" else 2) * self.hidden * self.inner
        return float((attention + shared) * self.layers + (1 if self.tied else 2) * self.vocabulary * self.hidden)


@lru_cache(maxsize=16)
def network(decoder: Decoder, batch: int) -> OperatorGraph:
    """Build a decoder in bfloat16. Minimises the mean cross-entropy of the next token."""
    d, graph = decoder, OperatorGraph("bfloat16", decoder.kind)
    tokens, targets = (ops.input(graph, (batch, d.sequence), "int64", name=name) for name in ("tokens", "targets"))
    words = x = ops.embedding(tokens, d.vocabulary, d.hidden, name="embed_tokens")
    sizes = LlamaConfig(
        batch=batch, steps=d.sequence, vocabulary=d.vocabulary, hidden=d.hidden, inner=d.inner, heads=d.heads,
        key_heads=d.key_heads, layers=d.layers,
    )
    for i in range(d.layers):
        name = f"layers.{i}"
        if d.kind == "llama":
            x = attend(sizes, x, name)
            y = ops.rms_norm(x, 1e-5, name=f"{name}.post_attention_layernorm")
            gate, up = (ops.linear(y, d.inner, False, name=f"{name}.mlp.{which}_proj") for which in ("gate", "up"))
            y = ops.swiglu(gate, up, name=f"{name}.mlp.act")
        else:
            x = _attend(d, x, name)
            y = ops.linear(ops.layer_norm(x, name=f"{name}.ln_2"), d.inner, False, name=f"{name}.mlp.up_proj")
            y = ops.gelu(y, "tanh", name=f"{name}.mlp.act")
        y = ops.linear(y, d.hidden, False, name=f"{name}.mlp.down_proj")
        x = ops.add(x, y, name=f"{name}.mlp.add")
    x = ops.rms_norm(x, 1e-5, name="norm") if d.kind == "llama" else ops.layer_norm(x, name="norm")
    shared = {"parameters": graph.parameters_of(words)} if d.tied else {}
    scores = ops.linear(x, d.vocabulary, False, name="lm_head", **shared)
    graph.minimize(ops.cross_entropy(scores, targets, blocks=blocks_of(d.vocabulary), name="loss"))
    return graph


def _attend(d: Decoder, x: ops.Tensor, name: str) -> ops.Tensor:
    """Add self-attention without rotary positions and biases."""
    y, each = ops.layer_norm(x, name=f"{name}.ln_1"), d.hidden // d.heads
    q, k, v = (
        ops.reshape(flat, (*flat.shape[:2], count, each), name=f"{name}.{which}_heads")
        for which, count in (("q", d.heads), ("k", d.key_heads), ("v", d.key_heads))
        for flat in (ops.linear(y, count * each, False, name=f"{name}.{which}_proj"),)
    )
    y = ops.reshape(ops.flash_attention(q, k, v, causal=True, name=f"{name}.attention"), x.shape, name=f"{name}.joined")
    return ops.add(x, ops.linear(y, d.hidden, False, name=f"{name}.o_proj"), name=f"{name}.attn.add")


@dataclass(slots=True)
class Priced:
    """Steps by their prices. The tables of the networks on machines that came last are kept."""

    _known: OrderedDict[object, PlanPrices] = field(default_factory=OrderedDict)

    def step(self, decoder: Decoder, batch: int, machine: Cluster, notation: str) -> tuple[float, float]:
        """Return the seconds of a step under a plan, and the bytes that the fullest device needs."""
        return self.of(network(decoder, batch), machine, notation)

    def of(self, graph: OperatorGraph, machine: Cluster, notation: str) -> tuple[float, float]:
        """Return the same of any network."""
        prices, plan = self._prices(graph, machine), parse_plan(notation)
        count = samples(graph) // ((plan.data or 1) * (plan.micro_batch or 1))
        return prices(plan, count), bytes_in_program(prices.sums, plan, count)

    def _prices(self, graph: OperatorGraph, machine: Cluster) -> PlanPrices:
        key = id(graph), machine  # prices keep the graph
        if key in self._known:
            self._known.move_to_end(key)
            return self._known[key]
        found = self._known[key] = PlanPrices(PlanSums(GraphTables(graph, machine), Adam()))
        if len(self._known) > MOST_TABLES:
            self._known.popitem(last=False)
        return found
