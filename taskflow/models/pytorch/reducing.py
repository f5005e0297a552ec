"""Functions of torch that make few numbers of many, or one of all before it: extremes, norms, cumulative sums."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from taskflow import operators as ops
from taskflow.models.pytorch.activations import log_softmax
from taskflow.models.pytorch.calls import IGNORED, reduction_of
from taskflow.models.pytorch.registry import FUNCTIONS, array_of, graph_of, number_of, stands_for, tensor_of
from taskflow.models.pytorch.shaping import permuted
from taskflow.models.pytorch.site import require
from taskflow.models.pytorch.steps import Fixed
from taskflow.operators.tensor import Tensor


def _extremes(least: bool, several: str, one: str) -> None:
    @stands_for(several)
    def amax(name: str, input: Tensor, dim: Any = (), keepdim: bool = False) -> Any:
        """The largest or least numbers over some dimensions, all by none."""
        return ops.amax(input, None if dim == () or dim == [] else dim, keepdim, least=least, name=name)

    @stands_for(one, raw=True)
    def extreme(name: str, input: Any, dim: Any = None, keepdim: bool = False) -> Any:
        """The largest or least number of all, or those along a dimension, with positions for who reads them; or of two tensors."""
        if dim is not None and not isinstance(dim, int):
            return _of_two(name, input, dim, least)
        x = tensor_of(input, graph_of(input), name)
        if dim is None:
            return ops.amax(x, None, least=least, name=name)
        where = partial(argmin if least else argmax, f"{name}.where", x, dim, keepdim)
        return ops.amax(x, dim, keepdim, least=least, first=True, name=name), where

    @stands_for(f"{one}imum", raw=True)
    def of_two(name: str, input: Any, other: Any) -> Any:
        """The larger or lesser of two tensors' numbers at each place."""
        return _of_two(name, input, other, least)


def _of_two(name: str, input: Any, other: Any, least: bool) -> Tensor:
    """Take the larger or lesser; where both are equal, each has half of the gradient, as in PyTorch. A number is a bound."""
    graph = graph_of(input, other)
    bound = number_of(other)
    if bound is not None:
        x = tensor_of(input, graph, name)
        return ops.clamp(x, None, bound, name=name) if least else ops.clamp(x, bound, None, name=name)
    a, b = (tensor_of(value, graph, name) for value in (input, other))
    first = ops.compare(a, "lt" if least else "gt", b, name=f"{name}.first")
    taken = ops.where(first, "ne", 0.0, a, b, name=f"{name}.taken")
    alike = ops.compare(a, "eq", b, name=f"{name}.alike")
    mean = ops.scale(ops.add(a, b, name=f"{name}.both"), 0.5, name=f"{name}.mean")
    return ops.where(alike, "ne", 0.0, mean, taken, name=name)


_extremes(False, "amax", "max")
_extremes(True, "amin", "min")


@stands_for("cumsum", "cumsum_")
def cumsum(name: str, input: Tensor, dim: int, *, dtype: Any = None) -> Any:
    """Sums of all elements up to each one."""
    return ops.cumsum(input, dim, name=name)


@stands_for("logcumsumexp")
def logcumsumexp(name: str, input: Tensor, dim: int) -> Any:
    """Logarithms of sums of exponentials up to each element."""
    return ops.logcumsumexp(input, dim, name=name)


def slogdet(name: str, A: Tensor) -> Any:
    """Signs of determinants, and logarithms of their sizes."""
    each = A if A.ndim > 2 else ops.reshape(A, (1, *A.shape), name=f"{name}.matrix")
    sign, logarithm = ops.slogdet(each, name=name)
    if A.ndim > 2:
        return torch.return_types.linalg_slogdet((sign, logarithm))
    found = [ops.reshape(of, (), name=f"{name}.{at}") for at, of in (("sign", sign), ("logarithm", logarithm))]
    return torch.return_types.linalg_slogdet(found)


FUNCTIONS.update({torch.linalg.slogdet: slogdet, torch.slogdet: slogdet, torch.Tensor.slogdet: slogdet})


@stands_for("logsumexp")
def logsumexp(name: str, input: Tensor, dim: Any, keepdim: bool = False) -> Any:
    """The logarithm of a sum of exponentials."""
    return ops.logsumexp(input, dim, keepdim, name=name)


@stands_for("log_softmax")
def log_softmax_of(name: str, input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Any:
    """The logarithm of softmax."""
    return log_softmax(name, input, dim)


@stands_for("norm")
def norm(name: str, input: Tensor, p: Any = "fro", dim: Any = None, keepdim: bool = False, out: None = None,
         dtype: Any = None) -> Any:
    """The norm of vectors along some dimensions: of the first, second or infinite order."""
    p = 2 if p in ("fro", None) else p
    if p == 2:
        squares = ops.sum(ops.pow(input, 2.0, name=f"{name}.squares"), dim, keepdim, name=f"{name}.sum")
        return ops.sqrt(squares, name=name)
    require(p in (1, float("inf")), f"of order {p}; only 1, 2 and infinity")
    sizes = ops.abs(input, name=f"{name}.sizes")
    return ops.sum(sizes, dim, keepdim, name=name) if p == 1 else ops.amax(sizes, dim, keepdim, name=name)


@stands_for("argmax")
def argmax(name: str, input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """The position of the largest number along a dimension."""
    require(dim is not None, "needs dim")
    at = range(input.ndim)[dim or 0]
    last = permuted(f"{name}.last", input, [*(i for i in range(input.ndim) if i != at), at])
    place = ops.argmax(last, name=name)
    return ops.reshape(place, (*input.shape[:at], 1, *input.shape[at + 1 :]), name=f"{name}.kept") if keepdim else place


@stands_for("argmin")
def argmin(name: str, input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """The position of the least number along a dimension."""
    return argmax(name, ops.scale(input, -1.0, name=f"{name}.minus"), dim, keepdim)


@stands_for("cross_entropy", raw=True)
def cross_entropy(
    name: str, input: Any, target: Any, weight: None = None, size_average: bool | None = None, ignore_index: int = IGNORED,
    reduce: bool | None = None, reduction: str = "mean", label_smoothing: float = 0.0,
) -> Any:
    """The loss of scores (N, C, ...) and labels (N, ...)."""
    require(weight is None, "weights of classes")
    reduction = reduction_of(size_average, reduce, reduction)
    x = tensor_of(input, graph_of(input, target), name)
    x = permuted(f"{name}.last", x, [0, *range(2, x.ndim), 1]) if x.ndim > 2 else x
    labels, fixed = tensor_of(target, x.graph, name), isinstance(target, Fixed)
    require(labels.dtype.kind in "iu", "of probabilities in place of labels")
    require(not fixed or not (array_of(target) == ignore_index).any(), "of fixed labels of which some are left out")
    return ops.cross_entropy(
        x, labels, ignore_index=None if fixed else ignore_index, reduction=reduction, label_smoothing=label_smoothing, name=name
    )


def vector_norm(
    name: str, x: Tensor, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None, out: None = None
) -> Any:
    """torch.linalg.vector_norm; as torch.linalg.norm only where that means the same."""
    return norm(name, x, ord, dim, keepdim)


def linalg_norm(
    name: str, A: Tensor, ord: Any = None, dim: Any = None, keepdim: bool = False, *, out: None = None, dtype: Any = None
) -> Any:
    """torch.linalg.norm of vectors, or of all elements."""
    require(ord is None or isinstance(dim, int), "of matrices, of another order than None")
    return norm(name, A, ord, dim, keepdim)


FUNCTIONS.update({torch.linalg.vector_norm: vector_norm, torch.linalg.norm: linalg_norm})


@stands_for("normalize")
def normalize(name: str, input: Tensor, p: float = 2.0, dim: Any = 1, eps: float = 1e-12, out: None = None) -> Any:
    """Vectors divided by their lengths, which count as ``eps`` at least."""
    require(p == 2.0, f"of order {p}; only 2")
    squares = ops.sum(ops.pow(input, 2.0, name=f"{name}.squares"), dim, True, name=f"{name}.sum")
    least = ops.clamp(squares, eps * eps, None, name=f"{name}.least")  # before the root, whose derivative at 0 is infinite
    return ops.mul(input, ops.rsqrt(least, name=f"{name}.inverse"), name=name)
