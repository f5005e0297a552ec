"""Mixtral: Llama's decoder, in which each token is routed to two of eight feed-forward layers, without a capacity limit (Jiang
et al., "Mixtral of experts", arXiv 2401.04088; sizes: the published configurations)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from taskflow import operators as ops
from taskflow.graph import OperatorGraph
from taskflow.models.llama import STD, LlamaConfig, attend, feed_forward, gated, score
from taskflow.models.places import with_places
from taskflow.operators.rotary import Scaling
from taskflow.operators.tensor import Tensor


@dataclass(frozen=True, slots=True)
class MixtralConfig(LlamaConfig):
    """Sizes of the network; the defaults are those of Mixtral 8x7B. Beyond Llama's: ``experts`` of a layer, of which each token
    uses ``chosen``. ``balance``: weight of the load-balancing loss, which is 1 for an even load. ``expert_inner``: width of an
    expert (None: ``inner``); ``shared``: as wide as so many experts is a part that every token uses. ``dense``: the first layers
    without experts; of the others every ``every``-th has them. ``places``: experts have places
    for so many times the mean of tokens, so that plans can deal them (`with_places`); None: they have none. ``expert_groups``: of
    consecutive experts, of which each token uses ``chosen_groups`` (`top_k_routing`)."""

    vocabulary: int = 32_000
    theta: float = 1_000_000.0
    scaling: Scaling | None = None
    experts: int = 8
    chosen: int = 2
    balance: float = 0.001
    expert_inner: int | None = None
    shared: int | None = None
    dense: int | None = None
    every: int = 1
    places: float | None = None
    expert_groups: int = 1
    chosen_groups: int = 1

    @staticmethod
    def small() -> MixtralConfig:
        """Return the same layers, narrow and short."""
        return MixtralConfig(
            batch=4, steps=6, vocabulary=17, hidden=8, inner=12, heads=4, key_heads=2, layers=2, experts=4, balance=0.01
        )


SIZES = {
    "8x7B": MixtralConfig(),
    "8x22B": MixtralConfig(hidden=6144, inner=16_384, heads=48, layers=56),
}


def mixtral(config: MixtralConfig, dtype: str = "float32") -> OperatorGraph:
    """Build Mixtral. Inputs: ``tokens``, and ``targets``, the token after each, both (batch, steps) int64. Minimises the mean
    cross-entropy of the next token in nats, plus each layer's load-balancing loss (Fedus, Zoph, Shazeer, arXiv 2101.03961,
    equation 4, over all choices). Names are those of the published weights, but the experts of a layer are one array."""
    return decoder(config, "Mixtral", attend, dtype)


def decoder(
    c: MixtralConfig, name: str, attention: Callable[[LlamaConfig, Tensor, str], Tensor], dtype: str = "float32"
) -> OperatorGraph:
    """Build the same with some ``attention``, which adds itself to (N, T, H) under a name."""
    graph = OperatorGraph(dtype, name)
    tokens, targets = (ops.input(graph, (c.batch, c.steps), "int64", name=name) for name in ("tokens", "targets"))
    x, uneven = ops.embedding(tokens, c.vocabulary, c.hidden, std=STD, name="embed_tokens"), []
    for i in range(c.layers):
        x = attention(c, x, f"layers.{i}")
        if i < (c.dense or 0) or (i - (c.dense or 0) + 1) % c.every:
            x = feed_forward(c, x, f"layers.{i}")
        else:
            x, loss = _experts(c, x, f"layers.{i}")
            uneven.append(loss)
    score(graph, c, x, targets)
    if c.balance and uneven:
        graph.minimize(*uneven)
    return graph if c.places is None else with_places(graph, c.places)


def _experts(c: MixtralConfig, x: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """x (N, T, H) with what the experts of each word make of it, and the loss of their uneven load."""
    y, inner = ops.rms_norm(x, c.eps, name=f"{name}.post_attention_layernorm"), c.expert_inner or c.inner
    name = f"{name}.block_sparse_moe"
    scores = ops.linear(y, c.experts, False, name=f"{name}.gate")
    weights, chosen, loss, _, _ = ops.top_k_routing(
        scores, c.chosen, expert_groups=c.expert_groups, chosen_groups=c.chosen_groups, name=f"{name}.routing"
    )
    gate, up = (ops.routed_linear(y, chosen, c.experts, inner, name=f"{name}.experts.{w}") for w in ("w1", "w3"))
    result = ops.swiglu(gate, up, name=f"{name}.act")
    result = ops.routed_linear(result, chosen, c.experts, c.hidden, name=f"{name}.experts.w2")
    result = ops.einsum("ntkh,ntk->nth", result, weights, name=f"{name}.combine")
    if c.shared:
        result = ops.add(result, gated(y, c.shared * inner, c.hidden, f"{name}.shared"), name=f"{name}.joined")
    uneven = ops.mean(ops.scale(loss, c.balance * c.experts**2, name=f"{name}.balance"), name=f"{name}.mean")
    return ops.add(x, result, name=f"{name}.add"), uneven
