"""Functions of torch and methods of its tensors as operators: for each a function of the operator's name and the arguments."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional as F

from taskflow import operators as ops
from taskflow.graph import OperatorGraph
from taskflow.models.pytorch.modules import LAYERS, merged
from taskflow.models.pytorch.site import Held, Site, Unsupported, require, started
from taskflow.operators.tensor import Tensor

Function = Callable[..., Any]


def _add(name: str, a: Any, b: Any, *, alpha: float = 1) -> Any:
    require(alpha == 1, "alpha must be 1")
    a, b = (b, a) if not isinstance(a, Tensor) else (a, b)
    if isinstance(b, Held):
        return _with_parameter(ops.add_weight, a, b)
    return ops.add(a, b, name=name) if isinstance(b, Tensor) else ops.shift(a, _number(b), name=name)


def _sub(name: str, a: Any, b: Any, *, alpha: float = 1) -> Any:
    require(alpha == 1, "alpha must be 1")
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return ops.sub(a, b, name=name)
    if isinstance(a, Tensor):
        return ops.shift(a, -_number(b), name=name)
    return ops.shift(ops.scale(b, -1.0, name=f"{name}.minus"), _number(a), name=name)


def _mul(name: str, a: Any, b: Any) -> Any:
    a, b = (b, a) if not isinstance(a, Tensor) else (a, b)
    if isinstance(b, Held):
        return _with_parameter(ops.mul_weight, a, b)
    return ops.mul(a, b, name=name) if isinstance(b, Tensor) else ops.scale(a, _number(b), name=name)


def _div(name: str, a: Any, b: Any) -> Any:
    require(isinstance(a, Tensor) and not isinstance(b, Tensor), "divides by a tensor; only by a number")
    return ops.scale(a, 1 / _number(b), name=name)


def _number(value: Any) -> float:
    require(isinstance(value, (int, float)), f"an operand must be a tensor, a parameter or a number, got {type(value).__name__}")
    return float(value)


def _with_parameter(build: Callable[..., Tensor], x: Any, held: Held) -> Tensor:
    """x + parameter or x * parameter. The weight is called by its path, as the operator that has it is."""
    require(isinstance(x, Tensor), "needs a tensor beside the parameter")
    at = held.site
    made = build(x, held.shape, init=started(held.tensor), name=at.name, parameters=at.shared(held.tensor))
    return at.own(made, held.tensor)


def _expand(name: str, x: Any, *sizes: Any) -> Any:
    wanted = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else sizes
    require(isinstance(x, Held), "expand of a tensor; only of a parameter (sums and products repeat tensors by themselves)")
    skip, at = len(wanted) - len(x.shape), x.site
    whole = [x.shape[i - skip] if size == -1 else size for i, size in enumerate(wanted)]
    made = ops.expand_weight(
        at.graph, x.shape, whole, init=started(x.tensor), name=at.name, parameters=at.shared(x.tensor)
    )
    return at.own(made, x.tensor)


def _layer_norm(
    name: str, x: Tensor, normalized_shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    """torch.nn.functional.layer_norm with a module's parameters."""
    return _layer(nn.LayerNorm, x, weight, bias, normalized_shape=tuple(normalized_shape), eps=eps)


def _group_norm(name: str, x: Tensor, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """torch.nn.functional.group_norm with a module's parameters."""
    return _layer(nn.GroupNorm, x, weight, bias, num_groups=num_groups, eps=eps, affine=bias is not None)


def _linear(name: str, x: Tensor, weight: Any, bias: Any = None) -> Any:
    """torch.nn.functional.linear with a module's parameters."""
    return _layer(nn.Linear, x, weight, bias, out_features=weight.shape[0] if isinstance(weight, Held) else 0)


def _layer(kind: type[nn.Module], x: Tensor, weight: Any, bias: Any, **attributes: Any) -> Any:
    """The layer of torch.nn that has these parameters, which must be called weight and bias, in one module."""
    held = [parameter for parameter in (weight, bias) if parameter is not None]
    fine = bool(held) and all(isinstance(parameter, Held) for parameter in held)
    fine = fine and [p.site.name.rpartition(".")[2] for p in held] == ["weight", "bias"][: len(held)]
    require(fine and len({p.layer.name for p in held}) == 1, "needs parameters called weight and bias, of one module")
    tensors = {"weight": weight.tensor, "bias": None if bias is None else bias.tensor}
    return LAYERS[kind](weight.layer, SimpleNamespace(**tensors, **attributes), x)


def _stochastic_depth(name: str, x: Tensor, p: float, mode: str, training: bool = True) -> Any:
    """torchvision.ops.stochastic_depth."""
    require(mode == "row", "mode must be 'row', which leaves out whole samples")
    return ops.stochastic_depth(x, p, name=name) if training and p else x


def _neg(name: str, x: Tensor) -> Any:
    return ops.scale(x, -1.0, name=name)


def _matmul(name: str, a: Tensor, b: Tensor) -> Any:
    require(a.ndim == b.ndim >= 3 and a.shape[:-2] == b.shape[:-2], "matrices need equal leading dimensions, one at least")
    return ops.matmul(a, b, name=name)


def _concat(name: str, tensors: Sequence[Tensor], dim: int = 0) -> Any:
    return ops.concat(tensors, dim, name=name)


def _reshape(name: str, x: Tensor, *shape: Any) -> Any:
    return ops.reshape(x, shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape, name=name)


def _flatten(name: str, x: Tensor, start_dim: int = 0, end_dim: int = -1) -> Any:
    return merged(x, start_dim, end_dim, name)


def _unsqueeze(name: str, x: Tensor, dim: int) -> Any:
    at = dim % (x.ndim + 1)
    return ops.reshape(x, (*x.shape[:at], 1, *x.shape[at:]), name=name)


def _squeeze(name: str, x: Tensor, dim: int | None = None) -> Any:
    gone = {dim % x.ndim} if dim is not None else set(range(x.ndim))
    return ops.reshape(x, [size for i, size in enumerate(x.shape) if i not in gone or size != 1], name=name)


def _transpose(name: str, x: Tensor, dim0: int, dim1: int) -> Any:
    return ops.transpose(x, dim0, dim1, name=name)


def _permute(name: str, x: Tensor, *dims: Any) -> Any:
    wanted = [d % x.ndim for d in (dims[0] if len(dims) == 1 and isinstance(dims[0], (tuple, list)) else dims)]
    now = list(range(x.ndim))
    for i, dim in enumerate(wanted):
        j = now.index(dim)
        if i != j:
            x = ops.transpose(x, i, j, name=name)
            now[i], now[j] = now[j], now[i]
    return x


def _chunk(name: str, x: Tensor, chunks: int, dim: int = 0) -> Any:
    return ops.split(x, math.ceil(x.shape[dim] / chunks), dim, name=name)


def _split(name: str, x: Tensor, split_size_or_sections: Any, dim: int = 0) -> Any:
    return ops.split(x, split_size_or_sections, dim, name=name)


def _item(name: str, x: Any, index: Any) -> Any:
    """x[index]: integers, slices without steps, ``...`` and None."""
    if not isinstance(x, Tensor):
        return x[index]
    wanted = list(index) if isinstance(index, tuple) else [index]
    if Ellipsis in wanted:
        at = wanted.index(Ellipsis)
        missing = x.ndim - sum(part is not None for part in wanted) + 1
        wanted[at : at + 1] = [slice(None)] * missing
    shape: list[int] = []
    dim = 0
    for part in wanted:
        if part is None:
            shape.append(1)
            continue
        require(isinstance(part, (int, slice)), "indices must be integers and slices")
        size = x.shape[dim]
        low, high, step = (part, part + 1, 1) if isinstance(part, int) else part.indices(size)
        low, high = (low + size, high + size) if low < 0 else (low, high)
        require(step == 1 and low < high, "slices must have a step of 1 and elements")
        if (low, high) != (0, size):
            x = ops.narrow(x, dim, low, high - low, name=name)
        if not isinstance(part, int):
            shape.append(high - low)
        dim += 1
    shape.extend(x.shape[dim:])
    return x if tuple(shape) == x.shape else ops.reshape(x, shape, name=name)


def _attribute(name: str, x: Any, what: str) -> Any:
    if isinstance(x, Held):
        require(what in ("shape", "ndim", "dtype", "device"), f"attribute {what!r} of a parameter")
        return x.shape if what == "shape" else getattr(x.tensor, what)
    if not isinstance(x, Tensor):
        return getattr(x, what)
    if what == "shape":
        return x.shape
    require(what in ("ndim", "dtype", "device"), f"attribute {what!r} of a tensor")
    return x.ndim if what == "ndim" else what  # types and devices are only handed on


def _size(name: str, x: Tensor, dim: int | None = None) -> Any:
    return x.shape if dim is None else x.shape[dim]


def _mean(name: str, x: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    return ops.mean(x, dim, keepdim, name=name)


def _total(name: str, x: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    return ops.sum(x, dim, keepdim, name=name)


def _softmax(name: str, x: Tensor, dim: int, _stacklevel: int = 3) -> Any:
    return ops.softmax(x, dim, name=name)


def _dropout(name: str, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    return ops.dropout(x, p, name=name) if training and p else x


def _attention(
    name: str, query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Any:
    """torch.nn.functional.scaled_dot_product_attention."""
    require(attn_mask is None and not enable_gqa, "attn_mask and enable_gqa are not supported")
    scaled = ops.scale(query, query.shape[-1] ** -0.5 if scale is None else scale, name=f"{name}.scale")
    scores = ops.matmul(scaled, key, transpose_other=True, name=f"{name}.scores")
    weights = ops.softmax(scores, -1, causal=is_causal, name=f"{name}.softmax")
    return ops.matmul(ops.dropout(weights, dropout_p, name=f"{name}.drop") if dropout_p else weights, value, name=name)


def _as_module(kind: type[nn.Module], **fixed: Any) -> Function:
    """A function of torch.nn.functional that takes what a module has as attributes, by the same names."""

    def made(name: str, x: Tensor, *args: Any, **options: Any) -> Any:
        names = [key for key in fixed if key not in options]
        given = {**fixed, **dict(zip(names, args)), **options}
        return LAYERS[kind](Site(name, cast(OperatorGraph, x.graph)), SimpleNamespace(**given), x)

    return made


def _unchanged(name: str, x: Any, *_: Any, **__: Any) -> Any:
    return x


def _relu(name: str, x: Tensor, inplace: bool = False) -> Any:
    return ops.relu(x, name=name)


def _unary(build: Callable[..., Tensor]) -> Function:
    return lambda name, x: build(x, name=name)


_max_pool2d = _as_module(
    nn.MaxPool2d, kernel_size=None, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False
)
_avg_pool2d = _as_module(
    nn.AvgPool2d, kernel_size=None, stride=None, padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None
)

FUNCTIONS: dict[Any, Function] = {
    operator.add: _add, operator.iadd: _add, torch.add: _add, operator.sub: _sub, torch.sub: _sub, operator.mul: _mul,
    operator.imul: _mul, torch.mul: _mul, operator.truediv: _div, torch.div: _div, operator.neg: _neg, torch.neg: _neg,
    operator.matmul: _matmul, torch.matmul: _matmul, torch.bmm: _matmul, torch.cat: _concat, torch.concat: _concat,
    torch.flatten: _flatten, torch.reshape: _reshape, torch.unsqueeze: _unsqueeze, torch.squeeze: _squeeze,
    torch.transpose: _transpose, torch.permute: _permute, torch.chunk: _chunk, torch.split: _split, operator.getitem: _item,
    getattr: _attribute, torch.mean: _mean, torch.sum: _total, torch.softmax: _softmax, F.softmax: _softmax,
    torch.relu: _relu, F.relu: _relu, torch.sigmoid: _unary(ops.sigmoid), torch.tanh: _unary(ops.tanh),
    F.sigmoid: _unary(ops.sigmoid), F.tanh: _unary(ops.tanh), F.dropout: _dropout,
    F.gelu: _as_module(nn.GELU, approximate="none"), F.silu: _as_module(nn.SiLU, inplace=False),
    F.leaky_relu: _as_module(nn.LeakyReLU, negative_slope=0.01, inplace=False), F.max_pool2d: _max_pool2d,
    torch.max_pool2d: _max_pool2d, F.avg_pool2d: _avg_pool2d,
    F.hardtanh: _as_module(nn.Hardtanh, min_val=-1.0, max_val=1.0, inplace=False),
    F.relu6: _as_module(nn.ReLU6, min_val=0.0, max_val=6.0, inplace=False), F.hardswish: _as_module(nn.Hardswish, inplace=False),
    F.hardsigmoid: _as_module(nn.Hardsigmoid, inplace=False), F.layer_norm: _layer_norm, F.linear: _linear,
    F.group_norm: _group_norm, F.interpolate: _as_module(nn.Upsample, size=None, scale_factor=None, mode="nearest"),
    F.adaptive_avg_pool2d: _as_module(nn.AdaptiveAvgPool2d, output_size=None), F.scaled_dot_product_attention: _attention,
}  # fmt: skip

BY_NAME: dict[str, Function] = {"torchvision.ops.stochastic_depth.stochastic_depth": _stochastic_depth}
"""Functions of packages that need not be installed."""

METHODS: dict[str, Function] = {
    "add": _add, "add_": _add, "sub": _sub, "mul": _mul, "mul_": _mul, "div": _div, "neg": _neg, "matmul": _matmul,
    "bmm": _matmul, "view": _reshape, "reshape": _reshape, "flatten": _flatten, "unsqueeze": _unsqueeze,
    "squeeze": _squeeze, "transpose": _transpose, "permute": _permute, "chunk": _chunk, "split": _split, "size": _size,
    "mean": _mean, "sum": _total, "softmax": _softmax, "relu": _relu, "relu_": _relu, "sigmoid": _unary(ops.sigmoid),
    "tanh": _unary(ops.tanh), "contiguous": _unchanged, "clone": _unchanged, "dim": lambda name, x: x.ndim,
    "expand": _expand,
}  # fmt: skip


def called(target: Any) -> Function:
    """What a function, or a method by its name, becomes. Raises Unsupported if there is nothing."""
    found = METHODS.get(target) if isinstance(target, str) else FUNCTIONS.get(target) or BY_NAME.get(_full_name(target))
    if found is None:
        what = f"tensor.{target}" if isinstance(target, str) else getattr(target, "__qualname__", str(target))
        raise Unsupported(f"{what} has no counterpart")
    return found


def has_counterpart(target: Any) -> bool:
    """False for a function of PyTorch's that nothing here stands for. Others are called if no tensor is among their arguments."""
    if target in FUNCTIONS or _full_name(target) in BY_NAME or target is torch._assert or is_tuple(target):
        return True
    return not str(target.__module__).startswith("torch")


def is_tuple(target: Any) -> bool:
    """True for a kind of tuple, such as the named ones that modules return."""
    return isinstance(target, type) and issubclass(target, tuple)


def takes_parameters(target: Any) -> bool:
    """True if a function or method takes parameters by themselves."""
    return called(target) in (_add, _mul, _expand, _layer_norm, _group_norm, _linear, _attribute)


def _full_name(target: Any) -> str:
    return f"{getattr(target, '__module__', '')}.{getattr(target, '__qualname__', '')}"
