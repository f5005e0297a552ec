"""RNNLM: Zaremba, Sutskever and Vinyals' LSTM language model (arXiv 1409.2329), the paper's RNNLM."""

from __future__ import annotations

from dataclasses import dataclass

from taskflow import operators as ops
from taskflow.graph import OperatorGraph
from taskflow.operators.tensor import Parameter, Tensor


@dataclass(frozen=True, slots=True)
class RNNLMConfig:
    """Sizes of the network. ``batch`` is of the whole machine. ``steps_per_operator``: how many of the ``steps`` of truncated
    back-propagation one operator covers; a layer's operators share weights and may be cut and placed differently."""

    batch: int
    steps: int
    vocabulary: int
    hidden: int
    layers: int = 2
    dropout: float = 0.0
    steps_per_operator: int = 10


def rnnlm(config: RNNLMConfig, dtype: str = "float32") -> OperatorGraph:
    """Inputs ``tokens`` and ``targets`` (batch, steps) int64; minimises the mean cross-entropy of the next token in nats.

    The state of every layer is carried from batch to batch.
    """
    c = config
    graph = OperatorGraph(dtype, "RNNLM")
    tokens = ops.input(graph, (c.batch, c.steps), "int64", name="tokens")
    targets = ops.input(graph, (c.batch, c.steps), "int64", name="targets")
    per = min(c.steps_per_operator, c.steps)
    chunks = list(zip(ops.split(tokens, per, 1), ops.split(targets, per, 1)))
    start = [
        tuple(ops.state(graph, (c.batch, c.hidden), name=f"{kind}{layer}") for kind in "hc") for layer in range(c.layers)
    ]
    state: list[tuple[Tensor, Tensor]] = [(h, cell) for h, cell in start]
    shared: dict[str, tuple[Parameter, ...]] = {}

    def share(name: str, tensor: Tensor) -> Tensor:
        shared.setdefault(name, graph.parameters_of(tensor))
        return tensor

    for k, (words, wanted) in enumerate(chunks):
        at = "" if len(chunks) == 1 else f".{k}"
        y = share("embedding", ops.embedding(
            words, c.vocabulary, c.hidden, name=f"embedding{at}", parameters=shared.get("embedding")))
        for layer in range(c.layers):
            name = f"lstm{layer}"
            if c.dropout:
                y = ops.dropout(y, c.dropout, name=f"dropout{layer}{at}")
            y, h, cell = ops.lstm_layer(y, c.hidden, state[layer], name=f"{name}{at}", parameters=shared.get(name))
            share(name, y)
            state[layer] = (h, cell)
        if c.dropout:
            y = ops.dropout(y, c.dropout, name=f"dropout{c.layers}{at}")
        logits = share("softmax", ops.linear(y, c.vocabulary, name=f"softmax{at}", parameters=shared.get("softmax")))
        loss = ops.cross_entropy(logits, wanted, reduction="sum", name=f"loss{at}")
        graph.minimize(ops.scale(loss, 1.0 / (c.batch * c.steps), name=f"mean{at}"))
    for (h0, c0), (h, cell) in zip(start, state):
        graph.carry(h0, h)
        graph.carry(c0, cell)
    return graph
