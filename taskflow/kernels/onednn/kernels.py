"""OneDNNKernels: convolutions and the larger matrix products in float32 by oneDNN, everything else by NativeKernels.

Images stay (N, C, H, W) in memory. A 1 x 1 convolution over many positions is a matrix product, which oneDNN does on images as
they are. Other convolutions are faster in other layouts, so images are reordered before and after; that costs a few percent of
a k x k convolution. Which way is taken depends on the shape alone, so a rerun gives the same bits. Sums are split by the number
of threads: results are bitwise equal between runs with equally many threads (small kernels always use one).
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from taskflow.kernels.kernel_set import Array, Padding, Pair
from taskflow.kernels.native.kernels import NativeKernels
from taskflow.kernels.onednn.library import load

Shape = tuple[int, ...]
FORWARD, BACKWARD_DATA, BACKWARD_WEIGHT = 0, 1, 2
PREFERRED, PLAIN, CHANNELS_LAST = 0, 1, 2  # layouts of images within oneDNN: its own, as they lie, (N, H, W, C)
SMALL_PRODUCT = 1 << 18
"""Multiply-adds of a product below which NativeKernels are as fast."""
MIDDLING_ROWS = 256
"""Up to so many rows, a product with a transposed matrix is faster as oneDNN's matmul than as its sgemm (by 1.25 at 64)."""
ONE_THREAD = 1 << 22
"""Multiply-adds below which more threads than one cost more than they give."""


class OneDNNKernels(NativeKernels):
    """Kernels whose oneDNN primitives are created at the first use of a shape and then kept.

    Args: ``threads`` for a large kernel (default: OpenMP's, which is OMP_NUM_THREADS, else every core). Raises ImportError,
    with a sentence that says what to do, if oneDNN is missing.
    """

    __slots__ = ("_library", "_made", "_packed", "threads")
    name = "onednn"

    def __init__(self, threads: int | None = None) -> None:
        super().__init__()
        self._library: Any = load()
        if threads is not None and threads < 1:
            raise ValueError(f"OneDNNKernels: threads must be at least 1, got {threads}")
        self.threads: int = self._library.most_threads if threads is None else threads
        self._made: dict[Any, Any] = {}
        self._packed: dict[Any, tuple[object, Any]] = {}

    # ---- matrix products ----------------------------------------------------------------------------------------
    def matmul(self, a: Array, b: Array, out: Array, accumulate: bool = False) -> None:
        if out.ndim == 2 and a.ndim == 2 and b.ndim == 2:
            rows, work = out.shape[0], out.size * a.shape[1]
            transposed = b.strides[0] < b.strides[1]
            # With very few rows, loops that read b where it lies beat a library that packs it.
            if work >= SMALL_PRODUCT and rows > (16 if transposed else 8):
                if transposed and rows <= MIDDLING_ROWS and work >= ONE_THREAD and _whole(a, b, out):
                    self._product(rows, b.shape[0], b.shape[1], False, accumulate)(a, b, out)
                    return
                threads = 1 if work < ONE_THREAD else self.threads
                if self._library.multiply(a, b, out, accumulate, threads):
                    return
        super().matmul(a, b, out, accumulate)

    def multiplier(
        self, b: Array, rows: int, uses: int, stamp: object = None, scratch: Array | None = None
    ) -> Callable[[Array, Array], None]:
        # Only a transposed b is worth it: the library packs another one about as fast as it multiplies by it.
        inner, columns = b.shape
        transposed = min(inner, columns) > 1 and b.dtype == np.float32 and b.T.flags.c_contiguous
        if (
            not transposed or not 16 < rows <= MIDDLING_ROWS or rows * b.size < ONE_THREAD
            or (stamp is None and uses < 3)
        ):
            return super().multiplier(b, rows, uses, stamp, scratch)
        product = self._product(rows, inner, columns, True, True)
        packed = self._pack(product, b, stamp, scratch)

        def multiply(a: Array, out: Array) -> None:
            product(a, packed, out)

        return multiply

    def _product(self, rows: int, inner: int, columns: int, packed: bool, add: bool) -> Any:
        key = (rows, inner, columns, packed, add)
        if key not in self._made:
            self._made[key] = self._library.Product(*key, self.threads)
        return self._made[key]

    def _pack(self, product: Any, b: Array, stamp: object, scratch: Array | None) -> Array:
        given = scratch is not None and scratch.nbytes >= product.nbytes
        key = (b.ctypes.data if stamp is not None else 0, product, scratch.ctypes.data if given and scratch is not None else 0)
        known, block = self._packed.get(key, (None, None))
        if block is None:
            block = scratch[: product.nbytes] if given and scratch is not None else np.empty(product.nbytes, np.uint8)
        if stamp is None or known != stamp:
            product.pack(b, block)
            self._packed[key] = (stamp, block)
        return block

    # ---- convolution --------------------------------------------------------------------------------------------
    def conv2d(
        self, x: Array, weight: Array, bias: Array | None, stride: Pair, padding: Padding, dilation: Pair, groups: int,
        out: Array,
    ) -> None:
        chain = self._convolution(FORWARD, x, weight, out, stride, padding, dilation, groups, bias is not None, False)
        if chain is None:
            super().conv2d(x, weight, bias, stride, padding, dilation, groups, out)
        else:
            chain(x, weight, out, bias)

    def conv2d_backward_data(
        self, dy: Array, weight: Array, stride: Pair, padding: Padding, dilation: Pair, groups: int, out: Array,
        accumulate: bool = False,
    ) -> None:
        chain = self._convolution(
            BACKWARD_DATA, out, weight, dy, stride, padding, dilation, groups, False, accumulate
        )
        if chain is None:
            super().conv2d_backward_data(dy, weight, stride, padding, dilation, groups, out, accumulate)
        else:
            chain(dy, weight, out)

    def conv2d_backward_weight(
        self, x: Array, dy: Array, stride: Pair, padding: Padding, dilation: Pair, groups: int, out: Array,
        accumulate: bool = False,
    ) -> None:
        chain = self._convolution(BACKWARD_WEIGHT, x, out, dy, stride, padding, dilation, groups, False, accumulate)
        if chain is None:
            super().conv2d_backward_weight(x, dy, stride, padding, dilation, groups, out, accumulate)
        else:
            chain(x, dy, out)

    def _convolution(
        self, direction: int, x: Array, weight: Array, y: Array, stride: Pair, padding: Padding, dilation: Pair,
        groups: int, bias: bool, add: bool,
    ) -> Any:
        """The chain for these arrays, or None if oneDNN has no fast one."""
        if y.dtype != np.float32 or not all(
            array.dtype == np.float32 and array.size and array.flags.c_contiguous for array in (x, weight, y)
        ):
            return None
        key = (direction, x.shape, weight.shape, y.shape, stride, padding, dilation, groups, bias, add)
        if key not in self._made:
            self._made[key] = self._make(*key)
        return self._made[key]

    def _make(
        self, direction: int, x: Shape, weight: Shape, y: Shape, stride: Pair, padding: Padding, dilation: Pair, groups: int,
        bias: bool, add: bool,
    ) -> Any:
        threads = 1 if prod(y) * prod(weight[1:]) < ONE_THREAD else self.threads
        best = _layout(direction, x, weight, y, stride, groups)
        for layout in (best, *(other for other in (PREFERRED, PLAIN) if other != best)):
            try:
                chain = self._library.Convolution(
                    direction, x, weight, y, stride, padding, dilation, groups, bias, add, layout, threads
                )
            except self._library.OneDNNError:
                continue  # it does not know this combination
            if not chain.info.startswith("ref"):
                return chain
        return None


def _layout(direction: int, x: Shape, weight: Shape, y: Shape, stride: Pair, groups: int) -> int:
    """The layout of images that is fastest, what it costs to change them counted in: measured for every layer of AlexNet,
    ResNet-101 and Inception-v3, on one thread with AVX-512."""
    positions = y[2] * y[3]
    if weight[2:] == (1, 1) and groups == 1:
        # A matrix product; with few positions to one row it is a poor one.
        if direction == BACKWARD_WEIGHT:
            return PLAIN
        if stride != (1, 1):  # other layouts are slow at putting the gaps between strides into a gradient
            return PREFERRED if direction == FORWARD else PLAIN
        if direction == FORWARD:
            return PLAIN if positions >= 64 else PREFERRED
        return PLAIN if positions >= 256 or (positions >= 64 and x[1] <= y[1]) else PREFERRED
    if direction == BACKWARD_WEIGHT:
        if weight[2] == 1 and stride == (1, 1) and groups == 1 and x[1] >= 16:
            return CHANNELS_LAST  # kernels of one row, such as 1 x 7
        return PLAIN if positions <= 64 and groups == 1 else PREFERRED
    if direction == BACKWARD_DATA and x[1] < 16 and stride != (1, 1) and groups == 1:
        return PLAIN  # of an image
    if groups > 1 or x[1] < 16 or weight[3] == 1:
        return PREFERRED
    return CHANNELS_LAST


def _whole(a: Array, b: Array, out: Array) -> bool:
    """True if a, the transpose of b, and out are contiguous float32 matrices of matching shapes."""
    fit = a.shape == (out.shape[0], b.shape[0]) and out.shape[1] == b.shape[1]
    return fit and all(x.dtype == np.float32 and x.flags.c_contiguous for x in (a, b.T, out))
