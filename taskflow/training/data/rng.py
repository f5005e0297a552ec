"""Random numbers for data: the order of samples, and how each is augmented.

They depend only on the seed and the number of the sample, so neither on ranks nor on the number of processes. They are made
from the raw words of numpy's Philox (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011), which are the same in
every version of numpy."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float64]]
Numbers = np.ndarray[Any, np.dtype[np.int64]]

_ORDER, _ALTERATION = 1, 2  # what a stream of numbers is for
_WORD = (1 << 64) - 1


def uniforms(seed: int, number: int, count: int) -> Floats:
    """Return ``count`` numbers in [0, 1) for augmenting sample ``number``, counted over all epochs."""
    words = np.random.Philox(counter=[0, 0, _ALTERATION, 0], key=[seed & _WORD, number]).random_raw(count)
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


@lru_cache(maxsize=4)
def order(seed: int, epoch: int, count: int) -> Numbers:
    """Return a permutation of ``count`` samples for one epoch; read-only."""
    words = np.random.Philox(counter=[0, 0, _ORDER, 0], key=[seed & _WORD, epoch]).random_raw(count)
    result = np.argsort(words, kind="stable").astype(np.int64)
    result.flags.writeable = False
    return result
