"""Transformer: an encoder and a decoder of attention layers (Vaswani et al., "Attention is all you need", arXiv
1706.03762), normalised after each sum as published. Both embeddings and the last layer share one matrix."""

from __future__ import annotations

from dataclasses import dataclass, replace

from taskflow import operators as ops
from taskflow.graph import OperatorGraph
from taskflow.models.vocabulary import blocks_of
from taskflow.operators.attention import attend_heads, attention_heads
from taskflow.operators.tensor import Parameter, Tensor

Pair = tuple[Tensor, Tensor]  # keys and values

@dataclass(frozen=True, slots=True)
class TransformerConfig:
    """Sizes of the network; the defaults are the base model's. ``batch`` is of the whole machine. ``steps``: words of source
    and of target sentences. ``layers``: of the encoder, and of the decoder. ``inner``: width of the feed-forward layers.

    ``padding``: the word with which rows of ``source`` are filled. None: every row is full."""

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
        """Return the same layers, narrow and short."""
        return TransformerConfig(batch=4, steps=5, vocabulary=17, hidden=8, inner=12, heads=2, layers=2)


def transformer(config: TransformerConfig, dtype: str = "float32") -> OperatorGraph:
    """Build the Transformer. Inputs: ``source``, ``target`` (the decoder's input) and ``labels`` (its expected output), all
    (batch, steps) int64. Minimises the mean cross-entropy in nats of the labels that are not -100, with label
    smoothing.

    With ``padding``, results do not depend on the amount of padding: nothing attends to it.
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
    """Encoder, and the keys and values that the decoder's layers read from it, with transformer's names. Input: ``source``
    (batch, steps) int64."""

    graph: OperatorGraph
    cross_states: tuple[Pair, ...]  # of every decoder layer the keys and values, each (batch, heads, steps, hidden / heads)


def transformer_encoder(config: TransformerConfig, dtype: str = "float32") -> TransformerEncoder:
    """Build the encoder, which runs once for each sentence; without dropout."""
    c = replace(config, dropout=0.0)
    graph = OperatorGraph(dtype, "Transformer encoder")
    source = ops.input(graph, (c.batch, c.steps), "int64", name="source")
    memory, _ = _Layers(c).encode(source)
    names = (f"decoder.layers.{i}.multihead_attn" for i in range(c.layers))
    return TransformerEncoder(graph, tuple(_keys_and_values(memory, c.heads, name) for name in names))


@dataclass(frozen=True, slots=True)
class TransformerDecoder:
    """One step of the decoder for ``beams`` translations of each sentence, with transformer's names.

    Inputs: ``words`` and ``parents`` (batch, beams) int64: the last word of each translation, and which of the sentence's
    translations of the previous step it continues. Further inputs give the position of the step in the sentence, the same for
    all batch * beams rows. ``waves`` (rows, 1, hidden): what `positional_encoding` adds at that position. ``now`` (rows,
    steps): 1 at that position and 0 elsewhere. ``lengths`` (rows) int64: the number of words including this one. Keys and values
    are states: ``cross_states`` and ``source`` come from the encoder, ``self_states`` are the decoder's own, zeros at the beginning
    of a sentence."""

    graph: OperatorGraph
    cross_states: tuple[Pair, ...]  # of every layer, each (batch, heads, steps, hidden / heads)
    self_states: tuple[Pair, ...]  # of every layer, each (batch, beams, heads, steps, hidden / heads)
    source: Tensor | None  # (batch, steps) int64; None where there is no padding
    scores: Tensor  # (batch, beams, vocabulary), not normalised: of the word after the last one


def transformer_decoder(config: TransformerConfig, beams: int, dtype: str = "float32") -> TransformerDecoder:
    """Build the decoder, which runs once for each word; without dropout. Keys and values of earlier words are carried from step
    to step."""
    c = replace(config, dropout=0.0)
    graph = OperatorGraph(dtype, "Transformer decoder")
    rows, each = c.batch * beams, c.hidden // c.heads
    words, parents = (ops.input(graph, (c.batch, beams), "int64", name=name) for name in ("words", "parents"))
    waves = ops.input(graph, (rows, 1, c.hidden), name="waves")
    now, lengths = ops.input(graph, (rows, c.steps), name="now"), ops.input(graph, (rows,), "int64", name="lengths")
    source = None if c.padding is None else ops.state(graph, (c.batch, c.steps), "int64", name="source")
    cross_states, self_states = (
        tuple(_states(graph, shape, which, i) for i in range(c.layers))
        for which, shape in (
            ("cross_states", (c.batch, c.heads, c.steps, each)), ("self_states", (c.batch, beams, c.heads, c.steps, each)),
        )
    )
    given = ops.reshape(words, (rows, 1), name="words.rows")
    x = ops.embedding(given, c.vocabulary, c.hidden, name="embedding")
    table = graph.parameters_of(x)
    y = ops.add(ops.scale(x, c.hidden**0.5, name="decoder.scale"), waves, name="decoder.positions")
    layers = _Layers(c)
    for i, (memory, cache) in enumerate(zip(cross_states, self_states)):
        name = f"decoder.layers.{i}.self_attn"
        kept = tuple(_write(state, parents, now, y, c.heads, name, which) for state, which in zip(cache, "kv"))
        q = attention_heads(y, c.heads, "q", name=name)
        y = layers.join(y, attend_heads(q, *kept, lengths=lengths, name=name), name)
        for state, value in zip(cache, kept):
            graph.carry(state, ops.reshape(value, state.shape, name=f"{state.name}.next"))
        name = f"decoder.layers.{i}.multihead_attn"
        side = ops.reshape(y, (c.batch, beams, c.hidden), name=f"{name}.side_by_side")  # they attend to one memory
        q = attention_heads(side, c.heads, "q", name=name)
        padding = None if source is None or c.padding is None else (source, c.padding)
        z = attend_heads(q, *memory, padding=padding, name=name)
        y = layers.join(y, ops.reshape(z, y.shape, name=f"{name}.apart"), name)
        y = layers.feed_forward(y, f"decoder.layers.{i}")
    last = ops.reshape(y, (c.batch, beams, c.hidden), name="last")
    scores = ops.linear(last, c.vocabulary, False, name="softmax", parameters=table)
    return TransformerDecoder(graph, cross_states, self_states, source, scores)


def _keys_and_values(x: Tensor, heads: int, name: str) -> Pair:
    """Keys and values of an attention to x (N, S, H), each (N, heads, S, H / heads)."""
    return attention_heads(x, heads, "k", name=name), attention_heads(x, heads, "v", name=name)


def _states(graph: OperatorGraph, shape: tuple[int, ...], which: str, layer: int) -> Pair:
    k, v = (ops.state(graph, shape, name=f"{which}.{kind}{layer}") for kind in "kv")
    return k, v


def _write(state: Tensor, parents: Tensor, now: Tensor, y: Tensor, heads: int, name: str, which: str) -> Tensor:
    """state (N, beams, heads, T, F) of the translations that ``parents`` names, with the key or value of y (rows, 1, H) where
    now (rows, T) is 1 and it had zeros: (rows, heads, T, F)."""
    rows, (steps, each) = now.shape[0], state.shape[3:]
    kept = ops.gather(state, parents, name=f"{state.name}.kept")
    kept = ops.reshape(kept, (rows, heads, steps, each), name=f"{state.name}.rows")
    new = ops.reshape(attention_heads(y, heads, which, name=name), (rows, heads, each), name=f"{state.name}.new")
    placed = ops.einsum("rhe,rt->rhte", new, now, name=f"{state.name}.place")
    return ops.add(kept, placed, name=f"{state.name}.write")


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

    def decode(self, target: Tensor, memory: Tensor, source: Tensor, table: tuple[Parameter, ...]) -> Tensor:
        """target (N, T), memory (N, S, H), source (N, S) -> (N, T, H)."""
        c = self.config
        words = ops.embedding(
            target, c.vocabulary, c.hidden, std=c.hidden**-0.5, name="decoder.embedding", parameters=table
        )
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
        y = ops.multi_head_attention(x, memory, c.heads, causal=causal, padding=padding, name=name)
        return self.join(x, y, name)

    def feed_forward(self, x: Tensor, name: str) -> Tensor:
        """Two linear layers, added to x, normalised."""
        y = ops.relu(ops.linear(x, self.config.inner, name=f"{name}.linear1"), name=f"{name}.relu")
        return self.join(x, ops.linear(y, self.config.hidden, name=f"{name}.linear2"), f"{name}.feed_forward")

    def join(self, x: Tensor, y: Tensor, name: str) -> Tensor:
        """y added to x, normalised."""
        total = ops.add(x, self._drop(y, f"{name}.drop"), name=f"{name}.add")
        return ops.layer_norm(total, name=f"{name}.norm")

    def _drop(self, x: Tensor, name: str) -> Tensor:
        return ops.dropout(x, self.config.dropout, name=name) if self.config.dropout else x
