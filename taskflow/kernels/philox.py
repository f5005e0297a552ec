"""Philox 4x32-10, the counter-based generator of Salmon, Moraes, Dror and Shaw (SC 2011), vectorised over positions."""

from __future__ import annotations

from typing import Any

import numpy as np

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)


def philox(counter: tuple[Any, Any, Any, Any], key: tuple[int, int]) -> tuple[Any, Any, Any, Any]:
    """Compute ten rounds on four counter words (uint64 arrays that hold 32-bit values). Returns four words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = _M0 * c0, _M1 * c2
        c0, c1, c2, c3 = (p1 >> _32) ^ c1 ^ np.uint64(k0), p1 & _LOW, (p0 >> _32) ^ c3 ^ np.uint64(k1), p0 & _LOW
        k0, k1 = (k0 + _W0) & 0xFFFFFFFF, (k1 + _W1) & 0xFFFFFFFF
    return c0, c1, c2, c3


def words_at(key: tuple[int, int], stream: int, positions: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the 32-bit word of each position (uint64, any shape): word ``position % 4`` at counter ``position // 4``."""
    block = positions >> np.uint64(2)
    words = philox((block & _LOW, block >> _32, np.full_like(block, stream), np.zeros_like(block)), key)
    return np.asarray(np.choose((positions & np.uint64(3)).astype(np.intp), words))
