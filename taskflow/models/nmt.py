"""NMT: translation by an encoder and a decoder of LSTM layers with attention, the paper's NMT (its section 8.1 and figure
14; after Wu et al., arXiv 1609.08144, with the attention of Luong et al., arXiv 1508.04025)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from taskflow import operators as ops
from taskflow.graph import OperatorGraph
from taskflow.models.recurrent import Layers, Shared, chunks, part, zeros
from taskflow.operators.tensor import Parameter


@dataclass(frozen=True, slots=True)
class NMTConfig:
    """Sizes of the network; the defaults are the paper's. ``batch`` is of the whole machine; ``steps`` of source and of
    target sentences; ``layers`` of the encoder and of the decoder. ``steps_per_operator``: how many steps of a layer one
    operator covers; they share weights and may be cut and placed differently."""

    batch: int = 64
    steps: int = 40
    vocabulary: int = 32_000
    hidden: int = 1024
    layers: int = 2
    dropout: float = 0.0
    steps_per_operator: int = 10

    @staticmethod
    def small() -> NMTConfig:
        """The same layers, narrow and short."""
        return NMTConfig(batch=6, steps=6, vocabulary=19, hidden=6, dropout=0.1, steps_per_operator=2)


def nmt(config: NMTConfig, dtype: str = "float32") -> OperatorGraph:
    """Inputs ``source``, ``target`` (what the decoder is given) and ``labels`` (what it shall say), all (batch, steps)
    int64; minimises the sum of the labels' cross-entropies over batch and steps, divided by both, in nats. Labels of
    -100 are left out of the sum.

    The decoder starts from the encoder's last states; its last layer's outputs attend to all of the encoder's.
    """
    c = config
    graph = OperatorGraph(dtype, "NMT")
    source, target, labels = (
        ops.input(graph, (c.batch, c.steps), "int64", name=name) for name in ("source", "target", "labels")
    )
    shared = Shared()
    encoder = Layers(
        shared, c.hidden, zeros(graph, c.batch, c.hidden, c.layers, "encoder"), c.dropout, "encoder.lstm"
    )
    outputs = [
        encoder.advance(shared(ops.embedding, "encoder.embedding", k, words, c.vocabulary, c.hidden), k)
        for k, words in enumerate(chunks(source, c.steps_per_operator))
    ]
    memory = outputs[0] if len(outputs) == 1 else ops.concat(outputs, 1, name="encoder.outputs")
    decoder = Layers(shared, c.hidden, encoder.state, c.dropout, "decoder.lstm")
    attend: Sequence[Sequence[Parameter]] | None = None
    wanted = chunks(labels, c.steps_per_operator)
    for k, words in enumerate(chunks(target, c.steps_per_operator)):
        y = decoder.advance(shared(ops.embedding, "decoder.embedding", k, words, c.vocabulary, c.hidden), k)
        y, attend = ops.attention(y, memory, name=part("attention", k), parameters=attend)
        if c.dropout:
            y = ops.dropout(y, c.dropout, name=part("dropout", k))
        scores = shared(ops.linear, "softmax", k, y, c.vocabulary)
        loss = ops.cross_entropy(scores, wanted[k], reduction="sum", name=part("loss", k))
        graph.minimize(ops.scale(loss, 1 / (c.batch * c.steps), name=part("mean", k)))
    return graph
