"""Random numbers by position (Philox 4x32-10, Salmon et al., SC 2011), and dropout.

The compiled twin is native/_random.pyx; tests/kernels/test_kernels_random.py holds them equal.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from taskflow.kernels.definitions.arrays import Array, Key, put


class RandomKernels:
    """Random numbers that depend only on the position of an element."""

    __slots__ = ()

    def uniform(self, key: Key, stream: int, shape: tuple[int, ...], lo: tuple[int, ...], out: Array) -> None:
        """Uniform numbers in [0, 1) by position: out is the box at ``lo`` of an array of ``shape``.

        Each depends only on the key, the stream (below 2**32) and the element's row-major position in the whole array (below
        2**64). It is word ``position % 4`` of Philox at counter ``position // 4`` (words: low, high, stream, 0), times 2**-32;
        in float32, the upper 24 bits of that word, times 2**-24.
        """
        words = words_at(key, stream, _positions(shape, lo, out.shape))
        if out.dtype == np.float32:
            out[...] = (words >> np.uint64(8)).astype(np.float32) * np.float32(2.0**-24)
        else:
            out[...] = words * 2.0**-32

    def normal(self, key: Key, stream: int, shape: tuple[int, ...], lo: tuple[int, ...], out: Array) -> None:
        """Standard normal numbers, by position like `uniform` (Box-Muller: positions 2k, 2k+1 share two words)."""
        positions = _positions(shape, lo, out.shape)
        first = words_at(key, stream, positions & ~np.uint64(1)) * 2.0**-32
        second = words_at(key, stream, positions | np.uint64(1)) * 2.0**-32
        radius = np.sqrt(-2.0 * np.log1p(-first))
        angle = 2.0 * np.pi * second
        out[...] = radius * np.where(positions & np.uint64(1), np.sin(angle), np.cos(angle))

    def dropout(
        self, key: Key, stream: int, shape: tuple[int, ...], lo: tuple[int, ...], p: float, x: Array, out: Array,
        mask: Array,
    ) -> None:
        """Dropout of x, the box at ``lo`` of an array of ``shape``. Where that element of `uniform` is at least p, out = x / (1
        - p) and mask (bool) is true; elsewhere both are 0."""
        self.uniform(key, stream, shape, lo, out)  # the output's memory holds the numbers until the mask is made
        np.greater_equal(out, p, out=mask)
        np.multiply(x, mask, out=out)
        out *= out.dtype.type(1 / (1 - p))

    def dropout_backward(self, mask: Array, p: float, dy: Array, out: Array, accumulate: bool = False) -> None:
        """Gradient of x: dy / (1 - p) where the mask is true, else 0."""
        put(dy * mask * dy.dtype.type(1 / (1 - p)), out, accumulate)


def _positions(shape: tuple[int, ...], lo: tuple[int, ...], box: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Row-major positions in an array of ``shape`` of the elements of the box at ``lo``."""
    positions: np.ndarray[Any, Any] = np.zeros((), np.uint64)
    for size, low, extent in zip(shape, lo, box):
        positions = positions[..., None] * np.uint64(size) + np.arange(low, low + extent, dtype=np.uint64)
    return positions


# Philox 4x32-10, the counter-based generator of Salmon, Moraes, Dror and Shaw (SC 2011), vectorised over positions.
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
