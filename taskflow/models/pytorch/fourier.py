"""Functions of torch.fft: the transform of one dimension is the operator `fft`; those of several follow one after the other."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np
import torch

from taskflow import operators as ops
from taskflow.graph import OperatorGraph
from taskflow.models.pytorch.complex_numbers import OF_COMPLEX, Complex
from taskflow.models.pytorch.registry import constant, tensor_of
from taskflow.models.pytorch.shaping import permuted
from taskflow.models.pytorch.site import require
from taskflow.models.pytorch.steps import Fixed
from taskflow.operators.tensor import Tensor

Pair = tuple[Tensor, Tensor | None]


def _pair(graph: OperatorGraph, name: str, input: Any) -> Pair:
    require(not isinstance(input, Fixed) or not input.tensor.is_complex(), "of fixed complex numbers")
    return (input.real, input.imag) if isinstance(input, Complex) else (tensor_of(input, graph, name), None)


def _each(pair: Pair, change: Any) -> Pair:
    return change(pair[0]), None if pair[1] is None else change(pair[1])


def _sized(name: str, x: Tensor, size: int) -> Tensor:
    """The first numbers of the last dimension, and zeros behind them if there are fewer."""
    if size <= x.shape[-1]:
        return x if size == x.shape[-1] else ops.narrow(x, -1, 0, size, name=f"{name}.first")
    return ops.pad(x, (0, size - x.shape[-1]), name=f"{name}.longer")


def _factor(size: int, norm: str | None, inverse: bool) -> float:
    """PyTorch's factor: by default all of it in the inverse."""
    scaled = norm == "forward" if not inverse else norm in (None, "backward")
    return 1 / sqrt(size) if norm == "ortho" else 1 / size if scaled else 1.0


def _along(name: str, pair: Pair, dim: int, size: int | None, norm: str | None, inverse: bool, half: bool) -> Pair:
    """The transform of one dimension; ``half``: of real numbers to half of the results, or back."""
    ndim = pair[0].ndim
    dim %= ndim
    pair = _each(pair, lambda x: permuted(f"{name}.last", x, [*(i for i in range(ndim) if i != dim), dim]))
    given = pair[0].shape[-1]
    size = size if size is not None else 2 * (given - 1) if half and inverse else given
    require(size > 0, "of no numbers")
    if half and inverse:  # the other half are the conjugates: twice the real part, but of those that are alone
        count = size // 2 + 1
        table = np.full(count, 2.0)
        table[0] = 1.0
        if size % 2 == 0:
            table[-1] = 1.0
        twice = constant(pair[0].graph, table.astype(pair[0].dtype), f"{name}.twice")
        pair = _each(pair, lambda x: ops.mul(_sized(name, x, count), twice, name=f"{name}.both"))
    pair = _each(pair, lambda x: _sized(name, x, size))
    kept = size // 2 + 1 if half and not inverse else size
    real, imag = ops.fft(*pair, inverse=inverse, factor=_factor(size, norm, inverse), count=kept, name=name)
    turned = [*range(dim), ndim - 1, *range(dim, ndim - 1)]
    result: Pair = _each((real, None if half and inverse else imag), lambda x: permuted(f"{name}.turned", x, turned))
    return result


def _made(pair: Pair) -> Any:
    return pair[0] if pair[1] is None else Complex(pair[0], pair[1])


def _of_one(inverse: bool, half: bool) -> Any:
    def built(graph: OperatorGraph, name: str, input: Any, n: int | None = None, dim: int = -1, norm: str | None = None) -> Any:
        return _made(_along(name, _pair(graph, name, input), dim, n, norm, inverse, half))

    return built


def _of_several(inverse: bool, half: bool, last: tuple[int, ...] | None) -> Any:
    def built(
        graph: OperatorGraph, name: str, input: Any, s: Any = None, dim: Any = last, norm: str | None = None
    ) -> Any:
        pair = _pair(graph, name, input)
        dims = [*dim] if dim is not None else [*range(-len(s), 0)] if s is not None else [*range(pair[0].ndim)]
        sizes = [None] * len(dims) if s is None else [*s]
        order = [*range(len(dims))] if half and inverse else [*reversed(range(len(dims)))]  # the half one is the last given
        for at in order:
            is_half = half and at == len(dims) - 1
            pair = _along(f"{name}.{at}", pair, dims[at], sizes[at], norm, inverse, is_half)
        return _made(pair)

    return built


for _inverse in (False, True):
    for _half in (False, True):
        _name = f"{'i' if _inverse else ''}{'r' if _half else ''}fft"
        OF_COMPLEX[getattr(torch.fft, _name)] = _of_one(_inverse, _half)
        OF_COMPLEX[getattr(torch.fft, f"{_name}2")] = _of_several(_inverse, _half, (-2, -1))
        OF_COMPLEX[getattr(torch.fft, f"{_name}n")] = _of_several(_inverse, _half, None)
