"""Normalisation of channels: passes over whole images (N, C, P), and the arithmetic on a channel's few numbers between them.

That arithmetic is one call each, because on a GPU each of the dozen numpy calls would be a kernel launch.

The compiled twin is native/_channels.pyx; tests/kernels/test_kernels_images.py holds them equal.
"""

from __future__ import annotations

import numpy as np

from taskflow.kernels.definitions.arrays import Array, put


class ChannelKernels:
    """Normalisation of channels of images x (N, C, P)."""

    __slots__ = ()

    def channel_sums(self, x: Array, out: Array, accumulate: bool = False) -> None:
        """Sum of every channel: out (C)."""
        put(x.sum(axis=(0, 2)), out, accumulate)

    def channel_moments(self, x: Array, out: Array) -> None:
        """Sums of x and of x squared for every channel, added in double precision: out (2, C) float64."""
        out[...] = 0
        for sample in x:
            exact = sample.astype(np.float64)
            out[0] += exact.sum(axis=1)
            exact *= exact  # summed in pairs, which keeps more digits than einsum
            out[1] += exact.sum(axis=1)

    def channel_products(self, x: Array, dy: Array, out: Array) -> None:
        """Sums of dy and of dy x for every channel, added in double precision: out (2, C) float64."""
        out[...] = 0
        for sample, gradient in zip(x, dy):
            out[0] += gradient.sum(axis=1, dtype=np.float64)
            out[1] += np.einsum("cp,cp->c", sample.astype(np.float64), gradient)

    def channel_affine(self, x: Array, scale: Array, offset: Array, out: Array, accumulate: bool = False) -> None:
        """Affine map of every channel: out (N, C, P) = x scale + offset, with scale and offset (C)."""
        value = x * scale[:, None]
        value += offset[:, None]
        put(value, out, accumulate)

    def channel_scales(self, sums: Array, count: int, eps: float, weight: Array, bias: Array, out: Array) -> None:
        """Scale and offset, out (2, C), with which `channel_affine` normalises. The mean and variance come from ``sums`` (2, C)
        float64: those of x and of x squared, over ``count`` elements. weight and bias are (C)."""
        mean, _, _, scale = _spread(sums, count, eps, weight)
        out[0] = scale
        out[1] = bias - mean * scale

    def channel_changes(self, sums: Array, count: int, eps: float, weight: Array, products: Array, out: Array) -> None:
        """Scale of `channel_scales`, and the gradients of bias, of weight and of both ``sums``: out (5, C) float64.
        ``products`` (2, C) float64 is what `channel_products` returns for the gradient of the normalised images."""
        mean, varies, inverse, scale = _spread(sums, count, eps, weight)
        total, product = products[0], products[1] - mean * products[0]
        dvariance = -0.5 * scale * inverse**2 * product * varies
        out[0] = scale
        out[1] = total
        out[2] = product * inverse
        out[3] = (-scale * total - 2 * mean * dvariance) / count
        out[4] = dvariance / count

    def channel_running(
        self, moments: Array, count: int, momentum: float, correction: float, mean: Array, variance: Array, new_mean: Array,
        new_variance: Array,
    ) -> None:
        """Running mean and variance (C), moved by ``momentum`` towards the average over groups of ``count`` elements each.
        moments (G, 2, C) float64 has every group's sums of x and of x squared. ``correction`` multiplies the variance."""
        means, squares = moments[:, 0] / count, moments[:, 1] / count
        new_mean[...] = mean + momentum * (means.mean(axis=0) - mean)
        unbiased = (squares - means * means).mean(axis=0) * correction
        new_variance[...] = variance + momentum * (unbiased - variance)


def _spread(sums: Array, count: int, eps: float, weight: Array) -> tuple[Array, Array, Array, Array]:
    """For every channel: the mean, whether it varies, 1 / standard deviation, and weight / standard deviation."""
    mean, squares = sums / count
    variance = squares - mean * mean
    inverse = 1 / np.sqrt(np.maximum(variance, 0) + eps)
    return mean, variance > 0, inverse, weight.astype(np.float64) * inverse
