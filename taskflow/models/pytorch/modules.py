"""Modules of torch.nn as operators: for each class a function of its site, the module and its arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import nn

from taskflow import operators as ops
from taskflow.floats import sums_in
from taskflow.models.pytorch.activations import ACTIVATIONS
from taskflow.models.pytorch.arithmetic import add
from taskflow.models.pytorch.convolving import of_rows, of_volumes, padding_of
from taskflow.models.pytorch.dropping import is_drop_path
from taskflow.models.pytorch.experts import SCALED, experts, is_experts, scaled_experts
from taskflow.models.pytorch.filters import fold_layer, windows
from taskflow.models.pytorch.mixers import is_mixer, mixer
from taskflow.models.pytorch.multihead import multihead
from taskflow.models.pytorch.normalising import affine, normalised, normalised_groups
from taskflow.models.pytorch.padding import PADDING, padded
from taskflow.models.pytorch.recurrent import recurrent
from taskflow.models.pytorch.refused import class_of
from taskflow.models.pytorch.registry import least_step, tensor_of
from taskflow.models.pytorch.resizing import channel_shuffle, pixel_shuffle, pixel_unshuffle, upsample
from taskflow.models.pytorch.site import Held, Site, Unsupported, require
from taskflow.models.pytorch.taken_apart import FOLLOWED_MODULES
from taskflow.models.pytorch.turned import CONV1D
from taskflow.operators.tensor import Tensor

Made = Any  # a Tensor, or a tuple of them where the module returns one


def _linear(site: Site, m: nn.Linear, x: Tensor) -> Made:
    if x.ndim == 1:  # one vector without samples, such as a parameter
        y = _linear(site, m, ops.reshape(x, (1, *x.shape), name=f"{site.name}.row"))
        return ops.reshape(y, y.shape[1:], name=f"{site.name}.vector")
    if m.bias is not None and site.has(m.weight) and not site.has(m.bias):  # a table of embeddings under the scores, with biases
        y = site.build(ops.linear, [m.weight], x, m.out_features, False, name=f"{site.name}.product")
        return add(site.name, y, _held(site, m, "bias"))
    if m.bias is not None and site.has(m.bias) and not site.has(m.weight):  # a bias that is taken away before, in autoencoders
        y = site.build(ops.linear, [m.weight], x, m.out_features, False)
        return add(f"{site.name}.biased", y, _held(site, m, "bias"))
    return site.build(ops.linear, [m.weight, m.bias], x, m.out_features, m.bias is not None)


def _conv1d(site: Site, m: Any, x: Tensor) -> Made:
    """Hugging Face's linear layer; `weights_of` turns its weight round."""
    return site.build(ops.linear, [m.weight, m.bias], x, m.nf)


def _conv2d(site: Site, m: nn.Conv2d, x: Tensor) -> Made:
    if m.padding_mode == "zeros":
        padding: Any = padding_of(m)
    else:
        x = padded(f"{site.name}.padded", x, m._reversed_padding_repeated_twice, m.padding_mode)
        padding = 0
    sizes = (m.out_channels, m.kernel_size, m.stride, padding, m.dilation, m.groups)
    return site.build(ops.conv2d, [m.weight, m.bias], x, *sizes, m.bias is not None)


def _conv_transpose2d(site: Site, m: nn.ConvTranspose2d, x: Tensor, output_size: Any = None) -> Made:
    require(output_size is None, "output_size in the call is not supported; give output_padding instead")
    sizes = (m.out_channels, m.kernel_size, m.stride, m.padding, m.output_padding, m.groups)
    return site.build(ops.conv_transpose2d, [m.weight, m.bias], x, *sizes, m.bias is not None, m.dilation)


def _batch_norm(site: Site, m: nn.BatchNorm1d | nn.BatchNorm2d, x: Tensor) -> Made:
    if not m.track_running_stats:
        y = normalised(site.name, x, (0, *range(2, x.ndim)), m.eps, centred=True)
        return affine(site.name, y, *(_by_channels(site, m, of, x.ndim) for of in ("weight", "bias")))
    if not site.training:
        return _frozen_norm(site, m, x)
    options: Any = dict(eps=m.eps, momentum=m.momentum, affine=m.affine, name=site.name)
    first = next((node for node in site.graph if node.name == site.name and node.operator.kind == "normalize"), None)
    if first is None:
        return site.own(ops.batch_norm(x, **options), m.weight, m.bias)
    kept = first.inputs[2:]
    return ops.batch_norm(x, statistics=(kept[0], kept[1]), parameters=first.parameters or None, **options)


def _frozen_norm(site: Site, m: Any, x: Tensor) -> Made:
    """Batch normalisation that is kept in evaluation while the rest trains: by its running statistics, which do not change."""
    mean, variance = (
        ops.reshape(
            ops.state(site.graph, (x.shape[1],), sums_in(x.dtype), start=start, lasting=True, name=f"{site.name}.{of}"),
            (-1, *[1] * (x.ndim - 2)), name=f"{site.name}.{of}_of_channels",
        )
        for of, start in (("running_mean", 0.0), ("running_var", 1.0))
    )
    root = ops.rsqrt(ops.shift(variance, m.eps, name=f"{site.name}.eps"), name=f"{site.name}.root")
    centred = ops.sub(x, ops.cast(mean, x.dtype, name=f"{site.name}.mean"), name=f"{site.name}.centred")
    y = ops.mul(centred, ops.cast(root, x.dtype, name=f"{site.name}.inverse"), name=f"{site.name}.normalised")
    return affine(site.name, y, *(_by_channels(site, m, of, x.ndim) for of in ("weight", "bias")))


def _by_channels(site: Site, m: Any, name: str, ndim: int) -> Tensor | None:
    """A parameter (C) as (C, 1, ...), beside (N, C, ...)."""
    held = _held(site, m, name)
    if held is None:
        return None
    return ops.reshape(tensor_of(held, site.graph, held.site.name), (-1, *[1] * (ndim - 2)), name=f"{site.name}.{name}s")


def _layer_norm(site: Site, m: Any, x: Tensor) -> Made:
    if len(m.normalized_shape) == 1 and m.weight is not None and m.bias is not None:
        return site.build(ops.layer_norm, [m.weight, m.bias], x, m.eps)
    y = normalised(site.name, x, len(m.normalized_shape), m.eps, centred=True)
    return affine(site.name, y, _held(site, m, "weight"), _held(site, m, "bias"))


def _rms_norm(site: Site, m: Any, x: Tensor) -> Made:
    least = least_step(x.dtype) if m.eps is None else m.eps
    if len(m.normalized_shape) == 1 and m.weight is not None and x.ndim > 1:
        return site.build(ops.rms_norm, [m.weight], x, least)
    y = normalised(site.name, x, len(m.normalized_shape), least, centred=False)
    return affine(site.name, y, _held(site, m, "weight"), None)


def _held(site: Site, m: Any, name: str) -> Held | None:
    """A parameter of a layer by itself."""
    parameter = getattr(m, name)
    return None if parameter is None else Held(site.named(parameter, name), parameter)


def _group_norm(site: Site, m: nn.GroupNorm, x: Tensor) -> Made:
    return _by_groups(site, m, x, m.num_groups)


def _instance_norm(site: Site, m: Any, x: Tensor) -> Made:
    require(not m.track_running_stats, "track_running_stats is not supported: evaluation would use other statistics")
    return _by_groups(site, m, x, x.shape[1])


def _by_groups(site: Site, m: Any, x: Tensor, groups: int) -> Made:
    if not m.affine:
        return normalised_groups(site.name, x, groups, m.eps)
    return site.build(ops.group_norm, [m.weight, m.bias], x, groups, m.eps)


def _embedding(site: Site, m: nn.Embedding, x: Tensor) -> Made:
    options = {name: getattr(m, name) for name in ("max_norm", "scale_grad_by_freq")}
    wrong = [f"{name}={value!r}" for name, value in options.items() if value is not None and value is not False]
    require(not wrong, f"max_norm and scale_grad_by_freq are not supported, got {', '.join(wrong)}")
    row = m.padding_idx
    padding = row if row is None or row >= 0 else m.num_embeddings + row
    return site.build(ops.embedding, [m.weight], x, m.num_embeddings, m.embedding_dim, padding=padding)


def _dropout(site: Site, m: nn.Dropout, x: Tensor) -> Made:
    return ops.dropout(x, m.p, name=site.name) if m.p and site.training else x


def stochastic_depth(site: Site, m: Any, x: Tensor) -> Made:
    """torchvision.ops.StochasticDepth."""
    require(m.mode == "row", "mode must be 'row', which leaves out whole samples")
    return ops.stochastic_depth(x, m.p, name=site.name) if m.p and site.training else x


def _drop_path(site: Site, m: Any, x: Tensor) -> Made:
    require(getattr(m, "scale_by_keep", True), "scale_by_keep must be True")
    return ops.stochastic_depth(x, m.drop_prob, name=site.name) if m.drop_prob and site.training else x


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


def _adaptive_avg_pool1d(site: Site, m: nn.AdaptiveAvgPool1d, x: Tensor) -> Made:
    size = m.output_size[0] if isinstance(m.output_size, (tuple, list)) else m.output_size
    rows = ops.reshape(x, (*x.shape[:2], 1, x.shape[2]), name=f"{site.name}.rows")
    return ops.reshape(ops.adaptive_avg_pool2d(rows, (1, size), name=f"{site.name}.pool"), (*x.shape[:2], size), name=site.name)


def _sizes_or_kept(size: Any, x: Tensor) -> tuple[int, int]:
    """An output size (height, width) in which None keeps the input's."""
    both = size if isinstance(size, (tuple, list)) else (size, size)
    height, width = (whole if given is None else given for given, whole in zip(both, x.shape[2:]))
    return height, width


def _pool1d(site: Site, m: Any, x: Tensor) -> Made:
    """Pooling of (N, C, L) as images of one row."""
    one = x.ndim == 3
    require(one and not getattr(m, "return_indices", False), "only of (N, C, L), and return_indices is not supported")
    kernel, stride, pad = (value[0] if isinstance(value, tuple) else value for value in (m.kernel_size, m.stride, m.padding))
    rows = ops.reshape(x, (*x.shape[:2], 1, x.shape[2]), name=f"{site.name}.rows")
    each: Any = dict(kernel_size=(1, kernel), stride=(1, kernel if stride is None else stride), padding=(0, pad))
    if hasattr(m, "dilation"):
        apart = m.dilation[0] if isinstance(m.dilation, tuple) else m.dilation
        y = ops.max_pool2d(rows, **each, dilation=(1, apart), ceil_mode=m.ceil_mode, name=f"{site.name}.pool")
    else:
        more = dict(count_include_pad=m.count_include_pad, ceil_mode=m.ceil_mode)
        y = ops.avg_pool2d(rows, **each, **more, name=f"{site.name}.pool")
    return ops.reshape(y, (*y.shape[:2], y.shape[3]), name=site.name)


def _unfold(site: Site, m: Any, x: Tensor) -> Made:
    require(x.ndim == 4, "one image alone, without a dimension of samples, is not supported")
    return windows(site.name, x, m.kernel_size, m.dilation, m.padding, m.stride)


def _flatten(site: Site, m: nn.Flatten, x: Tensor) -> Made:
    first, last = m.start_dim % x.ndim, m.end_dim % x.ndim
    return ops.reshape(x, (*x.shape[:first], -1, *x.shape[last + 1 :]), name=site.name)


def _unflatten(site: Site, m: Any, x: Tensor) -> Made:
    require(isinstance(m.dim, int), "a dimension by its name")
    at = m.dim % x.ndim
    known = int(np.prod([size for size in m.unflattened_size if size != -1]))
    sizes = [x.shape[at] // known if size == -1 else size for size in m.unflattened_size]
    return ops.reshape(x, (*x.shape[:at], *sizes, *x.shape[at + 1 :]), name=site.name)


BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
LAYERS: dict[type[nn.Module], Callable[..., Made]] = {
    **ACTIVATIONS, **PADDING,
    **dict.fromkeys(BATCH_NORMS, _batch_norm),
    **dict.fromkeys((nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d), _instance_norm),
    **dict.fromkeys((nn.Conv1d, nn.ConvTranspose1d), of_rows), **dict.fromkeys((nn.MaxPool1d, nn.AvgPool1d), _pool1d),
    **dict.fromkeys((nn.Upsample, nn.UpsamplingNearest2d, nn.UpsamplingBilinear2d), upsample),
    **dict.fromkeys((nn.LSTM, nn.GRU), recurrent), **dict.fromkeys((nn.Hardtanh, nn.ReLU6), _hardtanh),
    nn.Linear: _linear, nn.Conv2d: _conv2d, nn.ConvTranspose2d: _conv_transpose2d, nn.Conv3d: of_volumes,
    nn.LayerNorm: _layer_norm, nn.GroupNorm: _group_norm, nn.RMSNorm: _rms_norm, nn.Embedding: _embedding,
    nn.MultiheadAttention: multihead, nn.Dropout: _dropout, nn.Softmax: _softmax,
    nn.MaxPool2d: _max_pool2d, nn.AvgPool2d: _avg_pool2d, nn.AdaptiveAvgPool2d: _adaptive_avg_pool2d,
    nn.AdaptiveAvgPool1d: _adaptive_avg_pool1d, nn.Flatten: _flatten, nn.Unflatten: _unflatten, nn.Unfold: _unfold,
    nn.Fold: fold_layer, nn.PixelShuffle: pixel_shuffle, nn.PixelUnshuffle: pixel_unshuffle,
    nn.ChannelShuffle: channel_shuffle,
    nn.GELU: lambda site, m, x: ops.gelu(x, m.approximate, name=site.name),
    nn.LeakyReLU: lambda site, m, x: ops.leaky_relu(x, m.negative_slope, name=site.name),
    nn.SiLU: lambda site, m, x: ops.silu(x, name=site.name),
    nn.Hardsigmoid: lambda site, m, x: ops.hardsigmoid(x, name=site.name),
    nn.Hardswish: lambda site, m, x: ops.hardswish(x, name=site.name),
    nn.Identity: lambda site, m, x: x,
    nn.ReLU: lambda site, m, x: ops.relu(x, name=site.name),
    nn.Sigmoid: lambda site, m, x: ops.sigmoid(x, name=site.name),
    nn.Tanh: lambda site, m, x: ops.tanh(x, name=site.name),
}  # fmt: skip
"""What each class becomes. Other modules of torch.nn are refused, but for the transformers, which are followed into their parts
like modules of your own."""
FOLLOWED = (
    nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict, nn.Sequential, nn.TransformerEncoder,
    nn.TransformerEncoderLayer, nn.TransformerDecoder, nn.TransformerDecoderLayer, nn.Transformer, *FOLLOWED_MODULES,
)
BY_NAME: dict[str, Callable[..., Made]] = {
    "torchvision.ops.stochastic_depth.StochasticDepth": stochastic_depth, CONV1D: _conv1d, SCALED: scaled_experts,
}
"""Layers of packages that need not be installed."""
IN_EITHER_ORDER = (nn.MultiheadAttention, nn.LSTM, nn.GRU)
"""Layers that take what is to be swapped as it is."""
STATEFUL = (nn.LSTM, nn.GRU, nn.MultiheadAttention, *BATCH_NORMS)
"""Layers that may share no parameter with others."""


def layer_of(module: nn.Module) -> Callable[..., Made] | None:
    """Return the handler of a module as a whole: by its class, or by a base class whose behaviour it does not change."""
    kind = type(module)
    found = BY_NAME.get(f"{kind.__module__}.{kind.__qualname__}")
    if found is None and is_experts(module):
        return experts
    if found is None and is_mixer(module):
        return mixer
    if found is None and is_drop_path(module):
        return _drop_path
    if found is None:
        known = class_of(module, LAYERS)
        found = None if known is None else LAYERS[known]
    return found


def is_leaf(module: nn.Module) -> bool:
    """True for modules that are recorded as a whole."""
    if layer_of(module) is not None:
        return True
    own = type(module).__module__
    whole = own.startswith(("torch.nn.", "torch.ao.nn.")) and not own.startswith("torch.nn.utils.")
    return whole and not isinstance(module, FOLLOWED) and "parametrizations" not in module._modules
