"""NMT: translation by an encoder and a decoder of LSTM layers with attention, the paper's NMT (its section 8.1 and figure
14; after Wu et al., arXiv 1609.08144, with the attention of Luong et al., arXiv 1508.04025)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from taskflow import operators as ops
from taskflow.graph import OperatorGraph
from taskflow.models.recurrent import Layers, SharedLayers, State, chunks, part, zeros
from taskflow.models.vocabulary import blocks_of
from taskflow.operators.tensor import Parameter, Tensor


@dataclass(frozen=True, slots=True)
class NMTConfig:
    """Sizes of the network; the defaults are the paper's. ``batch`` is of the whole machine. ``steps``: words of source and of
    target sentences. ``layers``: of the encoder, and of the decoder. ``steps_per_operator``: how many steps of a layer one
    operator covers; a layer's operators share weights and may be cut and placed differently.

    ``padding``: the word with which rows of ``source`` are filled. None: every row is full, as in the paper's measurements."""

    batch: int = 64
    steps: int = 40
    vocabulary: int = 32_000
    hidden: int = 1024
    layers: int = 2
    dropout: float = 0.0
    steps_per_operator: int = 10
    padding: int | None = None

    @staticmethod
    def small() -> NMTConfig:
        """Return the same layers, narrow and short."""
        return NMTConfig(batch=6, steps=6, vocabulary=19, hidden=6, dropout=0.1, steps_per_operator=2)


def nmt(config: NMTConfig, dtype: str = "float32") -> OperatorGraph:
    """Build NMT. Inputs: ``source``, ``target`` (the decoder's input) and ``labels`` (its expected output), all (batch, steps)
    int64. Minimises the sum of the labels' cross-entropies in nats, divided by batch and steps. Labels of -100 are left out of
    the sum.

    The decoder starts from the encoder's last states; its last layer's outputs attend to all of the encoder's. With
    ``padding``, results do not depend on the amount of padding: the encoder's states do not change at padding, nothing attends
    to it, and the loss is divided by the number of labels that are not -100.
    """
    c = config
    graph = OperatorGraph(dtype, "NMT")
    source, target, labels = (
        ops.input(graph, (c.batch, c.steps), "int64", name=name) for name in ("source", "target", "labels")
    )
    shared = SharedLayers()
    memory, state = _encode(c, shared, source, c.dropout)
    decoder = Layers(shared, c.hidden, state, c.dropout, "decoder.lstm")
    attend: Sequence[Sequence[Parameter]] | None = None
    padding = None if c.padding is None else (source, c.padding)
    wanted = chunks(labels, c.steps_per_operator)
    for k, words in enumerate(chunks(target, c.steps_per_operator)):
        y = decoder.advance(shared(ops.embedding, "decoder.embedding", k, words, c.vocabulary, c.hidden), k)
        y, attend = ops.attention(y, memory, padding=padding, name=part("attention", k), parameters=attend)
        if c.dropout:
            y = ops.dropout(y, c.dropout, name=part("dropout", k))
        scores = shared(ops.linear, "softmax", k, y, c.vocabulary)
        loss = ops.cross_entropy(
            scores, wanted[k], reduction="sum", blocks=blocks_of(c.vocabulary), name=part("loss", k)
        )
        mean = part("mean", k)
        graph.minimize(
            ops.scale(loss, 1 / (c.batch * c.steps), name=mean) if c.padding is None
            else ops.per_label(loss, labels, name=mean)
        )
    return graph


@dataclass(frozen=True, slots=True)
class NMTEncoder:
    """The encoder alone, with nmt's names: input ``source`` (batch, steps) int64."""

    graph: OperatorGraph
    memory: Tensor  # (batch, steps, hidden): what the decoder attends to
    state: tuple[State, ...]  # of every layer after the last word


def nmt_encoder(config: NMTConfig, dtype: str = "float32") -> NMTEncoder:
    """Build the encoder, which runs once for each sentence; without dropout."""
    graph = OperatorGraph(dtype, "NMT encoder")
    source = ops.input(graph, (config.batch, config.steps), "int64", name="source")
    memory, state = _encode(config, SharedLayers(), source, 0.0)
    return NMTEncoder(graph, memory, tuple(state))


@dataclass(frozen=True, slots=True)
class NMTDecoder:
    """One step of the decoder for ``beams`` translations of each sentence, with nmt's names.

    Inputs: ``words`` and ``parents`` (batch, beams) int64: the last word of each translation, and which of the sentence's
    translations of the previous step it continues. ``memory``, ``source`` and ``state`` are states, which the encoder
    initialises."""

    graph: OperatorGraph
    memory: Tensor  # (batch, steps, hidden)
    source: Tensor | None  # (batch, steps) int64; None where there is no padding
    state: tuple[State, ...]  # of every layer, each (batch, beams, hidden)
    scores: Tensor  # (batch, beams, vocabulary), not normalised


def nmt_decoder(config: NMTConfig, beams: int, dtype: str = "float32") -> NMTDecoder:
    """Build the decoder, which runs once for each word; without dropout."""
    c = config
    graph = OperatorGraph(dtype, "NMT decoder")
    words, parents = (ops.input(graph, (c.batch, beams), "int64", name=name) for name in ("words", "parents"))
    memory = ops.state(graph, (c.batch, c.steps, c.hidden), name="memory")
    source = None if c.padding is None else ops.state(graph, (c.batch, c.steps), "int64", name="source")
    shape, rows = (c.batch, beams, c.hidden), c.batch * beams
    held: list[State] = []
    before: list[State] = []
    for layer in range(c.layers):
        states = tuple(ops.state(graph, shape, name=f"state.{which}{layer}") for which in "hc")
        held.append((states[0], states[1]))
        kept = [ops.gather(s, parents, name=f"{s.name}.kept") for s in states]
        h, cell = (ops.reshape(s, (rows, c.hidden), name=f"{s.name}.rows") for s in kept)
        before.append((h, cell))
    shared = SharedLayers()
    decoder = Layers(shared, c.hidden, before, 0.0, "decoder.lstm")
    given = ops.reshape(words, (rows, 1), name="words.rows")
    y = decoder.advance(shared(ops.embedding, "decoder.embedding", 0, given, c.vocabulary, c.hidden), 0)
    y = ops.reshape(y, shape, name="beams")  # so that a sentence's translations attend to one memory
    padding = None if source is None or c.padding is None else (source, c.padding)
    y, _ = ops.attention(y, memory, padding=padding, name="attention")
    scores = shared(ops.linear, "softmax", 0, y, c.vocabulary)
    for pair, reached in zip(held, decoder.state):
        for state, becomes in zip(pair, reached):
            graph.carry(state, ops.reshape(becomes, shape, name=f"{state.name}.next"))
    return NMTDecoder(graph, memory, source, tuple(held), scores)


def _encode(c: NMTConfig, shared: SharedLayers, source: Tensor, dropout: float) -> tuple[Tensor, list[State]]:
    """source (N, T) -> the last layer's outputs (N, T, hidden), and every layer's last state."""
    encoder = Layers(
        shared, c.hidden, zeros(source.graph, c.batch, c.hidden, c.layers, "encoder"), dropout, "encoder.lstm"
    )
    outputs = []
    for k, words in enumerate(chunks(source, c.steps_per_operator)):
        embedded = shared(ops.embedding, "encoder.embedding", k, words, c.vocabulary, c.hidden)
        outputs.append(encoder.advance(embedded, k, None if c.padding is None else (words, c.padding)))
    memory = outputs[0] if len(outputs) == 1 else ops.concat(outputs, 1, name="encoder.outputs")
    return memory, encoder.state
