"""Functions of torch.nn.functional as operators; functions of a module's parameters become that module's layer."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from taskflow import operators as ops
from taskflow.models.pytorch.arithmetic import add, matmul, mul
from taskflow.models.pytorch.attention_masks import causal_bias, chunk_of, fixed_mask, masked_scores
from taskflow.models.pytorch.convolving import as_planes
from taskflow.models.pytorch.filters import filtered
from taskflow.models.pytorch.masks import Mask
from taskflow.models.pytorch.modules import LAYERS
from taskflow.models.pytorch.normalising import affine, normalised, normalised_groups
from taskflow.models.pytorch.registry import (
    FUNCTIONS,
    Again,
    Function,
    Later,
    Lazy,
    TurnedWeight,
    graph_of,
    in_order,
    layer_site,
    least_step,
    stands_for,
    swapped,
    tensor_of,
)
from taskflow.models.pytorch.shaping import repeat_interleave, transpose
from taskflow.models.pytorch.site import Held, require
from taskflow.models.pytorch.steps import Fixed
from taskflow.models.pytorch.weight_norm import Normed, convolved, normed_along
from taskflow.operators.tensor import Tensor


def _layer(kind: type[nn.Module], x: Any, parameters: dict[str, Any], **attributes: Any) -> Any:
    """The layer of torch.nn that has these parameters, if they are called as there and belong to one module of their own
    (a module that is the whole has no name); else None. ``parameters``: by the layer's names; None where there is none."""
    held = {name: value for name, value in parameters.items() if value is not None}
    fine = isinstance(x, Tensor) and held and all(
        isinstance(value, Held) and value.site.name.endswith(f".{name}") for name, value in held.items()
    )
    if not fine or len({value.layer.name for value in held.values()}) > 1:
        return None
    site = next(iter(held.values())).layer
    tensors = {name: None if value is None else value.tensor for name, value in parameters.items()}
    return LAYERS[kind](site, SimpleNamespace(**tensors, **attributes), x)


def several(value: Any, count: int) -> tuple[Any, ...]:
    """Return one number for each of so many dimensions, from one for all or from a sequence."""
    return tuple(value) if isinstance(value, (tuple, list)) else (value,) * count


@stands_for("linear", raw=True)
def linear(name: str, input: Any, weight: Any, bias: Any = None) -> Any:
    """input weight^T + bias."""
    known = [value.site.has(value.tensor) for value in (weight, bias) if isinstance(value, Held)]
    if isinstance(weight, Held) and len(weight.shape) == 2 and known != [False, True]:  # a bias of another layer
        layer = _layer(nn.Linear, input, {"weight": weight, "bias": bias}, out_features=weight.shape[0])
        if layer is not None:
            return layer
    graph = graph_of(input, weight, bias)
    x, w = tensor_of(input, graph, name), tensor_of(weight, graph, name)
    require(w.ndim == 2, "the weight must have two dimensions")
    y = matmul(f"{name}.product", x, ops.transpose(w, 0, 1, name=f"{name}.turned"))
    return y if bias is None else add(name, y, bias)


@stands_for("matmul", "bmm", "mm", "__matmul__", later=True)
def product(name: str, input: Any, other: Any) -> Any:
    """input other; with a parameter that is turned round, a linear layer."""
    if isinstance(other, TurnedWeight) and len(input.shape) > 1:
        return linear(name, tensor_of(input, graph_of(input, other), name), other.base)
    graph = graph_of(input, other)
    return matmul(name, tensor_of(input, graph, name), tensor_of(other, graph, name))


@stands_for("addmm", later=True)
def addmm(name: str, input: Any, mat1: Any, mat2: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    """input + mat1 mat2."""
    require(alpha == beta == 1, "alpha and beta must be 1")
    graph = graph_of(input, mat1, mat2)
    if isinstance(mat2, TurnedWeight) and isinstance(input, Held) and len(input.shape) == 1:
        return linear(name, tensor_of(mat1, graph, name), mat2.base, input)
    return add(name, product(f"{name}.product", mat1, mat2), tensor_of(input, graph, name))


def _convolution(kind: type[nn.Module], dims: int, turned: bool) -> Function:
    """A convolution with a module's parameters, whose weight may be normalised."""

    def built(
        name: str, input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, *args: Any, **named: Any
    ) -> Any:
        rest = dict(zip(("output_padding", "groups", "dilation") if turned else ("dilation", "groups"), args), **named)
        shape = weight.shape if isinstance(weight, (Held, Normed)) else (0,) * (2 + dims)
        groups = rest.pop("groups", 1)
        options = dict(
            out_channels=shape[1] * groups if turned else shape[0], kernel_size=shape[2:], stride=several(stride, dims),
            padding=padding if isinstance(padding, str) else several(padding, dims), groups=groups, padding_mode="zeros",
            dilation=several(rest.pop("dilation", 1), dims), output_padding=several(rest.pop("output_padding", 0), dims),
        )
        require(not rest, f"argument {next(iter(rest), '')!r} is not understood")
        if isinstance(weight, Normed):
            return convolved(kind, LAYERS[kind], tensor_of(input, graph_of(input), name), weight, bias, options)
        if isinstance(weight, (Tensor, Fixed)) and not turned and dims < 3:
            return filtered(name, input, weight, bias, options)
        planes = not isinstance(weight, Held) or as_planes(kind, weight.shape) == weight.shape
        if not planes and not turned and dims < 3:
            return filtered(name, input, weight, bias, options)
        require(planes, "by function only with images: the parameter of a torch.nn layer is turned into theirs")
        layer = _layer(kind, in_order(input), {"weight": weight, "bias": bias}, transposed=turned, **options)
        if layer is None and isinstance(weight, Held) and not turned and dims < 3:  # of another name, or beside no parameter
            return filtered(name, input, weight, bias, options)
        require(layer is not None, "needs trained parameters called weight and bias, of one module inside of the whole")
        return layer

    return built


for _kind, _dims in ((nn.Conv1d, 1), (nn.Conv2d, 2), (nn.Conv3d, 3), (nn.ConvTranspose1d, 1), (nn.ConvTranspose2d, 2)):
    _turned = issubclass(_kind, (nn.ConvTranspose1d, nn.ConvTranspose2d))
    stands_for(f"conv_transpose{_dims}d" if _turned else f"conv{_dims}d", later=True)(_convolution(_kind, _dims, _turned))


@stands_for("_weight_norm", raw=True)
def weight_norm(name: str, v: Any, g: Any, dim: int = 0) -> Any:
    """A weight in two parts, its lengths and its directions."""
    require(isinstance(v, Held) and isinstance(g, Held), "of what is no parameter")
    if dim in (0, -len(v.shape)):
        return Normed(v, g, name, lambda held: tensor_of(held, held.site.graph, name))
    return normed_along(name, v, g, dim)


@stands_for("embedding", raw=True)
def embedding(
    name: str, input: Any, weight: Any, padding_idx: int | None = None, max_norm: None = None, norm_type: float = 2.0,
    scale_grad_by_freq: bool = False, sparse: bool = False,
) -> Any:
    """Rows of a module's table."""
    shape = weight.shape if isinstance(weight, Held) else (0, 0)
    x = tensor_of(input, graph_of(input, weight), name)
    layer = _layer(
        nn.Embedding, x, {"weight": weight}, num_embeddings=shape[0], embedding_dim=shape[1], padding_idx=padding_idx,
        max_norm=max_norm, scale_grad_by_freq=scale_grad_by_freq, sparse=sparse,
    )
    require(not isinstance(weight, Fixed), "a table that is not trained (requires_grad=False) has no counterpart; train it")
    require(layer is not None, "needs a parameter called weight, of a module inside of the whole")
    return layer


# ---- normalisation -----------------------------------------------------------------------------------------------------------


@stands_for("layer_norm", raw=True)
def layer_norm(
    name: str, input: Any, normalized_shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    """Normalisation over the last dimensions."""
    if len(normalized_shape) == 1 and bias is not None:
        layer = _layer(
            nn.LayerNorm, input, {"weight": weight, "bias": bias}, normalized_shape=tuple(normalized_shape), eps=eps
        )
        if layer is not None:
            return layer
    x = tensor_of(input, graph_of(input, weight, bias), name)
    return affine(name, normalised(name, x, len(normalized_shape), eps, centred=True), weight, bias)


@stands_for("rms_norm", raw=True)
def rms_norm(name: str, input: Any, normalized_shape: Sequence[int], weight: Any = None, eps: float | None = None) -> Any:
    """Normalisation by the root of the mean square over the last dimensions."""
    x = tensor_of(input, graph_of(input, weight), name)
    least = least_step(x.dtype) if eps is None else eps
    return affine(name, normalised(name, x, len(normalized_shape), least, centred=False), weight, None)


@stands_for("group_norm", raw=True)
def group_norm(name: str, input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """Normalisation over groups of channels."""
    if bias is not None:
        layer = _layer(
            nn.GroupNorm, input, {"weight": weight, "bias": bias}, num_groups=num_groups, eps=eps, affine=True
        )
        if layer is not None:
            return layer
    x = tensor_of(input, graph_of(input, weight, bias), name)
    _, channels, *rest = x.shape
    y = normalised_groups(name, x, num_groups, eps)
    for number, (build, parameter) in enumerate(((mul, weight), (add, bias))):
        if parameter is not None:
            whole = tensor_of(parameter, y.graph, name)
            y = build(f"{name}.{number}", y, ops.reshape(whole, (channels, *[1] * len(rest)), name=f"{name}.channels"))
    return y


@stands_for("instance_norm", raw=True)
def instance_norm(
    name: str, input: Any, running_mean: None = None, running_var: None = None, weight: Any = None, bias: Any = None,
    use_input_stats: bool = True, momentum: float = 0.1, eps: float = 1e-5,
) -> Any:
    """Normalisation of every channel of every sample by itself."""
    require(running_mean is None and use_input_stats, "running statistics are not supported")
    return group_norm(name, input, input.shape[1], weight, bias, eps)


# ---- activations, pooling ----------------------------------------------------------------------------------------------------


def _as_layer(kind: type[nn.Module], **arguments: Any) -> Function:
    """A function that takes what a layer has as attributes, by the same names and in this order."""

    def built(name: str, input: Tensor, *args: Any, **options: Any) -> Any:
        require(len(args) <= len(arguments), f"takes at most {len(arguments) + 1} arguments")
        named = dict(zip(arguments, args))
        unknown = [key for key in options if key not in arguments or key in named]
        require(not unknown, f"argument {unknown[0] if unknown else ''!r} is not understood")
        return LAYERS[kind](layer_site(name, input), SimpleNamespace(**{**arguments, **named, **options}), input)

    return built


stands_for("gelu")(_as_layer(nn.GELU, approximate="none"))
stands_for("silu")(_as_layer(nn.SiLU, inplace=False))
stands_for("leaky_relu", "leaky_relu_")(_as_layer(nn.LeakyReLU, negative_slope=0.01, inplace=False))
stands_for("elu", "elu_")(_as_layer(nn.ELU, alpha=1.0, inplace=False))
stands_for("selu", "selu_")(_as_layer(nn.SELU, inplace=False))
stands_for("celu", "celu_")(_as_layer(nn.CELU, alpha=1.0, inplace=False))
stands_for("softplus")(_as_layer(nn.Softplus, beta=1.0, threshold=20.0))
stands_for("mish")(_as_layer(nn.Mish, inplace=False))
stands_for("glu")(_as_layer(nn.GLU, dim=-1))
stands_for("logsigmoid")(_as_layer(nn.LogSigmoid))
stands_for("softmin")(_as_layer(nn.Softmin, dim=None))
stands_for("tanhshrink")(_as_layer(nn.Tanhshrink))
stands_for("pixel_shuffle")(_as_layer(nn.PixelShuffle, upscale_factor=None))
stands_for("pixel_unshuffle")(_as_layer(nn.PixelUnshuffle, downscale_factor=None))
stands_for("hardtanh", "hardtanh_")(_as_layer(nn.Hardtanh, min_val=-1.0, max_val=1.0, inplace=False))
stands_for("hardswish")(_as_layer(nn.Hardswish, inplace=False))
stands_for("hardsigmoid")(_as_layer(nn.Hardsigmoid, inplace=False))
stands_for("adaptive_avg_pool1d")(_as_layer(nn.AdaptiveAvgPool1d, output_size=None))
stands_for("adaptive_avg_pool2d")(_as_layer(nn.AdaptiveAvgPool2d, output_size=None))
stands_for("max_pool2d")(_as_layer(
    nn.MaxPool2d, kernel_size=None, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False
))
stands_for("avg_pool2d")(_as_layer(
    nn.AvgPool2d, kernel_size=None, stride=None, padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None
))
stands_for("max_pool1d")(_as_layer(
    nn.MaxPool1d, kernel_size=None, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False
))
stands_for("avg_pool1d")(_as_layer(
    nn.AvgPool1d, kernel_size=None, stride=None, padding=0, ceil_mode=False, count_include_pad=True
))
stands_for("channel_shuffle")(_as_layer(nn.ChannelShuffle, groups=None))
FUNCTIONS[F.unfold] = _as_layer(nn.Unfold, kernel_size=None, dilation=1, padding=0, stride=1)
stands_for("interpolate")(_as_layer(
    nn.Upsample, size=None, scale_factor=None, mode="nearest", align_corners=None, recompute_scale_factor=None, antialias=False
))


@stands_for("relu6")
def relu6(name: str, input: Tensor, inplace: bool = False) -> Any:
    """Numbers below 0 become 0, above 6 become 6."""
    return ops.hardtanh(input, 0.0, 6.0, name=name)


@stands_for("relu", "relu_")
def relu(name: str, input: Tensor, inplace: bool = False) -> Any:
    """Numbers below 0 become 0."""
    return ops.relu(input, name=name)


@stands_for("prelu", raw=True)
def prelu(name: str, input: Any, weight: Any) -> Any:
    """Numbers below 0 times a trained weight."""
    graph = graph_of(input, weight)
    x = tensor_of(input, graph, name)
    require(isinstance(weight, Held), "the weight must be a parameter")
    return LAYERS[nn.PReLU](weight.site.below(name), SimpleNamespace(weight=weight.tensor), x)


@stands_for("softmax")
def softmax(name: str, input: Tensor, dim: int, _stacklevel: int = 3, dtype: Any = None) -> Any:
    """Positive numbers that add up to 1; the type of the result is compared with PyTorch's."""
    return ops.softmax(input, dim, name=name)


@stands_for("dropout")
def dropout(name: str, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """Dropout in training. (`recording.py` checks that evaluation has none.)"""
    return ops.dropout(input, p, name=name) if training and p else input


@stands_for("topk")
def topk(name: str, input: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    """The k largest numbers of the last dimension, and their positions."""
    require(dim in (-1, input.ndim - 1) and largest, "only the largest, of the last dimension")
    return ops.top_k(input, k, name=name)


# ---- attention ---------------------------------------------------------------------------------------------------------------


def _flash(q: Sequence[int], k: Sequence[int], v: Sequence[int], causal: bool, grouped: bool) -> bool:
    """True for shapes (N, heads, T, features) that the operator without a matrix of weights computes as PyTorch means it."""
    alike = len(q) == len(k) == len(v) == 4 and q[0] == k[0] == v[0] and k[:3] == v[:3]
    heads = alike and (q[1] == k[1] or (grouped and q[1] % k[1] == 0))
    return heads and q[3] == k[3] and (not causal or q[2] == k[2])


@stands_for("scaled_dot_product_attention", later=True)
def attention(
    name: str, query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: float | None = None, enable_gqa: bool = False,
) -> Any:
    """Build softmax(query key^T scale + mask) value. ``is_causal``: query t sees the keys up to t, even if there are more keys."""
    graph = graph_of(query, key, value)
    each: list[Any] = [part if isinstance(part, Lazy) else tensor_of(part, graph, name) for part in (query, key, value)]
    window = chunk = None
    if isinstance(attn_mask, Fixed):
        rows, columns = each[0].shape[-2], each[1].shape[-2]
        attn_mask, hides_later, window = fixed_mask(attn_mask, rows, columns)
        chunk = chunk_of(attn_mask, rows, columns) if attn_mask is not None else None
        bias = causal_bias(attn_mask, rows, columns) if attn_mask is not None and chunk is None and not is_causal else None
        attn_mask, is_causal = (attn_mask, is_causal or hides_later) if bias is None else (bias, True)
    ruled = attn_mask is None or chunk is not None
    if ruled and isinstance(each[1], Again) and isinstance(each[2], Again) and each[1].times == each[2].times:
        each, enable_gqa = [each[0], each[1].base, each[2].base], True
    if ruled and _flash(each[0].shape, each[1].shape, each[2].shape, is_causal or chunk is not None, enable_gqa):
        q, k, v = (swapped(part, 1, 2, name=f"{name}.{at}") for part, at in zip(each, "qkv"))
        whole = (*q.shape[:3], v.shape[3])
        if chunk is not None:  # chunks as samples
            q, k, v = (
                ops.reshape(part, (-1, chunk, *part.shape[2:]), name=f"{name}.{at}_chunks") for part, at in zip((q, k, v), "qkv")
            )
        output = ops.flash_attention(
            q, k, v, scale=scale, causal=is_causal or chunk is not None, window=window, dropout=dropout_p, name=f"{name}.attention"
        )
        return Later(output if chunk is None else ops.reshape(output, whole, name=f"{name}.whole"), (1, 2), name)
    q, k, v = (tensor_of(part, graph, name) for part in each)
    if enable_gqa:
        k, v = (
            repeat_interleave(f"{name}.{at}", part, q.shape[-3] // part.shape[-3], -3) if part.shape[-3] != q.shape[-3] else part
            for at, part in (("keys", k), ("values", v))
        )
    q = ops.scale(q, q.shape[-1] ** -0.5 if scale is None else scale, name=f"{name}.scale")
    turned = k.ndim != q.ndim or k.shape[:-2] != q.shape[:-2]
    scores = (
        matmul(f"{name}.scores", q, transpose(f"{name}.turned", k, -1, -2)) if turned
        else ops.matmul(q, k, transpose_other=True, name=f"{name}.scores")
    )
    rows, columns = scores.shape[-2:]
    causal = is_causal and rows == columns
    if is_causal and not causal:
        attn_mask = Fixed(torch.ones(rows, columns, dtype=torch.bool).tril(), 0)
    weights = ops.softmax(
        masked_scores(f"{name}.mask", scores, attn_mask, allowed=True), -1, causal=causal, name=f"{name}.softmax"
    )
    if isinstance(attn_mask, Mask):  # a query that sees no key gets zeros
        weights = ops.mul(weights, ops.cast(attn_mask.tensor, weights.dtype, name=f"{name}.cast"), name=f"{name}.seen")
    return matmul(name, ops.dropout(weights, dropout_p, name=f"{name}.drop") if dropout_p else weights, v)
