"""Matrix products.

The compiled twin is native/_products.pyx; tests/kernels/test_kernels_matmul.py holds them equal.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from taskflow.kernels.definitions.arrays import Array


class ProductKernels:
    """Matrix products."""

    __slots__ = ()

    def matmul(self, a: Array, b: Array, out: Array, accumulate: bool = False) -> None:
        """Product a (..., M, K) @ b (..., K, N) -> out (..., M, N). ``a`` and ``b`` may be transposed views."""
        if accumulate:
            out += a @ b
        else:
            np.matmul(a, b, out=out)

    def multiplier(
        self, b: Array, rows: int, uses: int, stamp: object = None, scratch: Array | None = None
    ) -> Callable[[Array, Array], None]:
        """Return a function (a, out) that adds a (rows, K) @ b (K, N) to out (rows, N), both contiguous.

        It is called ``uses`` times, so a kernel set may first pack b into a faster layout. ``stamp``: a version of b's
        contents; with the same memory and an equal stamp, the packing of an earlier call is used again. With None the function
        is valid only until the next one is asked for. ``scratch``: memory to pack b into, used if it is large enough; the same
        memory with an equal stamp."""

        def multiply(a: Array, out: Array) -> None:
            self.matmul(a, b, out, accumulate=True)

        return multiply
