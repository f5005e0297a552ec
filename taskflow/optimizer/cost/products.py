"""Seconds of a matrix product by its shape and type, from a device's few measured figures (`taskflow.machine.ProductRates`).

Results are computed in tiles, and tiles in waves over the multiprocessors. Of a long contraction with few tiles each multiprocessor
takes a part. Libraries choose the best of several tiles and parts; so does the model.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from taskflow.machine import Device, ProductRates

TILES = (
    (256, 256), (256, 128), (128, 128), (256, 64), (128, 64), (64, 64), (128, 32), (64, 32), (32, 32), (128, 16), (64, 16),
    (32, 16),
)  # fmt: skip
"""Rows and columns of results that a multiprocessor works on at once, and the other way round."""

PARTS = (1, 2, 4, 8, 16, 32)
"""Into how many parts a contraction may be cut."""

LEAST_PART = 128
"""Terms of a part, at least."""

SUM_BYTES = 8
"""Written and read for each result of a part: float32."""

LONG_SECONDS = 1e-3
"""Kernels of this length reach half of the way to the rate that power and heat allow in the long run."""

_BOTH = sorted({pair for a, b in TILES for pair in ((a, b), (b, a))})
_HIGH, _WIDE = (np.array([pair[i] for pair in _BOTH], float)[:, None] for i in (0, 1))
_PARTS = np.array(PARTS, float)[None, :]


@lru_cache(maxsize=1 << 16)
def product_seconds(device: Device, rates: ProductRates, peak: float, size: int, m: int, n: int, k: float, batches: int) -> float:
    """Return the seconds of ``batches`` products of (m, k) x (k, n) whose factors have ``size`` bytes a number, the results two or
    more. ``peak``: operations a second of the data sheet."""
    cores, memory = device.multiprocessors, device.memory_bytes_per_second
    nbytes = batches * (size * (m * k + k * n) + max(2, size) * m * n)
    cache = max(1, device.cache_bytes)
    fits = min(1.0, max(0.0, (2 * cache - nbytes) / cache))
    traffic = nbytes * (fits / rates.cache + (1 - fits) / rates.memory) / memory
    tiles = np.ceil(m / _HIGH) * np.ceil(n / _WIDE) * batches
    terms = np.ceil(k / _PARTS)
    exact = tiles * _PARTS / cores
    waves = rates.quantised * np.ceil(exact) + (1 - rates.quantised) * np.maximum(1.0, exact)
    each = 2 * _HIGH * _WIDE * (terms + rates.fill_terms) * cores / (rates.reached * peak)
    arithmetic = waves * each * (1 + rates.edge / _HIGH + rates.edge / _WIDE)
    arithmetic *= 1 + rates.sustained * arithmetic / (arithmetic + LONG_SECONDS)
    moved = traffic * np.maximum(1.0, rates.few / exact)
    took = np.maximum(arithmetic, moved) + rates.beside * np.minimum(arithmetic, moved)
    took = took + np.where(_PARTS > 1, rates.split_seconds + _PARTS * batches * m * n * SUM_BYTES / (rates.cache * memory), 0.0)
    took = np.where((_PARTS > 1) & (terms < LEAST_PART), np.inf, took)
    casts = rates.cast * batches * m * k / memory
    return float(rates.start_seconds + casts + took.min())


def most_reached(rates: ProductRates) -> float:
    """Return a part of the peak that no product exceeds: that of the largest tiles, each of which has endless terms."""
    return rates.reached / (1 + 2 * rates.edge / 256)
