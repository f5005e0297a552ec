"""Matrix products.

The compiled twin is native/_products.pyx; tests/kernels/test_kernels_matmul.py holds them equal.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from taskflow.kernels.definitions.arrays import Array


class ProductKernels:
    """Contractions."""

    __slots__ = ()

    def matmul(self, a: Array, b: Array, out: Array, accumulate: bool = False) -> None:
        """a (..., M, K) @ b (..., K, N) -> out (..., M, N). ``a`` and ``b`` may be transposed views."""
        if accumulate:
            out += a @ b
        else:
            np.matmul(a, b, out=out)

    def multiplier(
        self, b: Array, rows: int, uses: int, stamp: object = None, room: Array | None = None
    ) -> Callable[[Array, Array], None]:
        """A function (a, out) that adds a (rows, K) @ b (K, N) to out (rows, N), both contiguous, for products that are
        done ``uses`` times: a set may first lay b out as suits it. ``stamp``: b's contents are the same as at the last
        call with b's memory and an equal stamp, so that what was laid out then may be used again. With None the function
        serves until the next one is asked for. ``room``: bytes to lay b out in, if they suffice, the same ones with an equal
        stamp."""

        def multiply(a: Array, out: Array) -> None:
            self.matmul(a, b, out, accumulate=True)

        return multiply
