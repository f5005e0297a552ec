"""torch.nn.MultiheadAttention, in either order of samples and steps, with masks that are fixed, given, or computed from inputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from taskflow import operators as ops
from taskflow.models.pytorch.attention_masks import fixed_mask, masked_scores
from taskflow.models.pytorch.masks import Mask, lowest_score
from taskflow.models.pytorch.recipes import derived
from taskflow.models.pytorch.registry import Hides, Later, in_order
from taskflow.models.pytorch.site import Site, require
from taskflow.models.pytorch.steps import Fixed
from taskflow.operators.attention import attend_heads, attention_heads
from taskflow.operators.tensor import Tensor


def multihead(
    site: Site, m: nn.MultiheadAttention, query: Any, key: Any, value: Any, key_padding_mask: Any = None,
    need_weights: bool = True, attn_mask: Any = None, average_attn_weights: bool = True, is_causal: bool = False,
) -> Any:
    """Build the attention, and None for its weights."""
    require(m.bias_k is None and not m.add_zero_attn, "add_bias_kv and add_zero_attn are not supported")
    require(len(query.shape) == 3, "one sample alone, without a dimension of samples, is not supported")
    drop, bias = m.dropout if site.training else 0.0, m.in_proj_bias is not None
    known: dict[int, Tensor] = {}
    q, k, v = (_samples_first(part, m.batch_first, f"{site.name}.{at}", known) for part, at in zip((query, key, value), "qkv"))
    rest, causal, window = attn_mask, False, None
    if isinstance(attn_mask, Fixed):
        rest, causal, window = fixed_mask(attn_mask, q.shape[1], k.shape[1], allowed=False)
    require(not is_causal or causal, "is_causal needs the causal attn_mask")
    if window is not None:
        rest, causal = attn_mask, False
    each = [
        attention_heads(part, m.num_heads, which, bias=bias, width=m.embed_dim, name=site.name)
        for part, which in zip((q, k, v), "qkv")
    ]
    seen = None
    if not need_weights and isinstance(key_padding_mask, (Mask, Hides)):  # as scaled_dot_product_attention does it
        seen = _hidden(site.name, key_padding_mask, each[0])
        seen = ops.shift(ops.scale(seen, -1.0, name=f"{site.name}.padding_minus"), 1.0, name=f"{site.name}.padding_seen")
        seen = ops.reshape(seen, (q.shape[0], 1, 1, k.shape[1]), name=f"{site.name}.padding_factor")
    result = attend_heads(
        *each, causal=causal, dropout=drop, bias=bias, seen=seen, name=site.name,
        masked=lambda scores: _masked(site.name, _masked(site.name, scores, rest, False), key_padding_mask, True),
    )
    return result if m.batch_first else Later(result, (0, 1), f"{site.name}.steps"), None


def _samples_first(value: Any, already: bool, name: str, known: dict[int, Tensor]) -> Tensor:
    """A tensor (N, T, H) for one of that order, or of (T, N, H)."""
    if already:
        return in_order(value)  # type: ignore[no-any-return]
    if isinstance(value, Later) and value.dims == (0, 1):
        return value.base
    if id(value) not in known:
        known[id(value)] = ops.transpose(in_order(value), 0, 1, name=f"{name}_samples")
    return known[id(value)]


def _masked(name: str, scores: Tensor, mask: Any, of_keys: bool) -> Tensor:
    """Scores (N, heads, T, S) with a mask of (T, S) or (N heads, T, S), or ``of_keys`` (N, S): True, or minus infinity, hides."""
    if mask is None:
        return scores
    which = "padding" if of_keys else "mask"
    if isinstance(mask, Fixed):
        result = derived(torch.Tensor.reshape, mask.recipe or mask.tensor, _shape(mask.tensor.shape, scores, of_keys))
        return masked_scores(f"{name}.{which}", scores, Fixed(result.tensor, 0, mask.name, result), allowed=False)
    x = _hidden(name, mask, scores)
    x = ops.reshape(x, _shape(x.shape, scores, of_keys), name=f"{name}.{which}_shape")
    if isinstance(mask, (Mask, Hides)):
        x = ops.scale(x, lowest_score(scores.dtype), name=f"{name}.{which}_low")
    return ops.add(scores, x, name=f"{name}.{which}ed")


def _hidden(name: str, mask: Any, like: Tensor) -> Tensor:
    """A mask as floats of the type of scores: 1 for what is hidden, or what is added."""
    x = mask.tensor if isinstance(mask, Mask) else mask.base if isinstance(mask, Hides) else in_order(mask)
    return ops.cast(x, like.dtype, name=f"{name}.mask_type")


def _shape(own: Any, scores: Tensor, of_keys: bool) -> tuple[int, ...]:
    samples, heads, rows, columns = scores.shape
    if of_keys:
        return (samples, 1, 1, columns)
    return (1, 1, rows, columns) if len(own) == 2 else (samples, heads, rows, columns)
