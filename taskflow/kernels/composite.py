"""CompositeKernels: kernels that exist once, in numpy and the set's own matmul, until a set brings a faster one of its own."""

from __future__ import annotations

from collections.abc import Iterator
from math import erf, pi, prod, sqrt
from typing import Any

import numpy as np

from taskflow.kernels.channel_numbers import ChannelNumbers
from taskflow.kernels.kernel_set import Array, Key, Padding, Pair


class CompositeKernels(ChannelNumbers):
    """Convolution as im2col and a matrix product, sample by sample; pooling tap by tap; normalisation; activations; dropout."""

    __slots__ = ()

    # ---- convolution --------------------------------------------------------------------------------------------
    def conv2d(
        self, x: Array, weight: Array, bias: Array | None, stride: Pair, padding: Padding, dilation: Pair, groups: int,
        out: Array,
    ) -> None:
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
        rows = _per_group(weight, groups).swapaxes(1, 2)  # (groups, C/groups kh kw, K/groups)
        (top, bottom), (left, right) = padding
        _, channels, height, width = out.shape
        source = dy.reshape(len(dy), groups, weight.shape[0] // groups, prod(dy.shape[2:]))
        columns = np.empty((groups, rows.shape[1], source.shape[3]), dy.dtype)
        taps = columns.reshape(channels, *weight.shape[2:], *dy.shape[2:])
        padded = np.empty((channels, height + top + bottom, width + left + right), dy.dtype)
        for n in range(len(dy)):
            self.matmul(rows, source[n], out=columns)
            padded[...] = 0
            for i, j, seen in _taps(weight.shape[2:], stride, dilation, dy.shape[2:]):
                padded[seen] += taps[:, i, j]
            _put(padded[:, top : top + height, left : left + width], out[n], accumulate)

    def conv2d_backward_weight(
        self, x: Array, dy: Array, stride: Pair, padding: Padding, dilation: Pair, groups: int, out: Array,
        accumulate: bool = False,
    ) -> None:
        target = _per_group(out, groups)
        source = dy.reshape(len(dy), groups, target.shape[1], prod(dy.shape[2:]))
        if not accumulate:
            out[...] = 0
        for n, columns in _columns(x, out.shape[2:], stride, padding, dilation, groups, dy.shape[2:]):
            self.matmul(source[n], columns.swapaxes(1, 2), out=target, accumulate=True)

    # ---- pooling ------------------------------------------------------------------------------------------------
    def max_pool2d(
        self, x: Array, kernel: Pair, stride: Pair, padding: Padding, out: Array, index: Array, dilation: Pair = (1, 1)
    ) -> None:
        padded = _padded(x, padding, -np.inf)
        out[...] = -np.inf
        index[...] = 0
        for i, j, seen in _taps(kernel, stride, dilation, out.shape[2:]):
            value = padded[seen]
            better = (value > out) | np.isnan(value)  # the first of equals; NaN is passed on
            np.copyto(out, value, where=better)
            np.copyto(index, index.dtype.type(i * kernel[1] + j), where=better)

    def max_pool2d_backward(
        self, dy: Array, index: Array, kernel: Pair, stride: Pair, padding: Padding, out: Array,
        accumulate: bool = False, dilation: Pair = (1, 1),
    ) -> None:
        (top, bottom), (left, right) = padding
        n, c, height, width = out.shape
        padded = np.zeros((n, c, height + top + bottom, width + left + right), dy.dtype)
        for i, j, seen in _taps(kernel, stride, dilation, dy.shape[2:]):
            padded[seen] += dy * (index == i * kernel[1] + j)
        _put(padded[..., top : top + height, left : left + width], out, accumulate)

    def sum_pool2d(
        self, x: Array, kernel: Pair, stride: Pair, padding: Padding, scale: Array, out: Array
    ) -> None:
        padded = _padded(x, padding, 0)
        out[...] = 0
        for _, _, seen in _taps(kernel, stride, (1, 1), out.shape[2:]):
            out += padded[seen]
        out *= scale

    def sum_pool2d_backward(
        self, dy: Array, kernel: Pair, stride: Pair, padding: Padding, scale: Array, out: Array,
        accumulate: bool = False,
    ) -> None:
        (top, bottom), (left, right) = padding
        n, c, height, width = out.shape
        padded = np.zeros((n, c, height + top + bottom, width + left + right), dy.dtype)
        share = dy * scale
        for _, _, seen in _taps(kernel, stride, (1, 1), dy.shape[2:]):
            padded[seen] += share
        _put(padded[..., top : top + height, left : left + width], out, accumulate)

    # ---- channels of (N, C, P) ----------------------------------------------------------------------------------
    def channel_sums(self, x: Array, out: Array, accumulate: bool = False) -> None:
        _put(x.sum(axis=(0, 2)), out, accumulate)

    def channel_moments(self, x: Array, out: Array) -> None:
        out[...] = 0
        for sample in x:
            exact = sample.astype(np.float64)
            out[0] += exact.sum(axis=1)
            exact *= exact  # summed in pairs, which keeps more digits than einsum
            out[1] += exact.sum(axis=1)

    def channel_products(self, x: Array, dy: Array, out: Array) -> None:
        out[...] = 0
        for sample, gradient in zip(x, dy):
            out[0] += gradient.sum(axis=1, dtype=np.float64)
            out[1] += np.einsum("cp,cp->c", sample.astype(np.float64), gradient)

    def channel_affine(self, x: Array, scale: Array, offset: Array, out: Array, accumulate: bool = False) -> None:
        value = x * scale[:, None]
        value += offset[:, None]
        _put(value, out, accumulate)

    # ---- rows ---------------------------------------------------------------------------------------------------
    def layer_norm(
        self, x: Array, weight: Array, bias: Array, eps: float, out: Array, statistics: Array
    ) -> None:
        mean = x.mean(axis=1)
        np.subtract(x, mean[:, None], out=out)
        statistics[:, 0] = mean
        statistics[:, 1] = 1 / np.sqrt(np.einsum("rc,rc->r", out, out) / x.shape[1] + eps)
        out *= statistics[:, 1:]
        out *= weight
        out += bias

    def layer_norm_backward(
        self, x: Array, weight: Array, statistics: Array, dy: Array, out: Array | None, sums: Array | None,
        accumulate: bool = False,
    ) -> None:
        normal = (x - statistics[:, :1]) * statistics[:, 1:]
        if sums is not None:
            self.sum_rows(normal * dy, sums[0])
            self.sum_rows(dy, sums[1])
        if out is not None:
            share = dy * weight
            share -= share.mean(axis=1, keepdims=True) + normal * (share * normal).mean(axis=1, keepdims=True)
            share *= statistics[:, 1:]
            _put(share, out, accumulate)

    # ---- activations --------------------------------------------------------------------------------------------
    def activate(self, function: str, x: Array, out: Array) -> None:
        if function == "relu":
            np.maximum(x, 0, out=out)
        elif function == "tanh":
            np.tanh(x, out=out)
        elif function == "sigmoid":  # as (1 + tanh(x / 2)) / 2, which cannot overflow
            np.multiply(x, 0.5, out=out)
            np.tanh(out, out=out)
            out *= 0.5
            out += 0.5
        else:
            raise ValueError(f"activate: function must be relu, sigmoid or tanh, got {function!r}")

    def activate_backward(self, function: str, y: Array, dy: Array, out: Array, accumulate: bool = False) -> None:
        if function == "relu":
            _put(np.where(y > 0, dy, 0), out, accumulate)
        elif function == "tanh":
            _put(dy * (1 - y * y), out, accumulate)
        elif function == "sigmoid":
            _put(dy * y * (1 - y), out, accumulate)
        else:
            raise ValueError(f"activate_backward: function must be relu, sigmoid or tanh, got {function!r}")

    # ---- gelu ---------------------------------------------------------------------------------------------------
    def gelu(self, x: Array, approximate: bool, out: Array) -> None:
        np.multiply(x, _gelu_gate(x, approximate), out=out)

    def gelu_backward(
        self, x: Array, approximate: bool, dy: Array, out: Array, accumulate: bool = False
    ) -> None:
        gate = _gelu_gate(x, approximate)
        if approximate:
            slope = 2 * gate * (1 - gate) * _TANH_SCALE * (1 + 3 * 0.044715 * x * x)
        else:
            slope = np.exp(-0.5 * x * x) / sqrt(2 * pi)
        _put(dy * (gate + x * slope), out, accumulate)


    # ---- dropout ------------------------------------------------------------------------------------------------
    def dropout(
        self, key: Key, stream: int, shape: tuple[int, ...], lo: tuple[int, ...], p: float, x: Array, out: Array,
        mask: Array,
    ) -> None:
        self.uniform(key, stream, shape, lo, out)  # the output's memory holds the numbers until the mask is made
        np.greater_equal(out, p, out=mask)
        np.multiply(x, mask, out=out)
        out *= out.dtype.type(1 / (1 - p))

    def dropout_backward(self, mask: Array, p: float, dy: Array, out: Array, accumulate: bool = False) -> None:
        _put(dy * mask * dy.dtype.type(1 / (1 - p)), out, accumulate)


_TANH_SCALE = sqrt(2 / pi)
_erf = np.frompyfunc(erf, 1, 1)


def _gelu_gate(x: Array, approximate: bool) -> Array:
    """The probability that a standard normal number is below x, or its approximation by a tanh."""
    if approximate:
        return 0.5 + 0.5 * np.tanh(_TANH_SCALE * (x + 0.044715 * x * x * x))
    below = np.asarray(_erf(x / x.dtype.type(sqrt(2))), x.dtype)
    return 0.5 + 0.5 * below


def _put(value: Array, out: Array, accumulate: bool) -> None:
    if accumulate:
        out += value
    else:
        out[...] = value


def _per_group(weight: Array, groups: int) -> Array:
    """(K, C/groups, kh, kw) as (groups, K/groups, C/groups kh kw), the same memory."""
    return weight.reshape(groups, weight.shape[0] // groups, -1)


def _padded(x: Array, padding: Padding, value: float) -> Array:
    """(N, C, H, W) with a border of ``value``."""
    if padding == ((0, 0), (0, 0)):
        return x
    return np.pad(x, ((0, 0), (0, 0), *padding), constant_values=value)


def _taps(
    kernel: tuple[int, ...], stride: Pair, dilation: Pair, out: tuple[int, ...]
) -> Iterator[tuple[int, int, tuple[Any, ...]]]:
    """For each element (i, j) of the kernel, what it sees of the padded image's last two dimensions."""
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            starts = (i * dilation[0], j * dilation[1])
            seen = (slice(a, a + (size - 1) * step + 1, step) for a, size, step in zip(starts, out, stride))
            yield i, j, (..., *seen)


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
        for i, j, seen in _taps(kernel, stride, dilation, out):
            patches[:, i, j] = padded[seen]
        yield n, columns
