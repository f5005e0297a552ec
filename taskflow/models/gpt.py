"""GPT: a decoder of attention layers that predicts the next token (Radford et al., "Language models are unsupervised multitask
learners", 2019: GPT-2), normalised before each layer. The embedding and the last layer share one matrix."""

from __future__ import annotations

from dataclasses import dataclass

from taskflow import operators as ops
from taskflow.graph import OperatorGraph
from taskflow.models.vocabulary import blocks_of
from taskflow.operators.operator import Init
from taskflow.operators.tensor import Tensor

STD = 0.02  # of embeddings and positions at the beginning


@dataclass(frozen=True, slots=True)
class GPTConfig:
    """Sizes of the network; the defaults are those of the smallest GPT-2 (124 million parameters). ``batch`` is of the whole
    machine. ``steps``: tokens of context. Feed-forward layers are four times ``hidden`` wide. ``dropout``: of embeddings, of
    attention weights and of each layer's output before it is added. ``fused``: attention is one kernel, as programs have it
    today; otherwise scores of all pairs of words are in memory, as they were when the networks were published."""

    batch: int = 8
    steps: int = 1024
    vocabulary: int = 50_257
    hidden: int = 768
    heads: int = 12
    layers: int = 12
    dropout: float = 0.1
    fused: bool = False

    @staticmethod
    def small() -> GPTConfig:
        """Return the same layers, narrow and short."""
        return GPTConfig(batch=4, steps=5, vocabulary=17, hidden=8, heads=2, layers=2)


def _gpt_3(hidden: int, heads: int, layers: int) -> GPTConfig:
    return GPTConfig(batch=1, steps=2048, vocabulary=51_200, hidden=hidden, heads=heads, layers=layers)


GPT_2_SIZES = {
    "medium": GPTConfig(hidden=1024, heads=16, layers=24),
    "large": GPTConfig(hidden=1280, heads=20, layers=36),
    "XL": GPTConfig(hidden=1600, heads=25, layers=48),
}
GPT_3_SIZES = {
    "1.7B": _gpt_3(2304, 24, 24), "3.6B": _gpt_3(3072, 32, 30), "7.5B": _gpt_3(4096, 32, 36), "18.4B": _gpt_3(6144, 48, 40),
    "22B": _gpt_3(6144, 64, 48), "39.1B": _gpt_3(8192, 64, 48), "76.1B": _gpt_3(10_240, 80, 60),
    "145.6B": _gpt_3(12_288, 96, 80), "175B": _gpt_3(12_288, 96, 96), "310.1B": _gpt_3(16_384, 128, 96),
    "530B": _gpt_3(20_480, 128, 105), "1T": _gpt_3(25_600, 160, 128),
}
"""Of table 1 of Narayanan et al., arXiv 2104.04473 (22B: table 3 of Korthikanti et al., arXiv 2205.05198; 175B: GPT-3 itself,
Brown et al., arXiv 2005.14165), with the vocabulary and the context that both have."""


def gpt(config: GPTConfig, dtype: str = "float32") -> OperatorGraph:
    """Build GPT. Inputs: ``tokens``, and ``targets``, the token after each, both (batch, steps) int64. Minimises the mean
    cross-entropy of the next token in nats. Names are those of the published weights, except that queries, keys and values are
    separate layers."""
    c = config
    graph = OperatorGraph(dtype, "GPT-2")
    tokens, targets = (ops.input(graph, (c.batch, c.steps), "int64", name=name) for name in ("tokens", "targets"))
    words = ops.embedding(tokens, c.vocabulary, c.hidden, std=STD, name="wte")
    x = ops.add_weight(words, (1, c.steps, c.hidden), init=Init("normal", STD), name="wpe")
    x = _drop(c, x, "drop")
    for i in range(c.layers):
        x = _block(c, x, f"h.{i}")
    x = ops.layer_norm(x, name="ln_f")
    scores = ops.linear(x, c.vocabulary, False, name="lm_head", parameters=graph.parameters_of(words))
    graph.minimize(ops.cross_entropy(scores, targets, blocks=blocks_of(c.vocabulary), name="loss"))
    return graph


def _block(c: GPTConfig, x: Tensor, name: str) -> Tensor:
    """One block: attention, then a feed-forward layer, each added to what it reads. x (N, T, H) in, the same out."""
    y = ops.layer_norm(x, name=f"{name}.ln_1")
    attention = _fused_attention if c.fused else _attention
    y = attention(c, y, f"{name}.attn")
    x = ops.add(x, _drop(c, y, f"{name}.attn.resid_drop"), name=f"{name}.attn.add")
    y = ops.linear(ops.layer_norm(x, name=f"{name}.ln_2"), 4 * c.hidden, name=f"{name}.mlp.c_fc")
    y = ops.linear(ops.gelu(y, "tanh", name=f"{name}.mlp.act"), c.hidden, name=f"{name}.mlp.c_proj")
    return ops.add(x, _drop(c, y, f"{name}.mlp.resid_drop"), name=f"{name}.mlp.add")


def _attention(c: GPTConfig, y: Tensor, name: str) -> Tensor:
    return ops.multi_head_attention(y, y, c.heads, causal=True, dropout=c.dropout, name=name)


def _fused_attention(c: GPTConfig, y: Tensor, name: str) -> Tensor:
    """The same in one kernel; its weights have the same names."""
    samples, steps, hidden = y.shape
    heads = (
        ops.reshape(ops.linear(y, hidden, name=f"{name}.{one}_proj"), (samples, steps, c.heads, -1), name=f"{name}.{one}_heads")
        for one in "qkv"
    )
    seen = ops.flash_attention(*heads, causal=True, dropout=c.dropout, name=f"{name}.context")
    return ops.linear(ops.reshape(seen, (samples, steps, hidden), name=f"{name}.joined"), hidden, name=f"{name}.out_proj")


def _drop(c: GPTConfig, x: Tensor, name: str) -> Tensor:
    return ops.dropout(x, c.dropout, name=name) if c.dropout else x
