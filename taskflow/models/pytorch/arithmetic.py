"""Functions of torch that do arithmetic, element by element and in matrix products, as operators."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import prod
from string import ascii_lowercase
from typing import Any

import numpy as np
import torch

from taskflow import operators as ops
from taskflow.models.pytorch.in_rows import once_for_samples
from taskflow.models.pytorch.masks import Mask, chosen, filled
from taskflow.models.pytorch.recipes import derived, varies
from taskflow.models.pytorch.registry import (
    array_of,
    constant,
    graph_of,
    number_of,
    stands_for,
    tensor_of,
)
from taskflow.models.pytorch.site import Held, Unsupported, require, started
from taskflow.models.pytorch.steps import Fixed
from taskflow.operators.tensor import Tensor


def _with_parameter(build: Callable[..., Tensor], a: Any, b: Any) -> Tensor | None:
    """A tensor and a parameter that is repeated to its shape, as one operator, which is called by the parameter's path."""
    x, held = (a, b) if isinstance(b, Held) else (b, a)
    if not isinstance(held, Held) or held.kept or not isinstance(x, Tensor) or not x.shape or len(held.shape) > x.ndim:
        return None
    if any(mine not in (1, other) for mine, other in zip(held.shape, x.shape[x.ndim - len(held.shape) :])):
        return None
    return held.site.build(build, [held.tensor], x, held.shape, init=started(held.tensor))


def _two(name: str, a: Any, b: Any) -> tuple[Any, Any]:
    """Operands as tensors of the graph; numbers as floats."""
    graph = graph_of(a, b)
    a, b = _once_for_all(a, b), _once_for_all(b, a)
    dtype = next((value.dtype for value in (a, b) if isinstance(value, Tensor)), graph.dtype)
    found = [
        number_of(value) if number_of(value) is not None
        else constant(graph, array_of(value).astype(dtype), value.name or f"{name}.constant")
        if isinstance(value, Fixed) and not value.tensor.is_floating_point() else tensor_of(value, graph, name) for value in (a, b)
    ]  # fixed integers become floats, as PyTorch makes them beside floats
    wide = next((value.dtype for value in found if isinstance(value, Tensor) and value.spec.differentiable), np.dtype(np.float32))
    found = [
        ops.to_float(value, wide, name=f"{name}.floats") if isinstance(value, Tensor) and value.dtype.kind in "iu" else value
        for value in found
    ]
    for value in found:
        require(isinstance(value, (Tensor, float)), f"an operand must be a tensor or a number, got {type(value).__name__}")
    return found[0], found[1]


def _once_for_all(value: Any, other: Any) -> Any:
    """A fixed operand (N, T, ...) that is the same for all samples of the other one, with one sample."""
    shape = tuple(value.tensor.shape) if isinstance(value, Fixed) else ()
    if len(shape) < 3 or shape[0] == 1 or not isinstance(other, Tensor) or other.ndim != len(shape) or other.shape[0] != shape[0]:
        return value
    source = value.recipe or value.tensor
    if varies(source, -len(shape)):
        return value
    first = derived(torch.Tensor.__getitem__, source, slice(0, 1))
    return Fixed(first.tensor, 0, value.name, first)


def _of_integers(build: Callable[..., Tensor], name: str, a: Any, b: Any) -> Tensor | None:
    """What ``build`` makes of integers that are computed from inputs, such as positions; None if an operand is of floats."""
    graph = graph_of(a, b)
    found = []
    for value in (a, b):
        fixed = value.tensor.dtype if isinstance(value, Fixed) else None
        if isinstance(value, int) and not isinstance(value, bool):
            found.append(constant(graph, np.array([value]), f"{name}.constant"))
        elif fixed is not None and not (fixed.is_floating_point or fixed.is_complex):
            found.append(constant(graph, array_of(value).astype(np.int64), value.name or f"{name}.constant"))
        elif isinstance(value, Tensor) and value.dtype.kind in "iu":
            found.append(value)
        else:
            return None
    return found[0] if isinstance(b, int) and b == 0 and build is not ops.mul else build(*found, name=name)


def _by_samples(build: Callable[..., Any], name: str, a: Any, b: Any) -> Tensor | None:
    """What ``build`` makes of samples of several rows each and a fixed tensor that is the same for all; None for other operands."""
    for x, fixed in ((a, b), (b, a)):
        found = once_for_samples(name, x, fixed)
        if found is not None:
            result = build(f"{name}.each", *found)
            return ops.reshape(result, (x.shape[0], *result.shape[2:]), name=name)
    return None


@stands_for("add", "add_", "__radd__", raw=True)
def add(name: str, input: Any, other: Any, *, alpha: float = 1) -> Any:
    """input + alpha other."""
    result = _with_parameter(ops.add_weight, input, other) or _of_integers(ops.add, name, input, other) if alpha == 1 else None
    result = result or (_by_samples(add, name, input, other) if alpha == 1 else None)
    if result is not None:
        return result
    a, b = _two(name, input, other)
    if alpha != 1:
        b = b * alpha if isinstance(b, float) else ops.scale(b, alpha, name=f"{name}.alpha")
    a, b = (b, a) if isinstance(a, float) else (a, b)
    return ops.shift(a, b, name=name) if isinstance(b, float) else ops.add(a, b, name=name)


@stands_for("sub", "sub_", "subtract", "subtract_", raw=True)
def sub(name: str, input: Any, other: Any, *, alpha: float = 1) -> Any:
    """input - alpha other."""
    result = _of_integers(ops.sub, name, input, other) if alpha == 1 else None
    if result is not None:
        return result
    a, b = _two(name, input, other)
    if alpha != 1:
        b = b * alpha if isinstance(b, float) else ops.scale(b, alpha, name=f"{name}.alpha")
    if isinstance(b, float):
        return ops.shift(a, -b, name=name)
    if isinstance(a, float):
        return ops.shift(ops.scale(b, -1.0, name=f"{name}.minus"), a, name=name)
    return ops.sub(a, b, name=name)


@stands_for("__rsub__", "rsub", raw=True)
def rsub(name: str, input: Any, other: Any, *, alpha: float = 1) -> Any:
    """other - input."""
    require(alpha == 1, "alpha must be 1")
    return sub(name, other, input)


@stands_for("mul", "mul_", "multiply", "multiply_", "__rmul__", raw=True)
def mul(name: str, input: Any, other: Any) -> Any:
    """input times other."""
    result = _with_parameter(ops.mul_weight, input, other)
    if result is not None:
        return result
    for x, one in ((input, other), (other, input)):  # integers, repeated for each sample
        whole = isinstance(x, Tensor) and x.dtype.kind in "iu" and isinstance(one, Fixed) and one.tensor.numel() > 0
        if whole and bool((array_of(one) == 1).all()):
            shape = np.broadcast_shapes(x.shape, tuple(one.tensor.shape))
            require(shape == x.shape, f"integers {list(x.shape)} repeated to {list(shape)}; give one for each sample")
            return x
    result = _of_integers(ops.mul, name, input, other) or _by_samples(mul, name, input, other)
    if result is not None:
        return result
    a, b = _two(name, input, other)
    a, b = (b, a) if isinstance(a, float) else (a, b)
    return ops.scale(a, b, name=name) if isinstance(b, float) else ops.mul(a, b, name=name)


@stands_for("div", "div_", "divide", "divide_", "true_divide", "__truediv__", "__itruediv__", raw=True)
def div(name: str, input: Any, other: Any, *, rounding_mode: str | None = None) -> Any:
    """input / other, which may be rounded."""
    if rounding_mode is not None:
        if isinstance(input, Tensor) and input.dtype.kind in "iu" and isinstance(other, int):
            return _by_integer(name, input, other, toward_zero=rounding_mode == "trunc")
        return ops.step(div(f"{name}.exact", input, other), rounding_mode, name=name)
    a, b = _two(name, input, other)
    if isinstance(b, float):
        require(b != 0, "divides by 0")
        return ops.scale(a, 1 / b, name=name)
    inverse = ops.pow(b, -1.0, name=f"{name}.inverse")
    return ops.scale(inverse, a, name=name) if isinstance(a, float) else ops.mul(a, inverse, name=name)


@stands_for("__rdiv__", "__rtruediv__", raw=True)
def rdiv(name: str, input: Any, other: Any) -> Any:
    """other / input."""
    return div(name, other, input)


@stands_for("pow", "pow_", "__pow__", "__ipow__", raw=True)
def power(name: str, input: Any, exponent: Any) -> Any:
    """input to the power of a number."""
    number = number_of(exponent)
    if number is None:
        raise Unsupported("exponent must be a number")
    require(number != 0, "exponent must not be 0")
    x = tensor_of(input, graph_of(input), name)
    require(isinstance(x, Tensor), "a number to the power of a tensor")
    return x if number == 1 else ops.pow(x, number, name=name)


@stands_for("addcmul", "addcmul_", raw=True)
def addcmul(name: str, input: Any, tensor1: Any, tensor2: Any, *, value: float = 1) -> Any:
    """input + value tensor1 tensor2."""
    return add(name, input, mul(f"{name}.product", tensor1, tensor2), alpha=value)


@stands_for("addcdiv", "addcdiv_", raw=True)
def addcdiv(name: str, input: Any, tensor1: Any, tensor2: Any, *, value: float = 1) -> Any:
    """input + value tensor1 / tensor2."""
    return add(name, input, div(f"{name}.quotient", tensor1, tensor2), alpha=value)


def _unary(build: Callable[..., Tensor], *names: str) -> None:
    stands_for(*names)(lambda name, input: build(input, name=name))


_unary(ops.exp, "exp", "exp_")
_unary(ops.log, "log", "log_")
_unary(ops.sqrt, "sqrt", "sqrt_")
_unary(ops.rsqrt, "rsqrt", "rsqrt_")
_unary(ops.sin, "sin", "sin_")
_unary(ops.cos, "cos", "cos_")
_unary(ops.abs, "abs", "abs_", "absolute")
_unary(ops.erf, "erf", "erf_")
_unary(lambda x, name: ops.scale(x, -1.0, name=name), "neg", "neg_", "negative")
_unary(lambda x, name: ops.pow(x, 2.0, name=name), "square", "square_")
_unary(lambda x, name: ops.pow(x, -1.0, name=name), "reciprocal", "reciprocal_")
_unary(lambda x, name: ops.log(ops.shift(x, 1.0, name=f"{name}.one_more"), name=name), "log1p", "log1p_")
_unary(lambda x, name: ops.shift(ops.exp(x, name=f"{name}.exp"), -1.0, name=name), "expm1", "expm1_")
for _step in ("round", "floor", "ceil", "trunc", "sign"):
    _unary(lambda x, name, function=_step: ops.step(x, function, name=name), _step, f"{_step}_")
_unary(ops.sigmoid, "sigmoid", "sigmoid_")
_unary(ops.tanh, "tanh", "tanh_")


@stands_for("clamp", "clamp_", "clip")
def clamp(name: str, input: Tensor, min: Any = None, max: Any = None) -> Any:
    """Clamp between min and max."""
    for bound in (min, max):
        require(bound is None or isinstance(bound, (int, float)), "min and max must be numbers")
    if input.dtype.kind in "iu":
        return _clamped_integers(name, input, min, max)
    return ops.clamp(input, min, max, strict=clamp_stops_at_bounds(), name=name)


@cache
def clamp_stops_at_bounds() -> bool:
    """Whether torch.clamp has the derivative 0 at its bounds: it has since PyTorch 2.14, and had 1 before."""
    with torch.enable_grad():
        x = torch.zeros((), requires_grad=True)
        torch.clamp(x, min=0.0).backward()
    return not x.grad


@stands_for("clamp_min", "clamp_min_")
def clamp_min(name: str, input: Tensor, min: float) -> Any:
    """Clamp from below by min."""
    return clamp(name, input, min)


@stands_for("clamp_max", "clamp_max_")
def clamp_max(name: str, input: Tensor, max: float) -> Any:
    """Clamp from above by max."""
    return clamp(name, input, None, max)


# ---- rests of integers; those of floats are taken apart ----------------------------------------------------------------------


def _by_integer(name: str, input: Any, other: Any, **options: bool) -> Any:
    number = number_of(other)
    if number is None or number != int(number) or not isinstance(input, Tensor) or input.dtype.kind not in "iu":
        raise Unsupported("of integers only by a whole number")
    return ops.divide_integers(input, int(number), name=name, **options)


@stands_for("remainder", "remainder_", raw=True)
def remainder(name: str, input: Any, other: Any) -> Any:
    """What is left of integers divided by a number, with its sign."""
    return _by_integer(name, input, other, rest=True)


@stands_for("fmod", "fmod_", raw=True)
def fmod(name: str, input: Any, other: Any) -> Any:
    """What is left of integers divided by a number, with their signs."""
    return _by_integer(name, input, other, rest=True, toward_zero=True)


@stands_for("floor_divide", "floor_divide_", "__floordiv__", raw=True)
def floor_divide(name: str, input: Any, other: Any) -> Any:
    """Integers divided by a number and rounded down."""
    return _by_integer(name, input, other)


# ---- masks -----------------------------------------------------------------------------------------------------------------


@stands_for("masked_fill", "masked_fill_", raw=True)
def masked_fill(name: str, input: Any, mask: Any, value: Any) -> Any:
    """``value`` where a fixed mask is True."""
    return filled(graph_of(input), name, input, mask, value)


@stands_for("where", raw=True)
def where(name: str, condition: Any, input: Any, other: Any) -> Any:
    """Take input where a fixed condition is True, else other; both are tensors or numbers."""
    return chosen(graph_of(input, other), name, condition, input, other)


# ---- products and sums -----------------------------------------------------------------------------------------------------


def matmul(name: str, input: Tensor, other: Tensor) -> Any:
    """Multiply matrices. Leading dimensions must be equal, 1 or missing."""
    a, b = input, other
    if a.ndim == b.ndim >= 3 and a.shape[:-2] == b.shape[:-2]:
        return ops.matmul(a, b, name=name)
    require(a.ndim >= 1 and b.ndim >= 1, "needs dimensions")
    a_end, b_end = ("z" if a.ndim == 1 else "yz"), ("z" if b.ndim == 1 else "zx")
    lead = np.broadcast_shapes(a.shape[: a.ndim - len(a_end)], b.shape[: b.ndim - len(b_end)])
    tail = (*a.shape[a.ndim - len(a_end) :][:-1], *b.shape[b.ndim - len(b_end) :][1:])
    (a, of_a), (b, of_b) = _led(f"{name}.first", a, len(a_end)), _led(f"{name}.second", b, len(b_end))
    out = "".join(sorted({*of_a, *of_b}, reverse=True))
    result = ops.einsum(f"{of_a}{a_end},{of_b}{b_end}->{out}{a_end[:-1]}{b_end[1:]}", a, b, name=name)
    return result if result.shape == (*lead, *tail) else ops.reshape(result, (*lead, *tail), name=f"{name}.led")


def _led(name: str, x: Tensor, own: int) -> tuple[Tensor, str]:
    """A tensor without leading dimensions of size 1, and letters for the others: by their distance from the last."""
    count = x.ndim - own
    kept = [i for i in range(count) if x.shape[i] > 1]
    if len(kept) < count:
        x = ops.reshape(x, (*(x.shape[i] for i in kept), *x.shape[count:]), name=name)
    return x, "".join(ascii_lowercase[count - 1 - i] for i in kept)


@stands_for("baddbmm")
def baddbmm(name: str, input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    """beta * input + alpha * batch1 @ batch2."""
    require(beta != 0, "beta must not be 0")
    product = matmul(f"{name}.product", batch1, batch2)
    product = product if alpha == 1 else ops.scale(product, alpha, name=f"{name}.alpha")
    first = input if beta == 1 else ops.scale(input, beta, name=f"{name}.beta")
    return ops.add(product, first, name=name)


@stands_for("einsum")
def einsum(name: str, equation: str, *operands: Any) -> Any:
    """Sum products over letters."""
    tensors = operands[0] if len(operands) == 1 and isinstance(operands[0], (tuple, list)) else operands
    require(isinstance(equation, str), "the equation must be a text")
    return ops.einsum(equation, *tensors, name=name)


def _dims(input: Tensor, dim: Any) -> Any:
    """Dimensions to sum over, as our operators take them: PyTorch means all by none."""
    return None if dim is None or dim == () or dim == [] else dim


@stands_for("mean")
def mean(name: str, input: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """The mean over some dimensions."""
    return ops.mean(input, _dims(input, dim), keepdim, name=name)  # the result's type is compared


@stands_for("sum")
def total(name: str, input: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """The sum over some dimensions."""
    if input.dtype.kind in "iu" and isinstance(dim, int):
        so_far = ops.cumsum(input, dim, name=f"{name}.so_far")
        last = ops.narrow(so_far, dim, input.shape[dim] - 1, 1, name=f"{name}.last" if not keepdim else name)
        return last if keepdim else ops.select(last, dim, 0, name=name)
    return ops.sum(input, _dims(input, dim), keepdim, name=name)


@stands_for("var")
def var(
    name: str, input: Tensor, dim: Any = None, unbiased: bool | None = None, keepdim: bool = False, *, correction: Any = None
) -> Any:
    """The variance over some dimensions."""
    require(not isinstance(dim, bool), "unbiased must be given by its name")
    over = range(input.ndim) if _dims(input, dim) is None else (dim,) if isinstance(dim, int) else tuple(dim)
    lost = (1 if unbiased in (None, True) else 0) if correction is None else correction
    count = prod(input.shape[d] for d in over)
    require(count > lost, "needs more elements than its correction")
    middle = ops.mean(input, tuple(over), True, name=f"{name}.mean")
    squares = ops.pow(ops.sub(input, middle, name=f"{name}.centred"), 2.0, name=f"{name}.squares")
    result = ops.mean(squares, tuple(over), keepdim, name=name)
    return ops.scale(result, count / (count - lost), name=f"{name}.unbiased") if lost else result


@stands_for("std")
def std(name: str, input: Tensor, dim: Any = None, unbiased: bool | None = None, keepdim: bool = False, *,
        correction: Any = None) -> Any:
    """The standard deviation over some dimensions."""
    return ops.sqrt(var(f"{name}.variance", input, dim, unbiased, keepdim, correction=correction), name=name)


def _clamped_integers(name: str, x: Tensor, least: Any, most: Any) -> Tensor:
    """Integers between two bounds, of which one may be None. Raises Unsupported for bounds that are no integers."""
    for bound, relation, at in ((least, "lt", "least"), (most, "gt", "most")):
        if bound is not None:
            require(bound == int(bound), "bounds of integers must be integers")
            beyond = Mask(ops.compare(x, relation, int(bound), name=f"{name}.beyond_{at}"))
            x = chosen(x.graph, f"{name}.{at}", beyond, int(bound), x)
    return x
