"""torch.nn.functional.multi_head_attention_forward, which is recorded as the functions that it is made of."""

from __future__ import annotations

from math import sqrt
from typing import Any

import torch
from torch.nn import functional as F

from taskflow.models.pytorch.site import require
from taskflow.models.pytorch.taken_apart import apart


@apart("multi_head_attention_forward")
def _attention(
    query: Any, key: Any, value: Any, embed_dim_to_check: int, num_heads: int, in_proj_weight: Any, in_proj_bias: Any, bias_k: Any,
    bias_v: Any, add_zero_attn: bool, dropout_p: float, out_proj_weight: Any, out_proj_bias: Any, training: bool = True,
    key_padding_mask: Any = None, need_weights: bool = True, attn_mask: Any = None, use_separate_proj_weight: bool = False,
    q_proj_weight: Any = None, k_proj_weight: Any = None, v_proj_weight: Any = None, static_k: None = None,
    static_v: None = None, average_attn_weights: bool = True, is_causal: bool = False,
) -> Any:
    """Attention of steps (T, N, E), with its weights if they are asked for."""
    require(bias_k is None and bias_v is None and not add_zero_attn, "add_bias_kv and add_zero_attn are not supported")
    require(query.ndim == 3, "one sample alone, without a dimension of samples, is not supported")
    steps, samples, width = query.shape
    weights = (q_proj_weight, k_proj_weight, v_proj_weight) if use_separate_proj_weight else in_proj_weight.chunk(3)
    biases = (None, None, None) if in_proj_bias is None else in_proj_bias.chunk(3)
    q, k, v = (
        F.linear(x, weight, bias).reshape(x.shape[0], samples, num_heads, width // num_heads).permute(1, 2, 0, 3)
        for x, weight, bias in zip((query, key, value), weights, biases)
    )
    scores = _masked((q / sqrt(width // num_heads)) @ k.transpose(-2, -1), attn_mask, (samples, num_heads, steps, key.shape[0]))
    if key_padding_mask is not None:
        scores = _masked(scores, key_padding_mask.reshape(samples, 1, 1, key.shape[0]), ())
    chosen = F.dropout(scores.softmax(-1), dropout_p, training)
    result = F.linear((chosen @ v).permute(2, 0, 1, 3).reshape(steps, samples, width), out_proj_weight, out_proj_bias)
    if not need_weights:
        return result, None
    return result, chosen.mean(1) if average_attn_weights else chosen


def _masked(scores: Any, mask: Any, each: tuple[int, ...]) -> Any:
    """Scores with a mask: True, or what is added, hides. ``each``: the shape of a mask of every sample and head."""
    if mask is None:
        return scores
    mask = mask.reshape(each) if mask.ndim == 3 else mask
    return scores.masked_fill(mask, -torch.inf) if mask.dtype is torch.bool else scores + mask
