"""Pooling, tap by tap.

The compiled twin is native/_pooling.pyx; tests/kernels/test_kernels_images.py holds them equal.
"""

from __future__ import annotations

import numpy as np

from taskflow.kernels.definitions.arrays import Array, Padding, Pair, put, taps


class PoolingKernels:
    """Pooling of images; padding and sizes as in `conv2d`."""

    __slots__ = ()

    def max_pool2d(
        self, x: Array, kernel: Pair, stride: Pair, padding: Padding, out: Array, index: Array, dilation: Pair = (1, 1)
    ) -> None:
        """Maximum of each window: out (N, C, Ho, Wo). index, of that shape and an unsigned type, says which element of the
        window (row-major) it was: the first of equal ones, or a NaN if there is one. Padding is never the maximum; a window of
        nothing but padding gives minus infinity. One of minus infinities has index 0; if that is padding it has no gradient."""
        padded = _padded(x, padding, -np.inf)
        out[...] = -np.inf
        index[...] = 0
        for i, j, seen in taps(kernel, stride, dilation, out.shape[2:]):
            value = padded[seen]
            better = (value > out) | np.isnan(value)  # the first of equals; NaN is passed on
            np.copyto(out, value, where=better)
            np.copyto(index, index.dtype.type(i * kernel[1] + j), where=better)

    def max_pool2d_backward(
        self, dy: Array, index: Array, kernel: Pair, stride: Pair, padding: Padding, out: Array,
        accumulate: bool = False, dilation: Pair = (1, 1),
    ) -> None:
        """Gradient of x: dy and index (N, C, Ho, Wo) -> out (N, C, H, W)."""
        (top, bottom), (left, right) = padding
        n, c, height, width = out.shape
        padded = np.zeros((n, c, height + top + bottom, width + left + right), dy.dtype)
        for i, j, seen in taps(kernel, stride, dilation, dy.shape[2:]):
            padded[seen] += dy * (index == i * kernel[1] + j)
        put(padded[..., top : top + height, left : left + width], out, accumulate)

    def sum_pool2d(
        self, x: Array, kernel: Pair, stride: Pair, padding: Padding, scale: Array, out: Array
    ) -> None:
        """Sum of each window, times scale (Ho, Wo): out (N, C, Ho, Wo)."""
        padded = _padded(x, padding, 0)
        out[...] = 0
        for _, _, seen in taps(kernel, stride, (1, 1), out.shape[2:]):
            out += padded[seen]
        out *= scale

    def sum_pool2d_backward(
        self, dy: Array, kernel: Pair, stride: Pair, padding: Padding, scale: Array, out: Array,
        accumulate: bool = False,
    ) -> None:
        """Gradient of x: dy (N, C, Ho, Wo) -> out (N, C, H, W)."""
        (top, bottom), (left, right) = padding
        n, c, height, width = out.shape
        padded = np.zeros((n, c, height + top + bottom, width + left + right), dy.dtype)
        share = dy * scale
        for _, _, seen in taps(kernel, stride, (1, 1), dy.shape[2:]):
            padded[seen] += share
        put(padded[..., top : top + height, left : left + width], out, accumulate)


def _padded(x: Array, padding: Padding, value: float) -> Array:
    """(N, C, H, W) with a border of ``value``."""
    if padding == ((0, 0), (0, 0)):
        return x
    return np.pad(x, ((0, 0), (0, 0), *padding), constant_values=value)
