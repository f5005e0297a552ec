"""Channels: batch normalisation over whole images, and the arithmetic on a channel's few numbers, on the GPU (channels.cu)."""

from __future__ import annotations

import numpy as np

from taskflow.kernels.gpu.launching import MANY_BLOCKS, NULL, flag, whole
from taskflow.kernels.gpu.losses import LossesOnGPU
from taskflow.kernels.kernel_set import Array

MOMENTS, PRODUCTS = 0, 1  # what `channel_totals` sums


class ChannelsOnGPU(LossesOnGPU):
    """Kernels with some blocks, or one thread, for each channel. Sums are added in a fixed order."""

    __slots__ = ()

    def channel_sums(self, x: Array, out: Array, accumulate: bool = False) -> None:
        totals = self.xp.empty((2, x.shape[1]), np.float64)
        self._channels(MOMENTS, x, None, totals)
        value = totals[0].astype(out.dtype)
        if accumulate:
            out += value
        else:
            out[...] = value

    def channel_moments(self, x: Array, out: Array) -> None:
        self._channels(MOMENTS, x, None, out)

    def channel_products(self, x: Array, dy: Array, out: Array) -> None:
        self._channels(PRODUCTS, x, dy, out)

    def _channels(self, what: int, x: Array, dy: Array | None, out: Array) -> None:
        """out (2, C) float64."""
        samples, channels, positions = x.shape
        if not x.size:
            out.fill(0)
            return
        parts = max(1, min(samples * positions // 2048, MANY_BLOCKS // channels))
        into = out if parts == 1 and out.flags.c_contiguous else self.xp.empty((parts, 2, channels), np.float64)
        arrays = (NULL if a is None else self._dense(a) for a in (x, dy))
        sizes = (whole(n) for n in (samples, channels, positions, parts))
        self._blocks(x, "channel_totals", parts * channels, flag(what), *sizes, *arrays, into)
        if into is not out:
            out[...] = into.sum(axis=0)

    def channel_affine(self, x: Array, scale: Array, offset: Array, out: Array, accumulate: bool = False) -> None:
        _, channels, positions = out.shape
        given = (self._dense(a) for a in (x, scale, offset))
        self._each(
            out, "channel_affine", out.size, whole(out.size), whole(channels), whole(positions), *given, out, flag(accumulate)
        )

    # ---- a channel's few numbers --------------------------------------------------------------------------------
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
