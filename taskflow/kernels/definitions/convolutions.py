"""Convolution: patches as columns, and a matrix product, sample by sample.

The compiled twin is native/_convolutions.pyx; tests/kernels/test_kernels_images.py holds them equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from taskflow.kernels.definitions.arrays import Array, Padding, Pair, put, taps
from taskflow.kernels.definitions.products import ProductKernels


class ConvolutionKernels(ProductKernels):
    """Convolution of images (N, C, H, W) by weights (K, C / groups, kh, kw), computed with the kernel set's own matmul."""

    __slots__ = ()

    def conv2d(
        self, x: Array, weight: Array, bias: Array | None, stride: Pair, padding: Padding, dilation: Pair, groups: int,
        out: Array,
    ) -> None:
        """Cross-correlation of x and weight, plus bias (K): out (N, K, Ho, Wo). ``padding`` may differ on the two sides of a
        dimension. The padded image is cut to what the windows cover: (Ho - 1) stride + (kh - 1) dilation + 1 rows."""
        rows = _per_group(weight, groups)
        target = out.reshape(len(x), groups, rows.shape[1], prod(out.shape[2:]))
        for n, columns in _columns(x, weight.shape[2:], stride, padding, dilation, groups, out.shape[2:]):
            self.matmul(rows, columns, out=target[n])
        if bias is not None:
            out += bias[:, None, None]

    def conv2d_backward_data(
        self, dy: Array, weight: Array, stride: Pair, padding: Padding, dilation: Pair, groups: int, out: Array,
        accumulate: bool = False,
    ) -> None:
        """Gradient of x: dy (N, K, Ho, Wo) -> out (N, C, H, W)."""
        rows = _per_group(weight, groups).swapaxes(1, 2)  # (groups, C/groups kh kw, K/groups)
        (top, bottom), (left, right) = padding
        _, channels, height, width = out.shape
        source = dy.reshape(len(dy), groups, weight.shape[0] // groups, prod(dy.shape[2:]))
        columns = np.empty((groups, rows.shape[1], source.shape[3]), dy.dtype)
        patches = columns.reshape(channels, *weight.shape[2:], *dy.shape[2:])
        padded = np.empty((channels, height + top + bottom, width + left + right), dy.dtype)
        for n in range(len(dy)):
            self.matmul(rows, source[n], out=columns)
            padded[...] = 0
            for i, j, seen in taps(weight.shape[2:], stride, dilation, dy.shape[2:]):
                padded[seen] += patches[:, i, j]
            put(padded[:, top : top + height, left : left + width], out[n], accumulate)

    def conv2d_backward_weight(
        self, x: Array, dy: Array, stride: Pair, padding: Padding, dilation: Pair, groups: int, out: Array,
        accumulate: bool = False,
    ) -> None:
        """Gradient of the weight: x and dy (N, K, Ho, Wo) -> out (K, C / groups, kh, kw)."""
        target = _per_group(out, groups)
        source = dy.reshape(len(dy), groups, target.shape[1], prod(dy.shape[2:]))
        if not accumulate:
            out[...] = 0
        for n, columns in _columns(x, out.shape[2:], stride, padding, dilation, groups, dy.shape[2:]):
            self.matmul(source[n], columns.swapaxes(1, 2), out=target, accumulate=True)


def _per_group(weight: Array, groups: int) -> Array:
    """(K, C/groups, kh, kw) as (groups, K/groups, C/groups kh kw), the same memory."""
    return weight.reshape(groups, weight.shape[0] // groups, -1)


def _columns(
    x: Array, kernel: tuple[int, ...], stride: Pair, padding: Padding, dilation: Pair, groups: int,
    out: tuple[int, ...],
) -> Iterator[tuple[int, Array]]:
    """Each sample with its patches as columns, (groups, C/groups kh kw, Ho Wo), in memory that the next one reuses."""
    samples, channels, height, width = x.shape
    each = channels // groups * kernel[0] * kernel[1]
    if tuple(kernel) == (1, 1) and tuple(stride) == (1, 1) and padding == ((0, 0), (0, 0)):
        yield from enumerate(x.reshape(samples, groups, each, height * width))
        return
    (top, bottom), (left, right) = padding
    padded = np.zeros((channels, height + top + bottom, width + left + right), x.dtype)
    inner = padded[:, top : top + height, left : left + width]
    columns = np.empty((groups, each, out[0] * out[1]), x.dtype)
    patches = columns.reshape(channels, *kernel, *out)
    for n in range(samples):
        inner[...] = x[n]
        for i, j, seen in taps(kernel, stride, dilation, out):
            patches[:, i, j] = padded[seen]
        yield n, columns
