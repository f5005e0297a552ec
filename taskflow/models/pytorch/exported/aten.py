"""ATen operators, which an exported program calls, as the functions of torch that a module's code would call.

Most are called as they are written: ``aten.linear.default(x, w, b)`` is ``F.linear(x, w, b)``, since PyTorch makes both out of
one description. What is written otherwise stands here, with the arguments of ATen's description (native_functions.yaml).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

Function = Callable[..., Any]
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


def _sizes(given: Any) -> Any:
    """Sizes of windows as tuples; an empty one as None."""
    return (tuple(given) or None) if isinstance(given, (tuple, list)) else given


def _beside(count: int, function: Function) -> Function:
    """A function that also returns so many results that nothing reads, as the operator does."""
    return lambda *args, **options: (function(*args, **options), *[None] * count)


def _in_place(function: Function) -> Function:
    return partial(function, inplace=True)


# ---- functions with the arguments of ATen's description; the last of these may say how it is to be computed ------------------
def _layer_norm(x: Any, shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any) -> Any:
    return F.layer_norm(x, tuple(shape), weight, bias, eps)


def _group_norm(x: Any, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any) -> Any:
    return F.group_norm(x, groups, weight, bias, eps)


def _rms_norm(x: Any, shape: Sequence[int], weight: Any = None, eps: float | None = None) -> Any:
    return F.rms_norm(x, tuple(shape), weight, eps)


def _embedding(weight: Any, indices: Any, row: int = -1, by_count: bool = False, sparse: bool = False) -> Any:
    return F.embedding(indices, weight, row if row >= 0 else None, scale_grad_by_freq=by_count, sparse=sparse)


def _grid_sample(x: Any, grid: Any, mode: int, padding: int, align_corners: bool) -> Any:
    modes, paddings = ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection")
    return F.grid_sample(x, grid, modes[mode], paddings[padding], align_corners)


def _attention_on_cpus(q: Any, k: Any, v: Any, drop: float = 0.0, causal: bool = False, *, attn_mask: Any = None,
                       scale: float | None = None) -> Any:
    return F.scaled_dot_product_attention(q, k, v, attn_mask, drop, causal, scale=scale)


def _convolution(x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, turned: bool, more: Any,
                 groups: int) -> Any:
    images = len(weight.shape) - 2
    if turned:
        function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[images - 1]
        return function(x, weight, bias, stride, padding, more, groups, dilation)
    return (F.conv1d, F.conv2d, F.conv3d)[images - 1](x, weight, bias, stride, padding, dilation, groups)


def _max_pool2d(x: Any, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False) -> Any:
    return F.max_pool2d(x, _sizes(kernel), _sizes(stride), _sizes(padding), _sizes(dilation), ceil_mode)


def _avg_pool2d(x: Any, kernel: Any, stride: Any = (), padding: Any = 0, *options: Any) -> Any:
    return F.avg_pool2d(x, *map(_sizes, (kernel, stride, padding)), *options)


def _adaptive_avg_pool2d(x: Any, size: Any) -> Any:
    return F.adaptive_avg_pool2d(x, _sizes(size))


def _nearest(x: Any, size: Any, *factors: Any) -> Any:
    wanted = {"size": _sizes(size)} if size is not None else {"scale_factor": _sizes(factors[0])}
    return F.interpolate(x, **wanted, mode="nearest")


def _to(x: Any, *args: Any, dtype: Any = None, device: Any = None, memory_format: Any = None) -> Any:
    kinds = [value for value in (*args, dtype) if isinstance(value, torch.dtype)]
    others = [value.dtype for value in args if isinstance(value, torch.Tensor)]
    orders = [value for value in (*args, memory_format) if isinstance(value, torch.memory_format)]
    kind = next(iter(kinds + others), None)
    x = x if kind is None else x.to(kind)
    return x if not orders or orders[0] is torch.preserve_format else x.contiguous(memory_format=orders[0])


def _clone(x: Any, memory_format: Any = torch.preserve_format) -> Any:
    return x.clone(memory_format=memory_format)


def _slice(x: Any, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Any:
    return x[(*[slice(None)] * (dim % x.ndim), slice(start, end, step))]


ACTIVATIONS = {name: getattr(F, name) for name in ("silu", "mish", "hardswish", "hardsigmoid", "relu6", "leaky_relu", "hardtanh")}
WRITTEN: dict[str, Function] = {
    **ACTIVATIONS, **{f"{name}_": _in_place(function) for name, function in ACTIVATIONS.items()},
    "embedding": _embedding, "grid_sampler": _grid_sample, "grid_sampler_2d": _grid_sample,
    "layer_norm": _layer_norm, "native_layer_norm": _beside(2, _layer_norm), "group_norm": _group_norm,
    "native_group_norm": lambda x, weight, bias, n, c, area, groups, eps: (F.group_norm(x, groups, weight, bias, eps), None, None),
    "rms_norm": _rms_norm, "_fused_rms_norm": _beside(1, _rms_norm),
    "dropout": F.dropout, "dropout_": _in_place(F.dropout),
    "native_dropout": lambda x, p, train: (F.dropout(x, p, bool(train)), None),
    "scaled_dot_product_attention": F.scaled_dot_product_attention,
    "_scaled_dot_product_flash_attention_for_cpu": _beside(1, _attention_on_cpus), "convolution": _convolution,
    "linalg_vector_norm": torch.linalg.vector_norm, "softmax": lambda x, dim, dtype=None: torch.softmax(x, dim, dtype=dtype),
    "_softmax": lambda x, dim, half_to_float: torch.softmax(x, dim),
    "max_pool2d": _max_pool2d, "max_pool2d_with_indices": _beside(1, _max_pool2d), "avg_pool2d": _avg_pool2d,
    "adaptive_avg_pool2d": _adaptive_avg_pool2d, "_adaptive_avg_pool2d": _adaptive_avg_pool2d, "upsample_nearest2d": _nearest,
    "constant_pad_nd": lambda x, widths, value=0.0: F.pad(x, list(widths), "constant", value),
    "pad": lambda x, widths, mode="constant", value=None: F.pad(x, list(widths), mode, value),
    "to": _to, "_to_copy": _to, "alias": lambda x: x, "lift_fresh": lambda x: x, "lift_fresh_copy": _clone, "clone": _clone,
    "_unsafe_view": lambda x, size: x.reshape(size), "_reshape_alias": lambda x, size, stride: x.reshape(size), "slice": _slice,
    "index": lambda x, indices: x[tuple(slice(None) if part is None else part for part in indices)],
    "einsum": lambda equation, tensors, path=None: torch.einsum(equation, *tensors),
    "numpy_T": lambda x: x.T, "mT": lambda x: x.mT,
    "split_with_sizes": lambda x, sizes, dim=0: torch.split(x, list(sizes), dim),
    "sym_size": lambda x, dim=None: x.shape if dim is None else x.shape[dim], "sym_numel": lambda x: x.numel(),
    "item": lambda x: x.item(), "_local_scalar_dense": lambda x: x.item(),
}
"""By the operator's name without overload."""
