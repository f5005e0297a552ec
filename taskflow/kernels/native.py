"""NativeKernels: the compiled loops of _native.pyx, and numpy's own BLAS for the larger matrix products."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from taskflow.kernels import _native
from taskflow.kernels.blas import find_blas
from taskflow.kernels.kernel_set import Array, Key
from taskflow.kernels.shared import SharedKernels


class NativeKernels(SharedKernels):
    """float32 and float64 arrays with contiguous rows; what `numpy.matmul` takes for ``matmul``."""

    __slots__ = ()
    name = "native"

    def __init__(self) -> None:
        _take_blas()

    def matmul(self, a: Array, b: Array, out: Array, accumulate: bool = False) -> None:
        # The compiled product declines what neither its loops nor the BLAS can read as it lies.
        if _native.matmul(a, b, out, accumulate):
            return
        if accumulate:
            product = _scratch(out.shape, out.dtype)
            np.matmul(a, b, out=product)
            out += product
        else:
            np.matmul(a, b, out=out)

    def sum_rows(self, x: Array, out: Array, accumulate: bool = False) -> None:
        _native.sum_rows(x, out, accumulate)

    def lstm_cell(self, gates: Array, c_prev: Array, c: Array, h: Array) -> None:
        _native.lstm_cell(gates, c_prev, c, h)

    def lstm_cell_backward(
        self, gates: Array, c_prev: Array, c: Array, dh: Array, dc: Array, dgates: Array
    ) -> None:
        _native.lstm_cell_backward(gates, c_prev, c, dh, dc, dgates)

    def softmax(self, x: Array, out: Array) -> None:
        _native.softmax(x, out)

    def softmax_backward(self, y: Array, dy: Array, out: Array, accumulate: bool = False) -> None:
        _native.softmax_backward(y, dy, out, accumulate)

    def cross_entropy(self, logits: Array, target: Array, ignore: int, probabilities: Array) -> float:
        return _native.cross_entropy(logits, target, ignore, probabilities)

    def cross_entropy_backward(
        self, probabilities: Array, target: Array, ignore: int, scale: float, out: Array, accumulate: bool = False
    ) -> None:
        _native.cross_entropy_backward(probabilities, target, ignore, scale, out, accumulate)

    def embedding(self, table: Array, index: Array, first: int, out: Array) -> None:
        _native.embedding(table, index, first, out)

    def embedding_backward(self, index: Array, first: int, dy: Array, out: Array, accumulate: bool = False) -> None:
        _native.embedding_backward(index, first, dy, out, accumulate)

    def uniform(self, key: Key, stream: int, shape: tuple[int, ...], lo: tuple[int, ...], out: Array) -> None:
        _native.random(False, key, stream, tuple(shape), tuple(lo), out)

    def normal(self, key: Key, stream: int, shape: tuple[int, ...], lo: tuple[int, ...], out: Array) -> None:
        _native.random(True, key, stream, tuple(shape), tuple(lo), out)

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
_scratches = threading.local()


def _take_blas() -> None:
    """Hand numpy's BLAS to the compiled module, once a process."""
    global _blas_searched
    if not _blas_searched:
        if (blas := find_blas()) is not None:
            _native.use_blas(blas.sgemm, blas.dgemm, blas.wide)
        _blas_searched = True


def _scratch(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Memory for a product that is then added elsewhere: one block a thread and dtype, which grows."""
    blocks: dict[str, Array] = _scratches.__dict__
    size = int(np.prod(shape))
    block = blocks.get(dtype.str)
    if block is None or block.size < size:
        blocks[dtype.str] = block = np.empty(size, dtype)
    return block[:size].reshape(shape)
