"""Norms: the arithmetic on a channel's few numbers between the passes of batch normalisation, on the GPU (norms.cu)."""

from __future__ import annotations

import numpy as np

from taskflow.kernels.gpu.launching import whole
from taskflow.kernels.gpu.rows import RowsOnGPU
from taskflow.kernels.kernel_set import Array


class NormsOnGPU(RowsOnGPU):
    """Kernels with one thread for each channel."""

    __slots__ = ()

    def channel_scales(self, sums: Array, count: int, eps: float, weight: Array, bias: Array, out: Array) -> None:
        given = self._dense(sums), np.float64(count), np.float64(eps), self._dense(weight), self._dense(bias)
        self._each(out, "channel_scales", len(weight), whole(len(weight)), *given, out)

    def channel_changes(self, sums: Array, count: int, eps: float, weight: Array, products: Array, out: Array) -> None:
        given = self._dense(sums), np.float64(count), np.float64(eps), self._dense(weight), self._dense(products)
        self._each(weight, "channel_changes", len(weight), whole(len(weight)), *given, out)

    def channel_running(
        self, moments: Array, count: int, momentum: float, correction: float, mean: Array, variance: Array, new_mean: Array,
        new_variance: Array,
    ) -> None:
        groups, _, channels = moments.shape
        numbers = np.float64(count), np.float64(momentum), np.float64(correction)
        arrays = self._dense(mean), self._dense(variance), new_mean, new_variance
        self._each(
            mean, "channel_running", channels, whole(groups), whole(channels), self._dense(moments), *numbers, *arrays
        )
