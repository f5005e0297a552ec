"""Transformer: an encoder and a decoder of attention layers (Vaswani et al., "Attention is all you need", arXiv
1706.03762), normalised after each sum as published. Both embeddings and the last layer share one matrix."""

from __future__ import annotations

from dataclasses import dataclass

from taskflow import operators as ops
from taskflow.graph import OperatorGraph
from taskflow.operators.tensor import Tensor


@dataclass(frozen=True, slots=True)
class TransformerConfig:
    """Sizes of the network; the defaults are the base model's. ``batch`` is of the whole machine; ``steps`` of source and
    of target sentences; ``layers`` of the encoder and of the decoder; ``inner`` of the feed-forward layers."""

    batch: int = 64
    steps: int = 40
    vocabulary: int = 37_000
    hidden: int = 512
    inner: int = 2048
    heads: int = 8
    layers: int = 6
    dropout: float = 0.1
    label_smoothing: float = 0.1

    @staticmethod
    def small() -> TransformerConfig:
        """The same layers, narrow and short."""
        return TransformerConfig(batch=4, steps=5, vocabulary=17, hidden=8, inner=12, heads=2, layers=2)


def transformer(config: TransformerConfig, dtype: str = "float32") -> OperatorGraph:
    """Inputs ``source``, ``target`` (what the decoder is given) and ``labels`` (what it shall say), all (batch, steps)
    int64; minimises the mean cross-entropy of the labels in nats, with smoothed labels; those of -100 add nothing."""
    c = config
    graph = OperatorGraph(dtype, "Transformer")
    source, target, labels = (
        ops.input(graph, (c.batch, c.steps), "int64", name=name) for name in ("source", "target", "labels")
    )
    std = c.hidden**-0.5
    words = ops.embedding(source, c.vocabulary, c.hidden, std=std, name="embedding")
    table = graph.parameters_of(words)
    build = _Layers(c)
    x = build.start(words, "encoder")
    for i in range(c.layers):
        x = build.attend(x, x, f"encoder.layers.{i}.self_attn")
        x = build.feed_forward(x, f"encoder.layers.{i}")
    words = ops.embedding(target, c.vocabulary, c.hidden, std=std, name="decoder.embedding", parameters=table)
    y = build.start(words, "decoder")
    for i in range(c.layers):
        y = build.attend(y, y, f"decoder.layers.{i}.self_attn", causal=True)
        y = build.attend(y, x, f"decoder.layers.{i}.multihead_attn")
        y = build.feed_forward(y, f"decoder.layers.{i}")
    scores = ops.linear(y, c.vocabulary, False, name="softmax", parameters=table)
    graph.minimize(ops.cross_entropy(scores, labels, label_smoothing=c.label_smoothing, name="loss"))
    return graph


@dataclass(frozen=True, slots=True)
class _Layers:
    config: TransformerConfig

    def start(self, words: Tensor, name: str) -> Tensor:
        """Embedded words (N, T, H), scaled to a variance of one, with their positions."""
        x = ops.scale(words, self.config.hidden**0.5, name=f"{name}.scale")
        return self._drop(ops.positional_encoding(x, name=f"{name}.positions"), f"{name}.drop")

    def attend(self, x: Tensor, memory: Tensor, name: str, causal: bool = False) -> Tensor:
        """Attention of x to memory, added to x, normalised."""
        y = ops.multi_head_attention(x, memory, self.config.heads, causal=causal, name=name)
        return self._join(x, y, name)

    def feed_forward(self, x: Tensor, name: str) -> Tensor:
        """Two linear layers, added to x, normalised."""
        y = ops.relu(ops.linear(x, self.config.inner, name=f"{name}.linear1"), name=f"{name}.relu")
        return self._join(x, ops.linear(y, self.config.hidden, name=f"{name}.linear2"), f"{name}.feed_forward")

    def _join(self, x: Tensor, y: Tensor, name: str) -> Tensor:
        total = ops.add(x, self._drop(y, f"{name}.drop"), name=f"{name}.add")
        return ops.layer_norm(total, name=f"{name}.norm")

    def _drop(self, x: Tensor, name: str) -> Tensor:
        return ops.dropout(x, self.config.dropout, name=name) if self.config.dropout else x
