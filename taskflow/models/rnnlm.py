"""RNNLM: Zaremba, Sutskever and Vinyals' LSTM language model (arXiv 1409.2329), the paper's RNNLM."""

from __future__ import annotations

from dataclasses import dataclass

from taskflow import operators as ops
from taskflow.graph import OperatorGraph
from taskflow.models.recurrent import Layers, SharedLayers, chunks, part, zeros
from taskflow.models.vocabulary import blocks_of


@dataclass(frozen=True, slots=True)
class RNNLMConfig:
    """Sizes of the network. ``batch`` is of the whole machine. ``steps_per_operator``: how many of the ``steps`` of truncated
    back-propagation one operator covers; a layer's operators share weights and may be cut and placed differently."""

    batch: int = 64
    steps: int = 40
    vocabulary: int = 10_000
    hidden: int = 2048
    layers: int = 2
    dropout: float = 0.0
    steps_per_operator: int = 10

    @staticmethod
    def small() -> RNNLMConfig:
        """Return the same layers, narrow and short."""
        return RNNLMConfig(batch=6, steps=6, vocabulary=13, hidden=6, dropout=0.1, steps_per_operator=2)

    @staticmethod
    def two_steps() -> RNNLMConfig:
        """Return RNNLM-2, which has so few steps that the best strategy can be proved (the paper's section 8.4)."""
        return RNNLMConfig(steps=2, steps_per_operator=1)


def rnnlm(config: RNNLMConfig, dtype: str = "float32") -> OperatorGraph:
    """Build RNNLM. Inputs: ``tokens`` and ``targets`` (batch, steps) int64. Minimises the mean cross-entropy of the next token
    in nats.

    The state of every layer is carried from batch to batch.
    """
    c = config
    graph = OperatorGraph(dtype, "RNNLM")
    tokens = ops.input(graph, (c.batch, c.steps), "int64", name="tokens")
    targets = ops.input(graph, (c.batch, c.steps), "int64", name="targets")
    shared = SharedLayers()
    start = zeros(graph, c.batch, c.hidden, c.layers, "lstm")
    layers = Layers(shared, c.hidden, start, c.dropout, "lstm")
    wanted = chunks(targets, c.steps_per_operator)
    for k, words in enumerate(chunks(tokens, c.steps_per_operator)):
        y = layers.advance(shared(ops.embedding, "embedding", k, words, c.vocabulary, c.hidden), k)
        if c.dropout:
            y = ops.dropout(y, c.dropout, name=part("dropout", k))
        scores = shared(ops.linear, "softmax", k, y, c.vocabulary)
        loss = ops.cross_entropy(
            scores, wanted[k], reduction="sum", blocks=blocks_of(c.vocabulary), name=part("loss", k)
        )
        graph.minimize(ops.scale(loss, 1.0 / (c.batch * c.steps), name=part("mean", k)))
    for before, after in zip(start, layers.state):
        for state, becomes in zip(before, after):
            graph.carry(state, becomes)
    return graph
