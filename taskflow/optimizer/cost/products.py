"""Seconds of a matrix product by its shape and type, from a device's few measured figures (`taskflow.machine.ProductRates`).

Results are computed in tiles, and tiles in waves over the multiprocessors. A multiprocessor needs some time for each term of a
tile, however small the tile is. Of a long contraction with few tiles each multiprocessor takes a part. Libraries choose the best of
several tiles and parts; so does the model. Some choose tiles by rows alone.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil, log2

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

BETWEEN = 6
"""Products between two uses of a factor: it comes from the cache if the factors of so many products fit there beside one result.
The tables to which devices' figures are fitted were measured so: aiconfigurator's collectors run six products in turn, each with
factors of its own. In a step more comes between two uses."""

PARTLY = 0.2
"""From how much less to how much more than the cache holds a part of the factors comes from it."""

MOST_TILE = 128 * 128
"""Results of a tile that a library takes for many rows, if it chooses tiles by rows alone."""

_BOTH = sorted({pair for a, b in TILES for pair in ((a, b), (b, a))})
_HIGH, _WIDE = (np.array([pair[i] for pair in _BOTH], float)[:, None] for i in (0, 1))
_PARTS = np.array(PARTS, float)[None, :]


@lru_cache(maxsize=1 << 16)
def product_seconds(device: Device, rates: ProductRates, peak: float, size: int, m: int, n: int, k: float, batches: int) -> float:
    """Return the seconds of ``batches`` products of (m, k) x (k, n) whose factors have ``size`` bytes a number, the results two or
    more. ``peak``: operations a second of the data sheet."""
    cores, memory = device.multiprocessors, device.memory_bytes_per_second
    left, right, results = (batches * n for n in (size * m * k, size * k * n, max(2, size) * m * n))
    traffic = (left + right + results) * _slowness(device, rates, BETWEEN * (left + right) + results)
    tiles = np.ceil(m / _HIGH) * np.ceil(n / _WIDE) * batches
    terms = np.ceil(k / _PARTS)
    exact = tiles * _PARTS / cores
    waves = rates.quantised * np.ceil(exact) + (1 - rates.quantised) * np.maximum(1.0, exact)
    term = 2 * _HIGH * _WIDE * (1 + rates.edge / _HIGH + rates.edge / _WIDE) * cores / (rates.reached * peak)
    arithmetic = waves * np.maximum(term, rates.term_seconds) * (terms + rates.fill_terms)
    arithmetic *= 1 + rates.sustained * arithmetic / (arithmetic + LONG_SECONDS)
    moved = traffic * np.maximum(1.0, rates.few / exact)
    took = np.maximum(arithmetic, moved) + rates.beside * np.minimum(arithmetic, moved)
    took = took + np.where(_PARTS > 1, rates.split_seconds + _PARTS * batches * m * n * SUM_BYTES / (rates.cache * memory), 0.0)
    took = np.where((_PARTS > 1) & (terms < LEAST_PART), np.inf, took)
    if rates.by_rows:
        least = min(MOST_TILE, rates.by_rows * 2.0 ** ceil(log2(m)))
        took = np.where(least <= _HIGH * _WIDE, took, np.inf)
    casts = rates.cast * batches * m * k * _slowness(device, rates, BETWEEN * 2 * batches * m * k) if rates.cast else 0.0
    return float(rates.start_seconds + casts + took.min())


def _slowness(device: Device, rates: ProductRates, nbytes: float) -> float:
    """Seconds for a byte of arrays, where ``nbytes`` are touched between two uses of them: the cache's, memory's, or between."""
    held = min(1.0, max(0.0, (1 + PARTLY - nbytes / max(1, device.cache_bytes)) / (2 * PARTLY)))
    return (held / rates.cache + (1 - held) / rates.memory) / device.memory_bytes_per_second


def most_reached(rates: ProductRates) -> float:
    """Return a part of the peak that no product exceeds: that of the largest tiles, each of which has endless terms."""
    return rates.reached / (1 + 2 * rates.edge / 256)
