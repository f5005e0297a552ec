"""MoE: GShard's Transformer, in which every other feed-forward layer is one of experts (Lepikhin et al., "GShard", arXiv
2006.16668, section 2). GShard's network translates; this one is a decoder of the same layers, which predicts the next token."""

from __future__ import annotations

from dataclasses import dataclass

from taskflow import operators as ops
from taskflow.graph import OperatorGraph
from taskflow.models.vocabulary import blocks_of
from taskflow.operators.operator import Init
from taskflow.operators.tensor import Tensor
from taskflow.operators.top_k_routing import capacity_of


@dataclass(frozen=True, slots=True)
class MoEConfig:
    """Sizes of the network; the defaults are those of GShard's largest, with 600 billion parameters. ``batch`` is of the whole
    machine. ``steps``: tokens of context. ``inner``: width of the feed-forward layers. ``heads`` of ``head_size`` features
    each.

    ``experts``: of every other layer. ``group``: tokens that are routed together (None: a row of the batch). ``factor``: the
    capacity factor, places of all experts divided by tokens of a group (`capacity_of`). ``count_all``: `top2_gating`'s
    convention. ``balance``: weight of the load-balancing loss, which is 1 for an even load. ``einsums``: use the arrays
    (groups, words, experts, places) of GShard's paper, for comparison.

    Beyond GShard's: every ``every``-th layer has experts, but none of the first ``dense``; ``expert_inner``: width of an expert
    (None: ``inner``); ``shared``: as wide as so many experts is a part that every token uses. ``experts`` is then of each such
    layer."""

    batch: int = 2
    steps: int = 1024
    vocabulary: int = 64_000
    hidden: int = 1024
    inner: int = 8192
    heads: int = 16
    head_size: int = 128
    layers: int = 36
    experts: int = 2048
    group: int | None = None
    factor: float = 2.0
    count_all: bool = True
    balance: float = 0.01
    einsums: bool = False
    every: int = 2
    dense: int | None = None
    expert_inner: int | None = None
    shared: int | None = None

    @staticmethod
    def small() -> MoEConfig:
        """Return the same layers, narrow and short."""
        return MoEConfig(batch=4, steps=6, vocabulary=17, hidden=8, inner=12, heads=2, head_size=6, layers=2, experts=4, factor=1.0)


SIZES = {
    "600B": MoEConfig(),
    "200B": MoEConfig(layers=12),
    "150B": MoEConfig(experts=512),
    "50B": MoEConfig(experts=512, layers=12),
    "37B": MoEConfig(experts=128),
    "12.5B": MoEConfig(experts=128, layers=12),
}
"""Experts and layers of GShard's table 1, by the number of parameters that it has there."""


def moe(config: MoEConfig, dtype: str = "float32") -> OperatorGraph:
    """Build GShard's MoE Transformer. Inputs: ``tokens``, and ``targets``, the token after each, both (batch, steps) int64.
    Minimises the mean cross-entropy of the next token in nats, plus each expert layer's load-balancing loss. The embedding and
    the last layer share one matrix.

    Raises ValueError unless ``group`` divides the words of a batch."""
    c = config
    if c.group is not None and (c.group < 1 or c.batch * c.steps % c.group):
        count = c.batch * c.steps
        near = sorted((n for n in range(1, count + 1) if count % n == 0), key=lambda n: (abs(n - (c.group or 0)), n))[:2]
        raise ValueError(
            f"MoE: group must divide the {c.batch} x {c.steps} words of a batch, got {c.group}; take {' or '.join(map(str, near))}"
        )
    graph = OperatorGraph(dtype, "MoE")
    tokens, targets = (ops.input(graph, (c.batch, c.steps), "int64", name=name) for name in ("tokens", "targets"))
    words = ops.embedding(tokens, c.vocabulary, c.hidden, std=c.hidden**-0.5, name="embedding")
    x = ops.positional_encoding(ops.scale(words, c.hidden**0.5, name="scale"), name="positions")
    uneven = []
    for i in range(c.layers):
        name = f"layers.{i}"
        x = _attend(c, x, name)
        y = ops.layer_norm(x, name=f"{name}.norm2")
        if i < (c.dense or 0) or (i - (c.dense or 0) + 1) % c.every:
            result = _feed_forward(c, y, c.inner, f"{name}.ffn")
        else:
            result, loss = _experts(c, y, f"{name}.moe")
            uneven.append(loss)
            if c.shared:
                both = _feed_forward(c, y, c.shared * (c.expert_inner or c.inner), f"{name}.shared")
                result = ops.add(result, both, name=f"{name}.joined")
        x = ops.add(x, result, name=f"{name}.add")
    x = ops.layer_norm(x, name="norm")
    scores = ops.linear(x, c.vocabulary, False, name="softmax", parameters=graph.parameters_of(words))
    graph.minimize(ops.cross_entropy(scores, targets, blocks=blocks_of(c.vocabulary), name="loss"))
    if c.balance and uneven:
        graph.minimize(*uneven)
    return graph


def _feed_forward(c: MoEConfig, y: Tensor, inner: int, name: str) -> Tensor:
    """Two linear layers of y (N, T, M)."""
    result = ops.relu(ops.linear(y, inner, False, name=f"{name}.wi"), name=f"{name}.act")
    return ops.linear(result, c.hidden, False, name=f"{name}.wo")


def _attend(c: MoEConfig, x: Tensor, name: str) -> Tensor:
    """Attention, added to what it reads. x (N, T, M) in, the same out."""
    y, shape = ops.layer_norm(x, name=f"{name}.norm1"), (*x.shape[:2], c.heads, c.head_size)
    name = f"{name}.attention"
    q, k, v = (
        ops.reshape(ops.linear(y, c.heads * c.head_size, False, name=f"{name}.{which}"), shape, name=f"{name}.{which}_heads")
        for which in "qkv"
    )
    y = ops.reshape(ops.flash_attention(q, k, v, causal=True, name=f"{name}.attend"), (*shape[:2], -1), name=f"{name}.joined")
    return ops.add(x, ops.linear(y, c.hidden, False, name=f"{name}.o"), name=f"{name}.add")


def _experts(c: MoEConfig, x: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """Experts' outputs for each word of x (N, T, M), and the auxiliary loss. A word that finds no place gets zeros."""
    group = c.steps if c.group is None else c.group
    grouped = (c.batch * c.steps // group, group, c.hidden)
    y = x if grouped == x.shape else ops.reshape(x, grouped, name=f"{name}.groups")
    capacity, inner = capacity_of(group, c.experts, c.factor), c.expert_inner or c.inner
    scores = ops.linear(y, c.experts, False, name=f"{name}.wg")
    weights, slots, loss, _, _ = ops.top2_gating(scores, capacity, count_all=c.count_all, name=f"{name}.gating")
    if c.einsums:
        result = _by_einsums(c, y, weights, slots, capacity, name)
    else:
        sent = ops.dispatch(y, slots, c.experts, capacity, name=f"{name}.dispatch")
        result = ops.relu(ops.expert_linear(sent, inner, name=f"{name}.wi"), name=f"{name}.act")
        result = ops.combine(ops.expert_linear(result, c.hidden, name=f"{name}.wo"), weights, slots, name=f"{name}.combine")
    # lingvo's loss is E^2 times the printed one: 1 for an even load.
    uneven = ops.mean(ops.scale(loss, c.balance * c.experts**2, name=f"{name}.balance"), name=f"{name}.mean")
    return (result if grouped == x.shape else ops.reshape(result, x.shape, name=f"{name}.rows")), uneven


def _by_einsums(c: MoEConfig, x: Tensor, weights: Tensor, slots: Tensor, capacity: int, name: str) -> Tensor:
    """GShard's algorithm 2, line by line."""
    inner = c.expert_inner or c.inner
    combine, mask = ops.combine_weights(weights, slots, c.experts, capacity, name=f"{name}.combine_weights")
    wi, wo = (
        ops.expand_weight(x.graph, shape, shape, init=Init("uniform", shape[1] ** -0.5), name=f"{name}.{which}")
        for which, shape in (("wi", (c.experts, c.hidden, inner)), ("wo", (c.experts, inner, c.hidden)))
    )
    sent = ops.einsum("GSEC,GSM->EGCM", mask, x, name=f"{name}.dispatch")
    h = ops.relu(ops.einsum("EGCM,EMH->EGCH", sent, wi, name=f"{name}.h"), name=f"{name}.act")
    outputs = ops.einsum("EGCH,EHM->GECM", h, wo, name=f"{name}.expert_outputs")
    return ops.einsum("GSEC,GECM->GSM", combine, outputs, name=f"{name}.combine")
