"""NativeImages: the compiled loops of _images.pyx, and convolution as matrix products over blocks of rows."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

from taskflow.kernels.kernel_set import Array, KernelSet, Padding, Pair
from taskflow.kernels.native import _images

# Columns of so many bytes are made and multiplied at a time: fewer stay in a nearer cache, but make the product so narrow
# that packing the weights costs more than it saves (measured from 2^18 to 2^23 on ResNet's layers).
_BLOCK_NBYTES = 1 << 21


class NativeImages(KernelSet):
    """Kernels on contiguous images of float32 or float64. Convolution needs no library but the set's matmul."""

    __slots__ = ()

    # ---- convolution --------------------------------------------------------------------------------------------
    def conv2d(
        self, x: Array, weight: Array, bias: Array | None, stride: Pair, padding: Padding, dilation: Pair, groups: int,
        out: Array,
    ) -> None:
        if _pointwise(weight, stride, padding):
            super().conv2d(x, weight, bias, stride, padding, dilation, groups, out)
            return
        rows = weight.reshape(groups, weight.shape[0] // groups, -1)
        size = out.shape[2:]
        for n, image in enumerate(x):
            target = out[n].reshape(groups, rows.shape[1], size[0] * size[1])
            for first, last, block, columns in _blocks(x, weight, groups, size):
                _images.columns(image, size, first, stride, padding, dilation, block)
                self.matmul(rows, columns, out=target[..., first * size[1] : last * size[1]])
        if bias is not None:
            out += bias[:, None, None]

    def conv2d_backward_data(
        self, dy: Array, weight: Array, stride: Pair, padding: Padding, dilation: Pair, groups: int, out: Array,
        accumulate: bool = False,
    ) -> None:
        rows = weight.reshape(groups, weight.shape[0] // groups, -1).swapaxes(1, 2)  # (groups, C/groups kh kw, K/groups)
        size = dy.shape[2:]
        if _pointwise(weight, stride, padding):
            source, target = (a.reshape(len(a), groups, a.shape[1] // groups, size[0] * size[1]) for a in (dy, out))
            for n in range(len(dy)):
                self.matmul(rows, source[n], out=target[n], accumulate=accumulate)
            return
        if not accumulate:
            out[...] = 0
        for n, image in enumerate(out):
            source = dy[n].reshape(groups, rows.shape[2], size[0] * size[1])
            for first, last, block, columns in _blocks(out, weight, groups, size):
                self.matmul(rows, source[..., first * size[1] : last * size[1]], out=columns)
                _images.add_columns(block, size, first, stride, padding, dilation, image)

    def conv2d_backward_weight(
        self, x: Array, dy: Array, stride: Pair, padding: Padding, dilation: Pair, groups: int, out: Array,
        accumulate: bool = False,
    ) -> None:
        if _pointwise(out, stride, padding):
            super().conv2d_backward_weight(x, dy, stride, padding, dilation, groups, out, accumulate)
            return
        target = out.reshape(groups, out.shape[0] // groups, -1)
        size = dy.shape[2:]
        if not accumulate:
            out[...] = 0
        for n, image in enumerate(x):
            source = dy[n].reshape(groups, target.shape[1], size[0] * size[1])
            for first, last, block, columns in _blocks(x, out, groups, size):
                _images.columns(image, size, first, stride, padding, dilation, block)
                part = source[..., first * size[1] : last * size[1]]
                self.matmul(part, columns.swapaxes(1, 2), out=target, accumulate=True)

    # ---- pooling ------------------------------------------------------------------------------------------------
    def max_pool2d(
        self, x: Array, kernel: Pair, stride: Pair, padding: Padding, out: Array, index: Array, dilation: Pair = (1, 1)
    ) -> None:
        _images.max_pool2d(x, kernel, stride, padding, dilation, out, index)

    def max_pool2d_backward(
        self, dy: Array, index: Array, kernel: Pair, stride: Pair, padding: Padding, out: Array,
        accumulate: bool = False, dilation: Pair = (1, 1),
    ) -> None:
        _images.max_pool2d_backward(dy, index, kernel, stride, padding, dilation, out, accumulate)

    def sum_pool2d(
        self, x: Array, kernel: Pair, stride: Pair, padding: Padding, scale: Array, out: Array
    ) -> None:
        _images.sum_pool2d(x, kernel, stride, padding, scale, out)

    def sum_pool2d_backward(
        self, dy: Array, kernel: Pair, stride: Pair, padding: Padding, scale: Array, out: Array,
        accumulate: bool = False,
    ) -> None:
        _images.sum_pool2d_backward(dy, kernel, stride, padding, scale, out, accumulate)

    # ---- channels of (N, C, P) ----------------------------------------------------------------------------------
    def channel_sums(self, x: Array, out: Array, accumulate: bool = False) -> None:
        sums = np.zeros(x.shape[1])
        _images.channel_sums(x, sums)
        if accumulate:
            out += sums
        else:
            out[...] = sums

    def channel_moments(self, x: Array, out: Array) -> None:
        _images.channel_moments(x, out)

    def channel_products(self, x: Array, dy: Array, out: Array) -> None:
        _images.channel_products(x, dy, out)

    def channel_affine(self, x: Array, scale: Array, offset: Array, out: Array, accumulate: bool = False) -> None:
        _images.channel_affine(x, scale, offset, out, accumulate)

    def channel_scales(self, sums: Array, count: int, eps: float, weight: Array, bias: Array, out: Array) -> None:
        _images.channel_scales(sums, count, eps, weight, bias, out)

    def channel_changes(self, sums: Array, count: int, eps: float, weight: Array, products: Array, out: Array) -> None:
        _images.channel_changes(sums, count, eps, weight, products, out)

    def channel_running(
        self, moments: Array, count: int, momentum: float, correction: float, mean: Array, variance: Array, new_mean: Array,
        new_variance: Array,
    ) -> None:
        _images.channel_running(moments, count, momentum, correction, mean, variance, new_mean, new_variance)


_scratches = threading.local()


def scratch(shape: tuple[int, ...], dtype: np.dtype[Any], use: str) -> Array:
    """Memory whose contents are needed for the length of a call only: one block a thread, ``use`` and dtype, which grows."""
    blocks: dict[str, Array] = _scratches.__dict__
    size, name = int(np.prod(shape)), use + dtype.str
    block = blocks.get(name)
    if block is None or block.size < size:
        blocks[name] = block = np.empty(size, dtype)
    return block[:size].reshape(shape)


def _pointwise(weight: Array, stride: Pair, padding: Padding) -> bool:
    """Whether the image is its own columns."""
    return weight.shape[2:] == (1, 1) and tuple(stride) == (1, 1) and padding == ((0, 0), (0, 0))


def _blocks(image: Array, weight: Array, groups: int, size: tuple[int, int]) -> Iterator[tuple[int, int, Array, Array]]:
    """The output's rows first:last in blocks, each with memory for its columns (C, kh, kw, rows, Wo), and the same memory
    as (groups, C/groups kh kw, rows Wo)."""
    channels, kernel = image.shape[1], weight.shape[2:]
    each = channels // groups * kernel[0] * kernel[1]
    most = max(1, _BLOCK_NBYTES // max(1, groups * each * size[1] * image.itemsize))
    for first in range(0, size[0], most):
        last = min(first + most, size[0])
        block = scratch((channels, *kernel, last - first, size[1]), image.dtype, "columns")
        yield first, last, block, block.reshape(groups, each, (last - first) * size[1])
