"""Modules of torch.nn as operators: for each class a function of its site, the module and what it is called with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from taskflow import operators as ops
from taskflow.models.pytorch.site import Site, Unsupported, require
from taskflow.operators.tensor import Tensor

Made = Any  # a Tensor, or a tuple of them where the module returns one


def _linear(site: Site, m: nn.Linear, x: Tensor) -> Made:
    shared = site.shared(m.weight, m.bias)
    y = ops.linear(x, m.out_features, m.bias is not None, name=site.name, parameters=shared)
    return site.own(y, m.weight, m.bias)


def _conv2d(site: Site, m: nn.Conv2d, x: Tensor) -> Made:
    require(m.padding_mode == "zeros", f"padding_mode {m.padding_mode!r}; only zeros")
    padding: Any = m.padding
    if padding == "valid":
        padding = 0
    elif padding == "same":
        totals = [d * (k - 1) for d, k in zip(m.dilation, m.kernel_size)]
        padding = tuple((total // 2, total - total // 2) for total in totals)
    y = ops.conv2d(
        x, m.out_channels, m.kernel_size, m.stride, padding, m.dilation, m.groups, m.bias is not None, name=site.name,
        parameters=site.shared(m.weight, m.bias),
    )
    return site.own(y, m.weight, m.bias)


def _conv_transpose2d(site: Site, m: nn.ConvTranspose2d, x: Tensor, output_size: Any = None) -> Made:
    require(output_size is None, "output_size in the call is not supported; give output_padding instead")
    padding: Any = m.padding
    y = ops.conv_transpose2d(
        x, m.out_channels, m.kernel_size, m.stride, padding, m.output_padding, m.groups, m.bias is not None, m.dilation,
        name=site.name, parameters=site.shared(m.weight, m.bias),
    )
    return site.own(y, m.weight, m.bias)


def _batch_norm(site: Site, m: nn.BatchNorm1d | nn.BatchNorm2d, x: Tensor) -> Made:
    momentum = m.momentum
    require(m.affine and m.track_running_stats, "needs affine and track_running_stats")
    if momentum is None:
        raise Unsupported("needs a momentum")
    require(site.shared(m.weight, m.bias) is None, "is called twice; its running statistics would follow both")
    return site.own(ops.batch_norm(x, m.eps, momentum, name=site.name), m.weight, m.bias)


def _layer_norm(site: Site, m: Any, x: Tensor) -> Made:
    require(len(m.normalized_shape) == 1 and m.bias is not None, "only over the last dimension, with weight and bias")
    y = ops.layer_norm(x, m.eps, name=site.name, parameters=site.shared(m.weight, m.bias))
    return site.own(y, m.weight, m.bias)


def _group_norm(site: Site, m: nn.GroupNorm, x: Tensor) -> Made:
    require(m.affine, "needs affine")
    y = ops.group_norm(x, m.num_groups, m.eps, name=site.name, parameters=site.shared(m.weight, m.bias))
    return site.own(y, m.weight, m.bias)


def _embedding(site: Site, m: nn.Embedding, x: Tensor) -> Made:
    require(m.padding_idx is None and m.max_norm is None and not m.sparse, "padding_idx, max_norm and sparse are not supported")
    y = ops.embedding(x, m.num_embeddings, m.embedding_dim, name=site.name, parameters=site.shared(m.weight))
    return site.own(y, m.weight)


def _lstm(site: Site, m: nn.LSTM, x: Tensor, hx: Any = None) -> Made:
    require(m.batch_first and m.bias and not m.bidirectional and not m.proj_size, "only batch_first, with biases, in one direction")
    require(hx is None, "a first state; only zeros")
    require(f"{site.name}.l0" not in {node.name for node in site.graph}, "is called twice")
    y, (h, c) = ops.lstm(x, m.hidden_size, m.num_layers, dropout=m.dropout, name=site.name)
    stack = [[ops.reshape(t, (1, *t.shape)) for t in states] for states in (h, c)]
    return y, tuple(states[0] if len(states) == 1 else ops.concat(states, 0) for states in stack)


def _attention(site: Site, m: nn.MultiheadAttention, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Made:
    require(m.batch_first and m.in_proj_weight is not None, "only batch_first, with queries, keys and values of one width")
    require(m.bias_k is None and not m.add_zero_attn, "add_bias_kv and add_zero_attn are not supported")
    require(key is value, "keys and values must be one tensor")
    masks = {name: mask for name, mask in options.items() if name.endswith("mask") and mask is not None}
    require(not masks and not options.get("is_causal"), f"masks are not supported ({', '.join(masks) or 'is_causal'})")
    require(site.shared(m.in_proj_weight) is None, "is called twice")
    made = ops.multi_head_attention(
        query, key, m.num_heads, dropout=m.dropout, bias=m.in_proj_bias is not None, name=site.name
    )
    return made, None


def _encoder_layer(site: Site, m: nn.TransformerEncoderLayer, x: Tensor, **options: Any) -> Made:
    require(not any(value is not None and value is not False for value in options.values()), "masks are not supported")
    act = m.activation
    require(act in (nn.functional.relu, nn.functional.gelu) or isinstance(act, (nn.ReLU, nn.GELU)), "only relu and gelu")

    def attend(x: Tensor) -> Tensor:
        made = _attention(site.below("self_attn"), m.self_attn, x, x, x)[0]
        return _dropout(site.below("dropout1"), m.dropout1, made)  # type: ignore[no-any-return]

    def forward(x: Tensor) -> Tensor:
        y = _linear(site.below("linear1"), m.linear1, x)
        y = (ops.relu if act is nn.functional.relu or isinstance(act, nn.ReLU) else ops.gelu)(y, name=f"{site.name}.activation")
        y = _linear(site.below("linear2"), m.linear2, _dropout(site.below("dropout"), m.dropout, y))
        return _dropout(site.below("dropout2"), m.dropout2, y)  # type: ignore[no-any-return]

    for number, (part, norm) in enumerate(((attend, m.norm1), (forward, m.norm2)), 1):
        at, add = site.below(f"norm{number}"), f"{site.name}.add{number}"
        if m.norm_first:
            x = ops.add(x, part(_layer_norm(at, norm, x)), name=add)
        else:
            x = _layer_norm(at, norm, ops.add(x, part(x), name=add))
    return x


def _encoder(site: Site, m: nn.TransformerEncoder, x: Tensor, **options: Any) -> Made:
    for number, layer in enumerate(m.layers):
        x = _encoder_layer(site.below(f"layers.{number}"), layer, x, **options)
    return x if m.norm is None else _layer_norm(site.below("norm"), m.norm, x)


def _dropout(site: Site, m: nn.Dropout, x: Tensor) -> Made:
    return ops.dropout(x, m.p, name=site.name) if m.p else x


def _gelu(site: Site, m: nn.GELU, x: Tensor) -> Made:
    return ops.gelu(x, m.approximate, name=site.name)


def _leaky_relu(site: Site, m: nn.LeakyReLU, x: Tensor) -> Made:
    below = ops.relu(ops.scale(x, -1.0, name=f"{site.name}.minus"), name=f"{site.name}.below")
    return ops.sub(
        ops.relu(x, name=f"{site.name}.above"), ops.scale(below, m.negative_slope, name=f"{site.name}.slope"), name=site.name
    )


def _silu(site: Site, m: Any, x: Tensor) -> Made:
    return ops.mul(x, ops.sigmoid(x, name=f"{site.name}.sigmoid"), name=site.name)


def _hardtanh(site: Site, m: nn.Hardtanh, x: Tensor) -> Made:
    return ops.hardtanh(x, m.min_val, m.max_val, name=site.name)


def _softmax(site: Site, m: nn.Softmax, x: Tensor) -> Made:
    if m.dim is None:
        raise Unsupported("needs dim")
    return ops.softmax(x, m.dim, name=site.name)


def _max_pool2d(site: Site, m: nn.MaxPool2d, x: Tensor) -> Made:
    require(not m.return_indices, "return_indices is not supported")
    return ops.max_pool2d(x, m.kernel_size, m.stride, m.padding, m.dilation, ceil_mode=m.ceil_mode, name=site.name)


def _avg_pool2d(site: Site, m: nn.AvgPool2d, x: Tensor) -> Made:
    require(m.divisor_override is None, "divisor_override is not supported")
    return ops.avg_pool2d(
        x, m.kernel_size, m.stride, m.padding, count_include_pad=m.count_include_pad, ceil_mode=m.ceil_mode, name=site.name
    )


def _adaptive_avg_pool2d(site: Site, m: nn.AdaptiveAvgPool2d, x: Tensor) -> Made:
    return ops.adaptive_avg_pool2d(x, _sizes_or_kept(m.output_size, x), name=site.name)


def _sizes_or_kept(size: Any, x: Tensor) -> tuple[int, int]:
    """An output size (height, width) in which None keeps the input's."""
    both = size if isinstance(size, (tuple, list)) else (size, size)
    height, width = (whole if given is None else given for given, whole in zip(both, x.shape[2:]))
    return height, width


def _upsample(site: Site, m: nn.Upsample, x: Tensor) -> Made:
    require(m.mode == "nearest" and x.ndim == 4, f"only images (N, C, H, W), by mode 'nearest', not {m.mode!r} of {x}")
    given: Any = m.size if m.scale_factor is None else m.scale_factor
    down, right = given if isinstance(given, (tuple, list)) else (given, given)
    if m.scale_factor is None:
        down, right = down / x.shape[2], right / x.shape[3]
    require(down == int(down) and right == int(right), f"only by whole factors, not {down:g} and {right:g}")
    for number, (dim, times) in enumerate(((2, int(down)), (3, int(right)))):
        at = f"{site.name}.{'rows' if dim == 2 else 'columns'}"
        whole = (*x.shape[:dim], times * x.shape[dim], *x.shape[dim + 1 :])
        if times > 1:  # each element that many times, in a dimension of its own
            alone = ops.reshape(x, (*x.shape[: dim + 1], 1, *x.shape[dim + 1 :]), name=f"{at}.each")
            x = ops.concat([alone] * times, dim + 1, name=f"{at}.again")
        if times > 1 or number:
            x = ops.reshape(x, whole, name=site.name if number else at)
    return x


def _flatten(site: Site, m: nn.Flatten, x: Tensor) -> Made:
    return merged(x, m.start_dim, m.end_dim, site.name)


def merged(x: Tensor, start: int, end: int, name: str) -> Tensor:
    """torch.flatten: dimensions from ``start`` to ``end`` as one."""
    first, last = start % x.ndim, end % x.ndim
    return ops.reshape(x, (*x.shape[:first], -1, *x.shape[last + 1 :]), name=name)


LAYERS: dict[type[nn.Module], Callable[..., Made]] = {
    nn.Linear: _linear, nn.Conv2d: _conv2d, nn.ConvTranspose2d: _conv_transpose2d, nn.BatchNorm1d: _batch_norm,
    nn.BatchNorm2d: _batch_norm, nn.LayerNorm: _layer_norm, nn.GroupNorm: _group_norm,
    nn.Embedding: _embedding, nn.LSTM: _lstm, nn.MultiheadAttention: _attention, nn.TransformerEncoderLayer: _encoder_layer,
    nn.TransformerEncoder: _encoder, nn.Dropout: _dropout, nn.GELU: _gelu, nn.LeakyReLU: _leaky_relu, nn.SiLU: _silu,
    nn.Softmax: _softmax, nn.MaxPool2d: _max_pool2d, nn.AvgPool2d: _avg_pool2d, nn.AdaptiveAvgPool2d: _adaptive_avg_pool2d,
    nn.Flatten: _flatten, nn.Upsample: _upsample, nn.Hardtanh: _hardtanh, nn.ReLU6: _hardtanh,
    nn.Hardsigmoid: lambda site, m, x: ops.hardsigmoid(x, name=site.name),
    nn.Hardswish: lambda site, m, x: ops.hardswish(x, name=site.name),
    nn.Identity: lambda site, m, x: x,
    nn.ReLU: lambda site, m, x: ops.relu(x, name=site.name),
    nn.Sigmoid: lambda site, m, x: ops.sigmoid(x, name=site.name),
    nn.Tanh: lambda site, m, x: ops.tanh(x, name=site.name),
}  # fmt: skip
"""What each class becomes. `torch.fx` calls modules of torch.nn as a whole and follows all others into their parts."""
