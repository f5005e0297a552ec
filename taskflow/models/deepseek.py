"""DeepSeek: Mixtral's decoder with latent attention, experts beside one that all tokens use, and dense first layers (DeepSeek-AI,
"DeepSeek-V3 technical report", arXiv 2412.19437, sections 2.1 and 4.2; "DeepSeek-V2", arXiv 2405.04434, section 2.1)."""

from __future__ import annotations

from dataclasses import dataclass

from taskflow import operators as ops
from taskflow.graph import OperatorGraph
from taskflow.models.llama import LlamaConfig
from taskflow.models.mixtral import MixtralConfig, decoder
from taskflow.operators.tensor import Tensor


@dataclass(frozen=True, slots=True)
class DeepSeekConfig(MixtralConfig):
    """Sizes of the network; the defaults are those of DeepSeek V3, without its layer that predicts a second word. Beyond Mixtral's:
    ``query_rank`` and ``key_rank``: features from which queries, and keys with values, are made (``query_rank`` None: from x).
    ``head_size``: features of a head without positions, ``rotated``: those with positions, which all heads' keys share;
    ``value_size``: of a head's values. ``key_heads`` means nothing."""

    steps: int = 4096
    vocabulary: int = 129_280
    hidden: int = 7168
    inner: int = 18_432
    heads: int = 128
    layers: int = 61
    theta: float = 10_000.0
    eps: float = 1e-6
    head_size: int | None = 128
    experts: int = 256
    chosen: int = 8
    balance: float = 1e-4
    expert_inner: int | None = 2048
    shared: int | None = 1
    dense: int | None = 3
    expert_groups: int = 8
    chosen_groups: int = 4
    query_rank: int | None = 1536
    key_rank: int = 512
    rotated: int = 64
    value_size: int = 128

    @staticmethod
    def small() -> DeepSeekConfig:
        """Return the same layers, narrow and short."""
        return DeepSeekConfig(
            batch=4, steps=6, vocabulary=17, hidden=8, inner=12, heads=4, layers=2, experts=4, chosen=2, expert_inner=6, dense=1,
            expert_groups=2, chosen_groups=1,
            head_size=4, query_rank=6, key_rank=5, rotated=2, value_size=3, balance=0.01,
        )  # fmt: skip


SIZES = {
    "V2-Lite": DeepSeekConfig(
        vocabulary=102_400, hidden=2048, inner=10_944, heads=16, layers=27, experts=64, chosen=6, expert_inner=1408, shared=2,
        dense=1, query_rank=None, balance=0.001, expert_groups=1, chosen_groups=1,
    ),
    "V3": DeepSeekConfig(),
}  # fmt: skip


def deepseek(config: DeepSeekConfig, dtype: str = "float32") -> OperatorGraph:
    """Build DeepSeek. Inputs, losses and names as of `mixtral`."""
    return decoder(config, "DeepSeek", latent_attention, dtype)


def latent_attention(c: LlamaConfig, x: Tensor, name: str) -> Tensor:
    """Add self-attention to x (N, T, H) whose keys and values of all heads are made from a few features of each word."""
    assert isinstance(c, DeepSeekConfig)
    y, plain = ops.rms_norm(x, c.eps, name=f"{name}.input_layernorm"), c.head_size or c.hidden // c.heads
    name, rows = f"{name}.self_attn", x.shape[:2]
    if c.query_rank is None:
        flat = ops.linear(y, c.heads * (plain + c.rotated), False, name=f"{name}.q_proj")
    else:
        few = ops.linear(y, c.query_rank, False, name=f"{name}.q_a_proj")
        few = ops.rms_norm(few, c.eps, name=f"{name}.q_a_layernorm")
        flat = ops.linear(few, c.heads * (plain + c.rotated), False, name=f"{name}.q_b_proj")
    q = ops.reshape(flat, (*rows, c.heads, plain + c.rotated), name=f"{name}.q_heads")
    q_plain, q_turned = ops.split(q, (plain, c.rotated), 3, name=f"{name}.q_parts")
    few, turned = ops.split(
        ops.linear(y, c.key_rank + c.rotated, False, name=f"{name}.kv_a_proj_with_mqa"), (c.key_rank, c.rotated), 2,
        name=f"{name}.kv_a_parts",
    )  # fmt: skip
    few = ops.rms_norm(few, c.eps, name=f"{name}.kv_a_layernorm")
    both = ops.linear(few, c.heads * (plain + c.value_size), False, name=f"{name}.kv_b_proj")
    both = ops.reshape(both, (*rows, c.heads, plain + c.value_size), name=f"{name}.kv_heads")
    k_plain, v = ops.split(both, (plain, c.value_size), 3, name=f"{name}.kv_parts")
    turned = ops.reshape(turned, (*rows, 1, c.rotated), name=f"{name}.k_head")
    turned = ops.rotary(turned, c.theta, scaling=c.scaling, neighbours=True, name=f"{name}.k_rotary")
    turned = ops.expand(turned, (*rows, c.heads, c.rotated), name=f"{name}.k_shared")
    q_turned = ops.rotary(q_turned, c.theta, scaling=c.scaling, neighbours=True, name=f"{name}.q_rotary")
    q = ops.concat((q_plain, q_turned), 3, name=f"{name}.q_joined")
    k = ops.concat((k_plain, turned), 3, name=f"{name}.k_joined")
    y = ops.flash_attention(q, k, v, causal=True, window=c.window, key_blocks=c.key_blocks, name=f"{name}.attention")
    y = ops.reshape(y, (*rows, c.heads * c.value_size), name=f"{name}.joined")
    return ops.add(x, ops.linear(y, c.hidden, False, name=f"{name}.o_proj"), name=f"{name}.add")
