"""Experts of Hugging Face's networks: feed-forward layers, some of which each token uses."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from taskflow import operators as ops
from taskflow.models.pytorch.site import Site, require
from taskflow.operators.tensor import Tensor

PARTS = ("gate_proj", "up_proj", "down_proj")
"""Our weights: gates and values, which lie in one array there, and what leads back to the tokens' features."""


def is_experts(module: nn.Module) -> bool:
    """True for classes decorated with ``use_experts_implementation``, which gives one layer several algorithms."""
    said = ("has_gate", "has_bias", "is_transposed", "is_concatenated", "num_experts")
    return type(module).__module__.startswith("transformers.models.") and all(hasattr(module, name) for name in said)


def parts_of(module: Any) -> list[tuple[str, str, slice]]:
    """Return for each of our weights its name below the module, the parameter there, and which of its rows (dimension 1) it is."""
    half = module.gate_up_proj.shape[1] // 2
    rows = (slice(0, half), slice(half, 2 * half), slice(None))
    return [(f"{part}.weight", "down_proj" if part == "down_proj" else "gate_up_proj", r) for part, r in zip(PARTS, rows)]


def experts(site: Site, m: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """Build hidden_states (S, M), top_k_index and top_k_weights (S, k) -> (S, M): the sum over k of the weight times the
    expert's output for the token. Every token is served ("dropless")."""
    plain = m.has_gate and not m.has_bias and not m.is_transposed and m.is_concatenated
    plain = plain and not getattr(m, "has_post_expert_norm", False) and {name for name, _ in m.named_parameters()} == {
        "gate_up_proj", "down_proj"
    }
    require(plain, "experts with biases, norms, turned or interleaved weights are not supported; only act(gate) * up, then down")
    gated = getattr(m, "_apply_gate", None)
    require(
        getattr(gated, "__module__", "transformers.integrations.moe") == "transformers.integrations.moe",
        "combines gate and up by a function of its own (_apply_gate)",
    )
    require(isinstance(m.act_fn, nn.SiLU) or type(m.act_fn).__name__ == "SiLUActivation", f"the activation {m.act_fn}; only SiLU")
    count, inner, features = m.gate_up_proj.shape[0], m.gate_up_proj.shape[1] // 2, m.gate_up_proj.shape[2]
    tokens, choices = top_k_index.shape
    groups = _groups(site, tokens)
    x = ops.reshape(hidden_states, (groups, tokens // groups, features), name=f"{site.name}.tokens")
    chosen = ops.reshape(top_k_index, (groups, tokens // groups, choices), name=f"{site.name}.chosen")
    weights = ops.reshape(top_k_weights, (groups, tokens // groups, choices), name=f"{site.name}.weights")
    gate, up = (ops.routed_linear(x, chosen, count, inner, name=f"{site.name}.{part}") for part in PARTS[:2])
    made = ops.swiglu(gate, up, name=f"{site.name}.act")
    made = ops.routed_linear(made, chosen, count, features, name=f"{site.name}.{PARTS[2]}")
    weights = ops.cast(weights, made.dtype, name=f"{site.name}.weights_type")  # of routers, which may be in float32
    made = ops.einsum("ntkh,ntk->nth", made, weights, name=f"{site.name}.combine")
    return ops.reshape(made, (tokens, features), name=site.name)


def _groups(site: Site, tokens: int) -> int:
    """The samples whose tokens these are, so that samples can be cut: the batch, where it divides them."""
    batch = next((n.outputs[0].shape[0] for n in site.graph if n.operator.kind == "input" and n.outputs[0].shape), 1)
    return batch if tokens % batch == 0 else 1


def without_numbers(m: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the result's shape that depends on everything that the result depends on. (Which algorithm computes
    it, and how many tokens an expert has, is known only with numbers.)"""
    made: torch.Tensor = hidden_states * (top_k_weights.sum() * m.gate_up_proj.sum() * m.down_proj.sum())
    return made
