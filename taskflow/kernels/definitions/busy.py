"""Task Bench's compute-bound kernel.

The compiled twin is native/_busy.pyx; tests/kernels/test_kernels_build.py holds them equal.
"""

from __future__ import annotations

import numpy as np


def busy(iterations: int) -> float:
    """Run Task Bench's compute-bound kernel: 64 multiply-adds, 128 flops, an iteration. The start values keep every number in
    (-1, 0) for ever. Returns the numbers' sum."""
    a = -0.5 - np.arange(64) / 256
    for _ in range(iterations):
        a = a * a + a
    return float(a.sum())
