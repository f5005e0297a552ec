"""Copies and sums of parts of arrays.

The compiled twin is native/_parts.pyx; tests/kernels/test_kernels_parts.py holds them equal.
"""

from __future__ import annotations

import numpy as np

from taskflow.kernels.definitions.arrays import Array


class PartKernels:
    """Copies and sums of parts of arrays: any strides, any dtype."""

    __slots__ = ()

    def copy(self, x: Array, out: Array) -> None:
        """Copy: out = x. They must not overlap."""
        np.copyto(out, x)

    def add(self, x: Array, out: Array) -> None:
        """Add: out += x. They must not overlap."""
        np.add(out, x, out=out)
