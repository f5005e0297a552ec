"""RNNTC: text classification by layers of LSTM, the paper's RNNTC (after Kim, arXiv 1408.5882)."""

from __future__ import annotations

from dataclasses import dataclass

from taskflow import operators as ops
from taskflow.graph import OperatorGraph
from taskflow.models.recurrent import Layers, SharedLayers, chunks, part, zeros


@dataclass(frozen=True, slots=True)
class RNNTCConfig:
    """Sizes of the network; the defaults are the paper's, with the vocabulary of the movie reviews. ``batch`` is of the whole
    machine. ``steps_per_operator``: how many steps of a layer one operator covers; a layer's operators share weights and may be
    cut and placed differently."""

    batch: int = 64
    steps: int = 40
    vocabulary: int = 20_000
    hidden: int = 1024
    layers: int = 4
    classes: int = 2
    dropout: float = 0.0
    steps_per_operator: int = 10

    @staticmethod
    def small() -> RNNTCConfig:
        """Return the same layers, narrow and short."""
        return RNNTCConfig(batch=6, steps=6, vocabulary=17, hidden=6, classes=3, dropout=0.1, steps_per_operator=2)


def rnntc(config: RNNTCConfig, dtype: str = "float32") -> OperatorGraph:
    """Build RNNTC. Inputs: ``tokens`` (batch, steps) and ``labels`` (batch), int64. Minimises the mean cross-entropy in nats of
    the classes scored from the last layer's last state. Short texts are padded in front."""
    c = config
    graph = OperatorGraph(dtype, "RNNTC")
    tokens = ops.input(graph, (c.batch, c.steps), "int64", name="tokens")
    labels = ops.input(graph, (c.batch,), "int64", name="labels")
    shared = SharedLayers()
    layers = Layers(shared, c.hidden, zeros(graph, c.batch, c.hidden, c.layers, "lstm"), c.dropout, "lstm")
    for k, words in enumerate(chunks(tokens, c.steps_per_operator)):
        layers.advance(shared(ops.embedding, "embedding", k, words, c.vocabulary, c.hidden), k)
    last = layers.state[-1][0]
    if c.dropout:
        last = ops.dropout(last, c.dropout, name=part("dropout", 0))
    graph.minimize(ops.cross_entropy(ops.linear(last, c.classes, name="softmax"), labels, name="loss"))
    return graph
