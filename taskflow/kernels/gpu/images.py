"""Images: convolution as patches and a matrix product, and pooling, on the GPU (images.cu). `convolutions` has cuDNN's."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np

from taskflow.kernels.gpu.channels import ChannelsOnGPU
from taskflow.kernels.gpu.launching import check_output, flag, whole
from taskflow.kernels.kernel_set import Array, Padding, Pair

PATCH_BYTES = 256 << 20
"""The most memory for patches; more samples than fit go one group after the other."""


class ImagesOnGPU(ChannelsOnGPU):
    """Kernels with one thread for each element of the result."""

    __slots__ = ()

    # ---- convolution --------------------------------------------------------------------------------------------
    def conv2d(
        self, x: Array, weight: Array, bias: Array | None, stride: Pair, padding: Padding, dilation: Pair, groups: int,
        out: Array,
    ) -> None:
        check_output("conv2d", out)
        filters = weight.reshape(groups, weight.shape[0] // groups, -1)
        target = out.reshape(len(x), groups, filters.shape[1], -1)
        for some, columns in self._columns(x, weight, out, stride, padding, dilation, groups):
            for group in range(groups):
                every = self.xp.broadcast_to(filters[group], (len(columns), *filters.shape[1:]))
                self.device.multiply(every, columns[:, group], target[some, group], False)
        if bias is not None:
            self._add_bias(bias, out)

    def _add_bias(self, bias: Array, out: Array) -> None:
        positions = prod(out.shape[2:])
        self._each(out, "add_bias", out.size, whole(out.size), whole(out.shape[1]), whole(positions), bias, out)

    def conv2d_backward_data(
        self, dy: Array, weight: Array, stride: Pair, padding: Padding, dilation: Pair, groups: int, out: Array,
        accumulate: bool = False,
    ) -> None:
        check_output("conv2d_backward_data", out)
        filters = weight.reshape(groups, weight.shape[0] // groups, -1).swapaxes(1, 2)
        source = self._dense(dy).reshape(len(dy), groups, filters.shape[2], -1)
        sliding = _sliding(out, dy, weight.shape[2:], stride, padding, dilation)
        for some in _samples(out, weight, dy):
            columns = self.xp.empty((some.stop - some.start, groups, filters.shape[1], source.shape[3]), dy.dtype)
            for group in range(groups):
                every = self.xp.broadcast_to(filters[group], (len(columns), *filters.shape[1:]))
                self.device.multiply(every, source[some, group], columns[:, group], False)
            part = out[some]
            planes = part.shape[0] * part.shape[1]
            self._each(part, "unpatch", part.size, whole(planes), *sliding, columns, part, flag(accumulate))

    def conv2d_backward_weight(
        self, x: Array, dy: Array, stride: Pair, padding: Padding, dilation: Pair, groups: int, out: Array,
        accumulate: bool = False,
    ) -> None:
        check_output("conv2d_backward_weight", out)
        filters = out.reshape(groups, out.shape[0] // groups, -1)
        source = self._dense(dy).reshape(len(dy), groups, filters.shape[1], -1)
        if not accumulate:
            out.fill(0)
        for some, columns in self._columns(x, out, dy, stride, padding, dilation, groups):
            for group in range(groups):
                for n, given in enumerate(source[some, group]):
                    self.device.multiply(given, columns[n, group].swapaxes(0, 1), filters[group], True)

    def _columns(
        self, x: Array, weight: Array, y: Array, stride: Pair, padding: Padding, dilation: Pair, groups: int
    ) -> Iterator[tuple[slice, Array]]:
        """Some samples, and what their windows see as columns (n, groups, C / groups kh kw, Ho Wo)."""
        x, shape = self._dense(x), (groups, weight[0].size, prod(y.shape[2:]))
        sliding = _sliding(x, y, weight.shape[2:], stride, padding, dilation)
        for some in _samples(x, weight, y):
            part = x[some]
            columns = self.xp.empty((len(part), *shape), x.dtype)
            planes = part.shape[0] * part.shape[1]
            self._each(part, "patches", columns.size, whole(planes), *sliding, part, columns)
            yield some, columns

    # ---- pooling ------------------------------------------------------------------------------------------------
    def max_pool2d(
        self, x: Array, kernel: Pair, stride: Pair, padding: Padding, out: Array, index: Array, dilation: Pair = (1, 1)
    ) -> None:
        sliding = _sliding(x, out, kernel, stride, padding, dilation)
        name = f"max_pool_{index.dtype.itemsize}"
        self._each(out, name, out.size, whole(prod(out.shape[:2])), *sliding, self._dense(x), out, index)

    def max_pool2d_backward(
        self, dy: Array, index: Array, kernel: Pair, stride: Pair, padding: Padding, out: Array,
        accumulate: bool = False, dilation: Pair = (1, 1),
    ) -> None:
        sliding = _sliding(out, dy, kernel, stride, padding, dilation)
        name = f"max_pool_backward_{index.dtype.itemsize}"
        self._each(
            out, name, out.size, whole(prod(out.shape[:2])), *sliding, self._dense(dy), self._dense(index), out, flag(accumulate)
        )

    def sum_pool2d(
        self, x: Array, kernel: Pair, stride: Pair, padding: Padding, scale: Array, out: Array
    ) -> None:
        sliding = _sliding(x, out, kernel, stride, padding, (1, 1))
        self._each(out, "sum_pool", out.size, whole(prod(out.shape[:2])), *sliding, self._dense(x), scale, out)

    def sum_pool2d_backward(
        self, dy: Array, kernel: Pair, stride: Pair, padding: Padding, scale: Array, out: Array,
        accumulate: bool = False,
    ) -> None:
        sliding = _sliding(out, dy, kernel, stride, padding, (1, 1))
        planes = whole(prod(out.shape[:2]))
        self._each(out, "sum_pool_backward", out.size, planes, *sliding, self._dense(dy), scale, out, flag(accumulate))


def _sliding(
    x: Array, y: Array, kernel: tuple[int, ...], stride: Pair, padding: Padding, dilation: Pair
) -> tuple[Any, ...]:
    """The SLIDING arguments for images x and what comes out of them, y."""
    (top, _), (left, _) = padding
    return tuple(np.int64(n) for n in (*x.shape[2:], *y.shape[2:], *kernel, *stride, top, left, *dilation))


def _samples(x: Array, weight: Array, y: Array) -> Iterator[slice]:
    """The samples in groups whose patches fit in PATCH_BYTES."""
    each = x.shape[1] * prod(weight.shape[2:]) * prod(y.shape[2:]) * x.dtype.itemsize
    count = max(1, PATCH_BYTES // max(each, 1))
    for first in range(0, len(x), count):
        yield slice(first, min(first + count, len(x)))
