"""Mixers of Hugging Face's selective state space networks: their recurrence over the steps, written there as a loop, is one
operator here.

Gu and Dao, "Mamba: Linear-time sequence modeling with selective state spaces", arXiv 2312.00752.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from taskflow import operators as ops
from taskflow.models.pytorch.normalising import normalised
from taskflow.models.pytorch.site import Site, require
from taskflow.operators.tensor import Tensor

MIXERS = frozenset({
    "transformers.models.mamba.modeling_mamba.MambaMixer",
    "transformers.models.falcon_mamba.modeling_falcon_mamba.FalconMambaMixer",
    "transformers.models.jamba.modeling_jamba.JambaMambaMixer",
})
"""Classes that compute the same but for norms of what the scan reads."""
PARTS = {"conv1d", "act", "in_proj", "x_proj", "dt_proj", "out_proj"}
NORMS = {"dt_layernorm", "b_layernorm", "c_layernorm"}


def is_mixer(module: nn.Module) -> bool:
    """True for a mixer of transformers that is no more than its class says: not one whose layers were replaced, as by adapters."""
    kind = type(module)
    plain = f"{kind.__module__}.{kind.__qualname__}" in MIXERS and PARTS <= {*module._modules} <= PARTS | NORMS
    return plain and all(type(module._modules[name]) is nn.Linear for name in PARTS if name.endswith("_proj"))


def mixer(site: Site, m: Any, hidden_states: Tensor, cache: None = None, attention_mask: None = None) -> Tensor:
    """Build hidden_states (N, T, M) -> (N, T, M): a product, a causal filter, the scan, its gate, and a product."""
    require(cache is None, "keeps its states in a cache, which only generating needs")
    require(attention_mask is None, "with a mask of padding is not supported; give samples of one length")
    act = type(m.act).__name__
    require(act in ("SiLU", "SiLUActivation"), f"the activation {act}; only SiLU")
    both = _linear(site.below("in_proj"), m.in_proj, hidden_states)
    x, gate = ops.split(both, both.shape[2] // 2, 2, name=f"{site.name}.halves")
    x = _filtered(site.below("conv1d"), m.conv1d, x)
    rank, states = m.dt_proj.in_features, m.A_log.shape[1]
    parts = ops.split(_linear(site.below("x_proj"), m.x_proj, x), [rank, states, states], 2, name=f"{site.name}.selected")
    low, b, c = (_normed(site.below(name), getattr(m, name, None), part) for name, part in zip(
        ("dt_layernorm", "b_layernorm", "c_layernorm"), parts
    ))
    steps = _linear(site.below("dt_proj"), m.dt_proj, low)
    y = ops.swiglu(gate, site.build(ops.selective_scan, [m.A_log, m.D], x, steps, b, c), name=f"{site.name}.gated")
    return _linear(site.below("out_proj"), m.out_proj, y)


def _linear(site: Site, m: nn.Linear, x: Tensor) -> Tensor:
    return site.build(ops.linear, [m.weight, m.bias], x, m.out_features, m.bias is not None)


def _filtered(site: Site, m: nn.Conv1d, x: Tensor) -> Tensor:
    (kernel,) = m.kernel_size
    plain = m.groups == m.in_channels == m.out_channels and m.padding == (kernel - 1,) and m.stride == m.dilation == (1,)
    require(plain and m.padding_mode == "zeros", "its convolution is not one filter for each channel that looks back only")
    return site.build(ops.causal_conv1d, [m.weight, m.bias], x, kernel, m.bias is not None, silu=True)


def _normed(site: Site, m: Any, x: Tensor) -> Tensor:
    """What a norm by the root of the mean square makes of ``x``; ``x`` itself where there is none."""
    if m is None:
        return x
    if not isinstance(m.weight, nn.Parameter):  # ones, which nothing reads
        return normalised(site.name, x, 1, m.eps, centred=False)
    return site.build(ops.rms_norm, [m.weight], x, m.variance_epsilon)


def stand_in_of_result(m: nn.Module, hidden_states: torch.Tensor, **_: Any) -> torch.Tensor:
    """Return a tensor of the result's shape that depends on everything that the result depends on, without the loop."""
    result = hidden_states
    for parameter in m.parameters():
        result = result * parameter.sum()
    return result
