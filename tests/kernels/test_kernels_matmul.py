"""Matrix products: every layout, with and without accumulation, few rows and many, batches, what BLAS cannot take."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from taskflow.kernels import NumpyKernels
from taskflow.kernels.blas import find_blas

native = pytest.importorskip("taskflow.kernels.native.kernels", reason="the compiled kernels are not built")
_products = pytest.importorskip("taskflow.kernels.native._products")

NUMPY, NATIVE = NumpyKernels(), native.NativeKernels()
SIZES = [
    (0, 3, 2), (3, 0, 2), (3, 2, 0), (1, 1, 1), (1, 7, 5), (2, 300, 9), (3, 5, 1), (4, 16, 16), (5, 260, 31),
    (8, 4, 33), (9, 257, 6), (16, 300, 20), (17, 19, 23), (64, 33, 48), (1, 1, 40),
]


def matrix(rng: np.random.Generator, rows: int, columns: int, layout: str, dtype: Any) -> Any:
    if layout == "transposed":
        return rng.normal(size=(columns, rows)).astype(dtype).T
    if layout == "strided":  # rows of a wider array
        return rng.normal(size=(rows, columns + 3)).astype(dtype)[:, 1 : columns + 1]
    if layout == "loose":  # nothing contiguous
        return rng.normal(size=(2 * rows, 2 * columns)).astype(dtype)[::2, ::2]
    return rng.normal(size=(rows, columns)).astype(dtype)


def same(a: Any, b: Any, out: Any, accumulate: bool) -> None:
    want = out.copy()
    NUMPY.matmul(a, b, want, accumulate)
    NATIVE.matmul(a, b, out, accumulate)
    eps = np.finfo(out.dtype).eps
    np.testing.assert_allclose(out, want, rtol=0, atol=8 * eps * (a.shape[-1] + 4))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("accumulate", [False, True])
def test_every_layout(size: tuple[int, int, int], dtype: Any, accumulate: bool) -> None:
    rng, (m, k, n) = np.random.default_rng(sum(size)), size
    for la, lb, lo in product(("plain", "transposed", "strided", "loose"), repeat=3):
        if lo == "transposed":
            continue
        out = matrix(rng, m, n, lo, dtype)
        if not accumulate:
            out[...] = np.nan  # must not shine through
        same(matrix(rng, m, k, la, dtype), matrix(rng, k, n, lb, dtype), out, accumulate)


def test_the_rest_of_a_strided_output_is_left_alone() -> None:
    rng = np.random.default_rng(0)
    for m in (3, 40):
        whole = np.full((m, 30), 7.0)
        NATIVE.matmul(rng.normal(size=(m, 8)), rng.normal(size=(8, 10)), whole[:, 10:20])
        assert (whole[:, :10] == 7).all() and (whole[:, 20:] == 7).all() and (whole[:, 10:20] != 7).all()


@pytest.mark.parametrize("m", [3, 40])
@pytest.mark.parametrize("accumulate", [False, True])
def test_batches(m: int, accumulate: bool) -> None:
    rng = np.random.default_rng(m)
    # Attention: (N, T, heads, D) seen as (N, heads, T, D), times its transpose.
    q, k = (rng.normal(size=(2, m, 5, 8)).swapaxes(1, 2) for _ in range(2))
    same(q, k.swapaxes(2, 3), rng.normal(size=(2, 5, m, m)), accumulate)
    same(rng.normal(size=(0, m, 4)), rng.normal(size=(0, 4, 6)), np.zeros((0, m, 6)), accumulate)
    # Broadcast: numpy's own product takes it.
    same(q, rng.normal(size=(8, 6)), rng.normal(size=(2, 5, m, 6)), accumulate)
    same(rng.normal(size=(m, 8)).astype(np.float32), rng.normal(size=(8, 6)), rng.normal(size=(m, 6)), accumulate)


@pytest.mark.parametrize("accumulate", [False, True])
def test_without_a_blas_numpy_multiplies(accumulate: bool) -> None:
    rng = np.random.default_rng(0)
    try:
        _products.use_blas(0, 0, False)
        for m, n in ((33, 21), (50, 50), (2, 5)):
            same(rng.normal(size=(m, 40)), rng.normal(size=(n, 40)).T, rng.normal(size=(m, n)), accumulate)
    finally:
        if (blas := find_blas()) is not None:
            _products.use_blas(blas.sgemm, blas.dgemm, blas.wide)


def test_nan_and_infinity_spread_as_in_numpy() -> None:
    for m in (2, 40):
        a, b = np.ones((m, 300), np.float32), np.ones((300, 20), np.float32)
        a[1, 2], b[5, 7] = np.inf, np.nan
        for factor in (b, np.ascontiguousarray(b.T).T):
            one, other = np.empty((m, 20), np.float32), np.empty((m, 20), np.float32)
            NUMPY.matmul(a, factor, one)
            NATIVE.matmul(a, factor, other)
            np.testing.assert_array_equal(other, one)


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError):
        NATIVE.matmul(np.zeros((2, 3)), np.zeros((4, 5)), np.zeros((2, 5)))
    with pytest.raises(ValueError):
        NATIVE.matmul(np.zeros((2, 3)), np.zeros((3, 5)), np.zeros((2, 4)), accumulate=True)
