"""ChannelNumbers: the arithmetic on a channel's few numbers between the passes of batch normalisation over whole images.

One call where numpy takes a dozen: on a GPU each of those would be a kernel of its own, thousands in a step of a deep network.
"""

from __future__ import annotations

import numpy as np

from taskflow.kernels.kernel_set import Array, KernelSet


class ChannelNumbers(KernelSet):
    """In numpy, and so for every set whose arrays are numpy's."""

    __slots__ = ()

    def channel_scales(self, sums: Array, count: int, eps: float, weight: Array, bias: Array, out: Array) -> None:
        mean, _, _, scale = _spread(sums, count, eps, weight)
        out[0] = scale
        out[1] = bias - mean * scale

    def channel_changes(self, sums: Array, count: int, eps: float, weight: Array, products: Array, out: Array) -> None:
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
        means, squares = moments[:, 0] / count, moments[:, 1] / count
        new_mean[...] = mean + momentum * (means.mean(axis=0) - mean)
        unbiased = (squares - means * means).mean(axis=0) * correction
        new_variance[...] = variance + momentum * (unbiased - variance)


def _spread(sums: Array, count: int, eps: float, weight: Array) -> tuple[Array, Array, Array, Array]:
    """Of every channel: the mean, whether it varies, 1 / standard deviation, and weight / standard deviation."""
    mean, squares = sums / count
    variance = squares - mean * mean
    inverse = 1 / np.sqrt(np.maximum(variance, 0) + eps)
    return mean, variance > 0, inverse, weight.astype(np.float64) * inverse
