"""Transformer: an encoder and a decoder of attention layers (Vaswani et al., "Attention is all you need", arXiv
1706.03762), normalised after each sum as published. Both embeddings and the last layer share one matrix."""

from __future__ import annotations

from dataclasses import dataclass, replace

from taskflow import operators as ops
from taskflow.graph import OperatorGraph
from taskflow.models.vocabulary import blocks_of
from taskflow.operators.tensor import Parameter, Tensor


@dataclass(frozen=True, slots=True)
class TransformerConfig:
    """Sizes of the network; the defaults are the base model's. ``batch`` is of the whole machine; ``steps`` of source and
    of target sentences; ``layers`` of the encoder and of the decoder; ``inner`` of the feed-forward layers.

    ``padding``: the word that fills rows of ``source`` up to ``steps``. None: every row is full."""

    batch: int = 64
    steps: int = 40
    vocabulary: int = 37_000
    hidden: int = 512
    inner: int = 2048
    heads: int = 8
    layers: int = 6
    dropout: float = 0.1
    label_smoothing: float = 0.1
    padding: int | None = None

    @staticmethod
    def small() -> TransformerConfig:
        """The same layers, narrow and short."""
        return TransformerConfig(batch=4, steps=5, vocabulary=17, hidden=8, inner=12, heads=2, layers=2)


def transformer(config: TransformerConfig, dtype: str = "float32") -> OperatorGraph:
    """Inputs ``source``, ``target`` (what the decoder is given) and ``labels`` (what it shall say), all (batch, steps)
    int64; minimises the mean cross-entropy of the labels in nats, with smoothed labels; those of -100 add nothing.

    With ``padding``, nothing depends on how far rows are filled up: nobody attends to source words that are padding,
    and the mean is over the labels that are not -100.
    """
    c = config
    graph = OperatorGraph(dtype, "Transformer")
    source, target, labels = (
        ops.input(graph, (c.batch, c.steps), "int64", name=name) for name in ("source", "target", "labels")
    )
    build = _Layers(c)
    x, table = build.encode(source)
    y = build.decode(target, x, source, table)
    scores = ops.linear(y, c.vocabulary, False, name="softmax", parameters=table)
    blocks = blocks_of(c.vocabulary)
    if c.padding is None:
        graph.minimize(
            ops.cross_entropy(scores, labels, label_smoothing=c.label_smoothing, blocks=blocks, name="loss")
        )
    else:
        loss = ops.cross_entropy(
            scores, labels, reduction="sum", label_smoothing=c.label_smoothing, blocks=blocks, name="loss"
        )
        graph.minimize(ops.per_label(loss, labels, name="mean"))
    return graph


@dataclass(frozen=True, slots=True)
class TransformerEncoder:
    """The encoder alone, with transformer's names: input ``source`` (batch, steps) int64."""

    graph: OperatorGraph
    memory: Tensor  # (batch, steps, hidden): what the decoder attends to


def transformer_encoder(config: TransformerConfig, dtype: str = "float32") -> TransformerEncoder:
    """What runs once a sentence to translate; without dropout."""
    graph = OperatorGraph(dtype, "Transformer encoder")
    source = ops.input(graph, (config.batch, config.steps), "int64", name="source")
    return TransformerEncoder(graph, _Layers(replace(config, dropout=0.0)).encode(source)[0])


@dataclass(frozen=True, slots=True)
class TransformerDecoder:
    """The decoder over the beginnings of ``beams`` translations of each sentence, with transformer's names.

    Inputs: ``target`` (batch, beams, steps) int64, the words so far, and ``last`` (batch * beams, 1) int64, the position
    of the last one; what lies behind it changes nothing. ``memory`` and ``source`` are states: what they hold comes
    from the encoder."""

    graph: OperatorGraph
    memory: Tensor  # (batch, steps, hidden)
    source: Tensor | None  # (batch, steps) int64; None where there is no padding
    scores: Tensor  # (batch, beams, vocabulary), not normalised: of the word after the last one


def transformer_decoder(config: TransformerConfig, beams: int, dtype: str = "float32") -> TransformerDecoder:
    """What runs once a word to say; without dropout. It goes over all positions again: nothing is carried."""
    c = replace(config, dropout=0.0)
    graph = OperatorGraph(dtype, "Transformer decoder")
    rows = c.batch * beams
    target = ops.input(graph, (c.batch, beams, c.steps), "int64", name="target")
    last = ops.input(graph, (rows, 1), "int64", name="last")
    memory = ops.state(graph, (c.batch, c.steps, c.hidden), name="memory")
    source = None if c.padding is None else ops.state(graph, (c.batch, c.steps), "int64", name="source")
    words = ops.reshape(target, (rows, c.steps), name="target.rows")
    y = _Layers(c).decode(words, memory, source, None)
    table = graph.node("embedding").parameters
    ended = ops.reshape(ops.gather(y, last, name="ended"), (c.batch, beams, c.hidden), name="ended.beams")
    scores = ops.linear(ended, c.vocabulary, False, name="softmax", parameters=table)
    return TransformerDecoder(graph, memory, source, scores)


@dataclass(frozen=True, slots=True)
class _Layers:
    config: TransformerConfig

    def encode(self, source: Tensor) -> tuple[Tensor, tuple[Parameter, ...]]:
        """source (N, S) -> (N, S, H), and the matrix of the embedding."""
        c = self.config
        words = ops.embedding(source, c.vocabulary, c.hidden, std=c.hidden**-0.5, name="embedding")
        x = self.start(words, "encoder")
        for i in range(c.layers):
            x = self.attend(x, x, f"encoder.layers.{i}.self_attn", source)
            x = self.feed_forward(x, f"encoder.layers.{i}")
        return x, words.graph.parameters_of(words)

    def decode(
        self, target: Tensor, memory: Tensor, source: Tensor | None, table: tuple[Parameter, ...] | None
    ) -> Tensor:
        """target (N times beams, T), memory (N, S, H), source (N, S) -> (N times beams, T, H)."""
        c = self.config
        name = "decoder.embedding" if table else "embedding"  # where there is no encoder, it declares the matrix
        words = ops.embedding(target, c.vocabulary, c.hidden, std=c.hidden**-0.5, name=name, parameters=table)
        y = self.start(words, "decoder")
        for i in range(c.layers):
            y = self.attend(y, y, f"decoder.layers.{i}.self_attn", causal=True)
            y = self.attend(y, memory, f"decoder.layers.{i}.multihead_attn", source)
            y = self.feed_forward(y, f"decoder.layers.{i}")
        return y

    def start(self, words: Tensor, name: str) -> Tensor:
        """Embedded words (N, T, H), scaled to a variance of one, with their positions."""
        x = ops.scale(words, self.config.hidden**0.5, name=f"{name}.scale")
        return self._drop(ops.positional_encoding(x, name=f"{name}.positions"), f"{name}.drop")

    def attend(
        self, x: Tensor, memory: Tensor, name: str, tokens: Tensor | None = None, causal: bool = False
    ) -> Tensor:
        """Attention of x to memory, whose words are ``tokens``, added to x, normalised."""
        c = self.config
        padding = None if tokens is None or c.padding is None else (tokens, c.padding)
        query = x
        if x.shape[0] != memory.shape[0]:  # a sentence's translations attend to one memory, side by side
            query = ops.reshape(x, (memory.shape[0], -1, c.hidden), name=f"{name}.side_by_side")
        y = ops.multi_head_attention(query, memory, c.heads, causal=causal, padding=padding, name=name)
        if y.shape != x.shape:
            y = ops.reshape(y, x.shape, name=f"{name}.apart")
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
