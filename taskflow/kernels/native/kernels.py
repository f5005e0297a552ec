"""NativeKernels: the compiled loops, and numpy's own BLAS for the larger matrix products."""

from __future__ import annotations

import numpy as np

from taskflow.kernels.blas import find_blas
from taskflow.kernels.kernel_set import Array, Key, Split
from taskflow.kernels.native import _losses, _native, _pointwise, _products
from taskflow.kernels.native.images import NativeImages, scratch


class NativeKernels(NativeImages):
    """float32 and float64 arrays, contiguous (strided over rows where KernelSet allows it); what `numpy.matmul` takes for
    ``matmul``."""

    __slots__ = ()
    name = "native"

    def __init__(self) -> None:
        _take_blas()

    def matmul(self, a: Array, b: Array, out: Array, accumulate: bool = False) -> None:
        # The compiled product declines what neither its loops nor the BLAS can read as it lies.
        if _products.matmul(a, b, out, accumulate):
            return
        if accumulate:
            product = scratch(out.shape, out.dtype, "product")
            np.matmul(a, b, out=product)
            out += product
        else:
            np.matmul(a, b, out=out)

    def copy(self, x: Array, out: Array) -> None:
        if not _native.copy_part(x, out):
            super().copy(x, out)

    def add(self, x: Array, out: Array) -> None:
        if not _native.add_part(x, out):
            super().add(x, out)

    def sum_rows(self, x: Array, out: Array, accumulate: bool = False) -> None:
        _native.sum_rows(x, out, accumulate)

    def lstm_cell(self, gates: Array, c_prev: Array, c: Array, h: Array) -> None:
        _native.lstm_cell(gates, c_prev, c, h)

    def lstm_cell_backward(
        self, gates: Array, c_prev: Array, c: Array, dh: Array, dc: Array, dgates: Array
    ) -> None:
        _native.lstm_cell_backward(gates, c_prev, c, dh, dc, dgates)

    def layer_norm(
        self, x: Array, weight: Array, bias: Array, eps: float, out: Array, statistics: Array
    ) -> None:
        _pointwise.layer_norm(x, weight, bias, eps, out, statistics)

    def layer_norm_backward(
        self, x: Array, weight: Array, statistics: Array, dy: Array, out: Array | None, sums: Array | None,
        accumulate: bool = False,
    ) -> None:
        _pointwise.layer_norm_backward(x, weight, statistics, dy, out, sums, accumulate)

    def activate(self, function: str, x: Array, out: Array) -> None:
        _pointwise.activate(function, x, out)

    def activate_backward(self, function: str, y: Array, dy: Array, out: Array, accumulate: bool = False) -> None:
        _pointwise.activate_backward(function, y, dy, out, accumulate)

    def gelu(self, x: Array, approximate: bool, out: Array) -> None:
        _pointwise.gelu(x, approximate, out)

    def gelu_backward(
        self, x: Array, approximate: bool, dy: Array, out: Array, accumulate: bool = False
    ) -> None:
        _pointwise.gelu_backward(x, approximate, dy, out, accumulate)

    def softmax(self, x: Array, out: Array, ends: Array | None = None) -> None:
        _losses.softmax(x, out, ends)

    def softmax_backward(self, y: Array, dy: Array, out: Array, accumulate: bool = False) -> None:
        _losses.softmax_backward(y, dy, out, accumulate)

    def cross_entropy(
        self, logits: Array, target: Array, ignore: int, probabilities: Array, smoothing: float = 0.0
    ) -> float:
        return _losses.cross_entropy(logits, target, ignore, probabilities, smoothing)

    def cross_entropy_backward(
        self, probabilities: Array, target: Array, ignore: int, scale: float, out: Array, accumulate: bool = False,
        smoothing: float = 0.0,
    ) -> None:
        _losses.cross_entropy_backward(probabilities, target, ignore, scale, out, accumulate, smoothing)

    def class_blocks(
        self, logits: Array, target: Array, ignore: int, split: Split, probabilities: Array, out: Array, smoothing: float = 0.0
    ) -> None:
        _losses.class_blocks(logits, target, ignore, split, probabilities, out, smoothing)

    def class_blocks_backward(
        self, probabilities: Array, target: Array, ignore: int, split: Split, dy: Array, out: Array, accumulate: bool = False,
        smoothing: float = 0.0,
    ) -> None:
        _losses.class_blocks_backward(probabilities, target, ignore, split, dy, out, accumulate, smoothing)

    def cross_entropy_of_blocks(self, y: Array, target: Array, ignore: int, shares: Array) -> float:
        return _losses.cross_entropy_of_blocks(y, target, ignore, shares)

    def cross_entropy_of_blocks_backward(
        self, shares: Array, target: Array, ignore: int, scale: float, out: Array, accumulate: bool = False
    ) -> None:
        _losses.cross_entropy_of_blocks_backward(shares, target, ignore, scale, out, accumulate)

    def embedding(self, table: Array, index: Array, first: int, out: Array) -> None:
        _native.embedding(table, index, first, out)

    def embedding_backward(self, index: Array, first: int, dy: Array, out: Array, accumulate: bool = False) -> None:
        _native.embedding_backward(index, first, dy, out, accumulate)

    def uniform(self, key: Key, stream: int, shape: tuple[int, ...], lo: tuple[int, ...], out: Array) -> None:
        _native.random(False, key, stream, tuple(shape), tuple(lo), out)

    def normal(self, key: Key, stream: int, shape: tuple[int, ...], lo: tuple[int, ...], out: Array) -> None:
        _native.random(True, key, stream, tuple(shape), tuple(lo), out)

    def dropout(
        self, key: Key, stream: int, shape: tuple[int, ...], lo: tuple[int, ...], p: float, x: Array, out: Array,
        mask: Array,
    ) -> None:
        _native.dropout(key, stream, tuple(shape), tuple(lo), p, x, out, mask)

    def dropout_backward(self, mask: Array, p: float, dy: Array, out: Array, accumulate: bool = False) -> None:
        _native.dropout_backward(mask, p, dy, out, accumulate)

    def sgd(
        self, w: Array, g: Array, velocity: Array | None, lr: float, momentum: float, dampening: float,
        weight_decay: float, nesterov: bool, scale: float, first: bool,
    ) -> None:
        _native.sgd(w, g, velocity, lr, momentum, dampening, weight_decay, nesterov, scale, first)

    def adam(
        self, w: Array, g: Array, m: Array, v: Array, lr: float, beta1: float, beta2: float, eps: float,
        weight_decay: float, decoupled: bool, scale: float, step: int,
    ) -> None:
        _native.adam(w, g, m, v, lr, beta1, beta2, eps, weight_decay, decoupled, scale, step)

    def sum_of_squares(self, x: Array) -> float:
        return _native.sum_of_squares(x)


_blas_searched = False


def _take_blas() -> None:
    """Hand numpy's BLAS to the compiled module, once a process."""
    global _blas_searched
    if not _blas_searched:
        if (blas := find_blas()) is not None:
            _products.use_blas(blas.sgemm, blas.dgemm, blas.wide)
        _blas_searched = True
