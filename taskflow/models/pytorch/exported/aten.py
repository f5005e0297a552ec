"""ATen operators, which an exported program calls, as the functions of torch that a module's code would call.

Most are called as they are written: ``aten.linear.default(x, w, b)`` is ``F.linear(x, w, b)``, since PyTorch makes both out of
one description. What is written otherwise stands here, with the arguments of ATen's description (native_functions.yaml).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional as F

Function = Callable[..., Any]
WRITTEN: dict[str, Function] = {}
"""By the operator's name without overload."""
ON_NUMBERS = {
    operator.add, operator.sub, operator.mul, operator.floordiv, operator.truediv, operator.mod, operator.neg, operator.pow,
    operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge, operator.and_, operator.or_, operator.not_,
    operator.getitem, max, min,
}
"""What programs do with sizes, and with several results."""
ABOUT_SIZES: dict[str, Function] = {"sym_max": max, "sym_min": min, "sym_not": operator.not_, "sym_int": int, "sym_float": float}
CHECKS = {
    "_assert_tensor_metadata", "_assert_scalar", "_assert_async", "sym_constrain_range", "sym_constrain_range_for_size",
}
"""Operators that compute nothing."""
IGNORED = {"layout", "pin_memory", "non_blocking", "copy"}
"""Options that say where numbers lie, not which they are."""


def function_of(target: Any) -> Function | None:
    """Return the function of torch that computes an operator of a program, to be called with the operator's arguments; None if
    there is none."""
    if target in ON_NUMBERS:
        return target  # type: ignore[no-any-return]
    name = getattr(target, "__name__", "")
    if not isinstance(target, torch._ops.OpOverload):
        of_torch = getattr(target, "__module__", "").startswith("torch")
        return ABOUT_SIZES[name] if of_torch and name in ABOUT_SIZES else None
    if target.namespace != "aten":
        return None
    base = target._schema.name.partition("::")[2]
    if base in CHECKS:
        return _nothing
    if base in WRITTEN:
        return WRITTEN[base]
    spaces = (torch, torch.Tensor, torch._C._nn)
    return next((getattr(space, base) for space in spaces if callable(getattr(space, base, None))), None)


def _nothing(*args: Any, **options: Any) -> None:
    """Placeholder for the result of a check."""


def _is(*names: str) -> Callable[[Function], Function]:
    """Decorator: calls operators of these names by the decorated function."""

    def add(function: Function) -> Function:
        WRITTEN.update(dict.fromkeys(names, function))
        return function

    return add


def _sizes(given: Any) -> Any:
    """Sizes of windows as tuples; an empty one as None."""
    return (tuple(given) or None) if isinstance(given, (tuple, list)) else given


# ---- layers' functions -------------------------------------------------------------------------------------------------------


@_is("embedding")
def _embedding(weight: Any, indices: Any, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False) -> Any:
    row = padding_idx if padding_idx >= 0 else None
    return F.embedding(indices, weight, row, scale_grad_by_freq=scale_grad_by_freq, sparse=sparse)


@_is("layer_norm")
def _layer_norm(
    input: Any, normalized_shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5, cudnn_enable: bool = True
) -> Any:
    return F.layer_norm(input, tuple(normalized_shape), weight, bias, eps)


@_is("grid_sampler", "grid_sampler_2d")
def _grid_sampler(input: Any, grid: Any, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Any:
    mode, padding = ("bilinear", "nearest", "bicubic")[interpolation_mode], ("zeros", "border", "reflection")[padding_mode]
    return F.grid_sample(input, grid, mode, padding, align_corners)


@_is("native_layer_norm")
def _native_layer_norm(input: Any, normalized_shape: Sequence[int], weight: Any, bias: Any, eps: float) -> Any:
    return F.layer_norm(input, tuple(normalized_shape), weight, bias, eps), None, None


@_is("group_norm")
def _group_norm(
    input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, cudnn_enabled: bool = True
) -> Any:
    return F.group_norm(input, num_groups, weight, bias, eps)


@_is("native_group_norm")
def _native_group_norm(input: Any, weight: Any, bias: Any, n: int, c: int, hxw: int, group: int, eps: float) -> Any:
    return F.group_norm(input, group, weight, bias, eps), None, None


@_is("rms_norm")
def _rms_norm(input: Any, normalized_shape: Sequence[int], weight: Any = None, eps: float | None = None) -> Any:
    return F.rms_norm(input, tuple(normalized_shape), weight, eps)


@_is("_fused_rms_norm")
def _fused_rms_norm(input: Any, normalized_shape: Sequence[int], weight: Any, eps: float | None) -> Any:
    return F.rms_norm(input, tuple(normalized_shape), weight, eps), None


@_is("dropout")
def _dropout(input: Any, p: float, train: bool) -> Any:
    return F.dropout(input, p, train)


@_is("dropout_")
def _dropout_in_place(input: Any, p: float, train: bool) -> Any:
    return F.dropout(input, p, train, inplace=True)


@_is("native_dropout")
def _native_dropout(input: Any, p: float, train: bool | None) -> Any:
    return F.dropout(input, p, bool(train)), None


@_is("scaled_dot_product_attention")
def _attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False, *,
    scale: float | None = None, enable_gqa: bool = False,
) -> Any:
    return F.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)


@_is("_scaled_dot_product_flash_attention_for_cpu")
def _attention_on_cpus(
    query: Any, key: Any, value: Any, dropout_p: float = 0.0, is_causal: bool = False, *, attn_mask: Any = None,
    scale: float | None = None,
) -> Any:
    return F.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, scale=scale), None


@_is("convolution")
def _convolution(
    input: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool, output_padding: Any, groups: int
) -> Any:
    images = len(weight.shape) - 2
    if transposed:
        turned = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[images - 1]
        return turned(input, weight, bias, stride, padding, output_padding, groups, dilation)
    return (F.conv1d, F.conv2d, F.conv3d)[images - 1](input, weight, bias, stride, padding, dilation, groups)


# ---- activations, pooling ------------------------------------------------------------------------------------------------------


def _activation(name: str, function: Function) -> None:
    """An activation of torch.nn.functional that takes ATen's arguments, and its in-place variant."""
    _is(name)(function)
    _is(f"{name}_")(lambda *args, **options: function(*args, **options, inplace=True))


for _name in ("silu", "mish", "hardswish", "hardsigmoid", "relu6", "leaky_relu", "hardtanh"):
    _activation(_name, getattr(F, _name))


_is("linalg_vector_norm")(torch.linalg.vector_norm)


@_is("softmax")
def _softmax(input: Any, dim: int, dtype: Any = None) -> Any:
    return torch.softmax(input, dim, dtype=dtype)


@_is("_softmax")
def _plain_softmax(input: Any, dim: int, half_to_float: bool) -> Any:
    return torch.softmax(input, dim)


@_is("max_pool2d")
def _max_pool2d(
    input: Any, kernel_size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Any:
    return F.max_pool2d(input, _sizes(kernel_size), _sizes(stride), _sizes(padding), _sizes(dilation), ceil_mode)


@_is("max_pool2d_with_indices")
def _max_pool2d_with_indices(*args: Any) -> Any:
    return _max_pool2d(*args), None


@_is("avg_pool2d")
def _avg_pool2d(
    input: Any, kernel_size: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False, count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    return F.avg_pool2d(
        input, _sizes(kernel_size), _sizes(stride), _sizes(padding), ceil_mode, count_include_pad, divisor_override
    )


@_is("adaptive_avg_pool2d", "_adaptive_avg_pool2d")
def _adaptive_avg_pool2d(input: Any, output_size: Any) -> Any:
    return F.adaptive_avg_pool2d(input, _sizes(output_size))


@_is("upsample_nearest2d")
def _upsample_nearest2d(input: Any, output_size: Any, *factors: Any) -> Any:
    if output_size is not None:
        return F.interpolate(input, size=_sizes(output_size), mode="nearest")
    return F.interpolate(input, scale_factor=_sizes(factors[0]), mode="nearest")


@_is("constant_pad_nd")
def _constant_pad(input: Any, pad: Sequence[int], value: float = 0.0) -> Any:
    return F.pad(input, list(pad), "constant", value)


@_is("pad")
def _pad(input: Any, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Any:
    return F.pad(input, list(pad), mode, value)


# ---- types, shapes ---------------------------------------------------------------------------------------------------------------


@_is("to", "_to_copy")
def _to(input: Any, *args: Any, dtype: Any = None, device: Any = None, memory_format: Any = None) -> Any:
    kinds = [value for value in (*args, dtype) if isinstance(value, torch.dtype)]
    others = [value.dtype for value in args if isinstance(value, torch.Tensor)]
    orders = [value for value in (*args, memory_format) if isinstance(value, torch.memory_format)]
    kind = next(iter(kinds + others), None)
    input = input if kind is None else input.to(kind)
    return input if not orders or orders[0] is torch.preserve_format else input.contiguous(memory_format=orders[0])


@_is("alias", "lift_fresh")
def _same(input: Any) -> Any:
    return input


@_is("lift_fresh_copy", "clone")
def _clone(input: Any, memory_format: Any = torch.preserve_format) -> Any:
    return input.clone(memory_format=memory_format)


@_is("contiguous")
def _contiguous(input: Any, memory_format: Any = torch.contiguous_format) -> Any:
    return input.contiguous(memory_format=memory_format)


@_is("_unsafe_view", "_reshape_alias")
def _reshaped(input: Any, size: Sequence[int], stride: Any = None) -> Any:
    return input.reshape(size)


@_is("view")
def _view(input: Any, size: Any) -> Any:
    return input.view(size)


@_is("slice")
def _slice(input: Any, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Any:
    return input[(*[slice(None)] * (dim % input.ndim), slice(start, end, step))]


@_is("index")
def _index(input: Any, indices: Sequence[Any]) -> Any:
    return input[tuple(slice(None) if part is None else part for part in indices)]


@_is("einsum")
def _einsum(equation: str, tensors: Sequence[Any], path: Any = None) -> Any:
    return torch.einsum(equation, *tensors)


@_is("numpy_T")
def _turned(input: Any) -> Any:
    return input.T


@_is("mT")
def _turned_last(input: Any) -> Any:
    return input.mT


@_is("split_with_sizes")
def _split(input: Any, split_sizes: Sequence[int], dim: int = 0) -> Any:
    return torch.split(input, list(split_sizes), dim)


@_is("sym_size")
def _size(input: Any, dim: int | None = None) -> Any:
    return input.shape if dim is None else input.shape[dim]


@_is("sym_numel")
def _count(input: Any) -> Any:
    return input.numel()


@_is("item", "_local_scalar_dense")
def _number(input: Any) -> Any:
    return input.item()
