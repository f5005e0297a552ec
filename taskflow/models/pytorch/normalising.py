"""Normalisation composed of simple operators, if no operator has its parameters or dimensions."""

from __future__ import annotations

from typing import Any

from taskflow import operators as ops
from taskflow.models.pytorch.arithmetic import add, mul
from taskflow.operators.tensor import Tensor


def normalised(name: str, x: Tensor, dims: int | tuple[int, ...], eps: float, centred: bool) -> Tensor:
    """Build x / sqrt(mean square + eps) over some dimensions, or so many of the last; ``centred``: subtract the mean from x
    first."""
    over = tuple(range(x.ndim - dims, x.ndim)) if isinstance(dims, int) else dims
    if centred:
        x = ops.sub(x, ops.mean(x, over, True, name=f"{name}.mean"), name=f"{name}.centred")
    squares = ops.mean(ops.pow(x, 2.0, name=f"{name}.squares"), over, True, name=f"{name}.variance")
    root = ops.rsqrt(ops.shift(squares, eps, name=f"{name}.eps"), name=f"{name}.root")
    return ops.mul(x, root, name=f"{name}.normalised")


def affine(name: str, x: Tensor, weight: Any, bias: Any) -> Any:
    """Build x weight + bias, either of which may be missing."""
    y = x if weight is None else mul(f"{name}.scaled", x, weight)
    return y if bias is None else add(name, y, bias)


def normalised_groups(name: str, x: Tensor, groups: int, eps: float) -> Tensor:
    """Build x with each group of its channels normalised by itself."""
    count, channels, *rest = x.shape
    grouped = ops.reshape(x, (count, groups, channels // groups, *rest), name=f"{name}.groups")
    return ops.reshape(normalised(name, grouped, grouped.ndim - 2, eps, centred=True), x.shape, name=f"{name}.joined")
