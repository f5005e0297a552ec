"""Llama: a decoder with RMS normalisation, rotary positions, grouped-query attention and gated feed-forward layers (Touvron et
al., arXiv 2302.13971; sizes: Grattafiori et al., "The Llama 3 herd of models", arXiv 2407.21783, table 3)."""

from __future__ import annotations

from dataclasses import dataclass

from taskflow import operators as ops
from taskflow.graph import OperatorGraph
from taskflow.models.vocabulary import blocks_of
from taskflow.operators.rotary import Scaling
from taskflow.operators.tensor import Tensor

STD = 0.02  # of the embedding at the beginning


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """Sizes of the network; the defaults are those of Llama 3.1 8B. ``batch`` is of the whole machine. ``steps``: tokens of
    context. ``inner``: width of the feed-forward layers. ``key_heads``: heads of keys and values, which the ``heads`` of
    queries share. ``window``: how many tokens back attention sees (None: all). ``key_blocks``: blocks of keys along which
    attention can be cut (None: it cannot). ``head_size``: features of a head (None: ``hidden`` / ``heads``)."""

    batch: int = 1
    steps: int = 8192
    vocabulary: int = 128_256
    hidden: int = 4096
    inner: int = 14_336
    heads: int = 32
    key_heads: int = 8
    layers: int = 32
    theta: float = 500_000.0
    scaling: Scaling | None = (8.0, 1.0, 4.0, 8192)
    eps: float = 1e-5
    window: int | None = None
    key_blocks: int | None = None
    head_size: int | None = None

    @staticmethod
    def small() -> LlamaConfig:
        """Return the same layers, narrow and short."""
        return LlamaConfig(batch=4, steps=6, vocabulary=17, hidden=8, inner=12, heads=4, key_heads=2, layers=2)


SIZES = {
    "8B": LlamaConfig(),
    "70B": LlamaConfig(hidden=8192, inner=28_672, heads=64, layers=80),
    "405B": LlamaConfig(hidden=16_384, inner=53_248, heads=128, layers=126),
}


def llama(config: LlamaConfig, dtype: str = "float32") -> OperatorGraph:
    """Build Llama. Inputs: ``tokens``, and ``targets``, the token after each, both (batch, steps) int64. Minimises the mean
    cross-entropy of the next token in nats. Names are those of the published weights."""
    c = config
    graph = OperatorGraph(dtype, "Llama")
    tokens, targets = (ops.input(graph, (c.batch, c.steps), "int64", name=name) for name in ("tokens", "targets"))
    x = ops.embedding(tokens, c.vocabulary, c.hidden, std=STD, name="embed_tokens")
    for i in range(c.layers):
        x = attend(c, x, f"layers.{i}")
        x = feed_forward(c, x, f"layers.{i}")
    score(graph, c, x, targets)
    return graph


def attend(c: LlamaConfig, x: Tensor, name: str) -> Tensor:
    """Add self-attention to x (N, T, H)."""
    each = c.head_size or c.hidden // c.heads
    y = ops.rms_norm(x, c.eps, name=f"{name}.input_layernorm")

    def heads(which: str, count: int) -> Tensor:
        flat = ops.linear(y, count * each, False, name=f"{name}.self_attn.{which}_proj")
        return ops.reshape(flat, (*flat.shape[:2], count, each), name=f"{name}.self_attn.{which}_heads")

    q, k = (
        ops.rotary(heads(which, count), c.theta, scaling=c.scaling, name=f"{name}.self_attn.{which}_rotary")
        for which, count in (("q", c.heads), ("k", c.key_heads))
    )
    y = ops.flash_attention(
        q, k, heads("v", c.key_heads), causal=True, window=c.window, key_blocks=c.key_blocks, name=f"{name}.self_attn.attention"
    )
    y = ops.reshape(y, (*x.shape[:2], c.heads * each), name=f"{name}.self_attn.joined")
    return ops.add(x, ops.linear(y, c.hidden, False, name=f"{name}.self_attn.o_proj"), name=f"{name}.self_attn.add")


def score(graph: OperatorGraph, c: LlamaConfig, x: Tensor, targets: Tensor) -> None:
    """Normalise x (N, T, H), compute scores of all words, and minimise the cross-entropy of ``targets``."""
    x = ops.rms_norm(x, c.eps, name="norm")
    scores = ops.linear(x, c.vocabulary, False, name="lm_head")
    graph.minimize(ops.cross_entropy(scores, targets, blocks=blocks_of(c.vocabulary), name="loss"))


def feed_forward(c: LlamaConfig, x: Tensor, name: str) -> Tensor:
    """Add the gated feed-forward layer to x (N, T, H)."""
    y = ops.rms_norm(x, c.eps, name=f"{name}.post_attention_layernorm")
    return ops.add(x, gated(y, c.inner, c.hidden, f"{name}.mlp"), name=f"{name}.mlp.add")


def gated(y: Tensor, inner: int, hidden: int, name: str) -> Tensor:
    """Two linear layers of ``inner`` features of y (N, T, H), one the gate of the other, and one back to ``hidden``."""
    gate, up = (ops.linear(y, inner, False, name=f"{name}.{which}_proj") for which in ("gate", "up"))
    return ops.linear(ops.swiglu(gate, up, name=f"{name}.act"), hidden, False, name=f"{name}.down_proj")
