"""Selective scans: the compiled kernels do what the definition does, and that is the recurrence and its gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from taskflow.kernels import NumpyKernels

native = pytest.importorskip("taskflow.kernels.native.kernels", reason="the compiled kernels are not built")

NUMPY, NATIVE = NumpyKernels(), native.NativeKernels()
SHAPES = [(1, 1, 1, 1), (2, 5, 3, 4), (1, 9, 16, 16), (3, 7, 37, 5), (2, 64, 20, 8), (0, 3, 4, 2), (2, 3, 4, 0)]  # N, T, D, S
Array = Any


def given(shape: tuple[int, int, int, int], dtype: Any) -> list[Array]:
    """Numbers for x, dt, a, b, c and the gradient of the result."""
    n, t, d, s = shape
    rng = np.random.default_rng(sum(shape))
    x, b, c, dy = (rng.normal(size=size).astype(dtype) for size in ((n, t, d), (n, t, s), (n, t, s), (n, t, d)))
    return [x, rng.uniform(0.01, 2, (n, t, d)).astype(dtype), -rng.uniform(0.1, 3, (d, s)).astype(dtype), b, c, dy]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_compiled_scan_is_the_definition(shape: tuple[int, int, int, int], dtype: Any) -> None:
    *arrays, dy = given(shape, dtype)
    results = []
    for kernels in (NUMPY, NATIVE):
        y, gradients = np.full_like(dy, 7), [np.full_like(array, 7) for array in arrays]
        kernels.selective_scan(*arrays, y)
        kernels.selective_scan_backward(*arrays, dy, *gradients)
        results.append((y, *gradients))
    eps = float(np.finfo(dtype).eps)
    for one, other in zip(*results):
        np.testing.assert_allclose(other, one, rtol=64 * eps, atol=64 * eps * max(1.0, np.abs(one).max(initial=0.0)))


def test_the_definition_is_the_recurrence() -> None:
    x, dt, a, b, c, _ = given((2, 5, 3, 4), np.float64)
    h, want = np.zeros((2, 3, 4)), np.zeros_like(x)
    for t in range(5):
        for n, d, s in np.ndindex(2, 3, 4):
            h[n, d, s] = np.exp(dt[n, t, d] * a[d, s]) * h[n, d, s] + dt[n, t, d] * b[n, t, s] * x[n, t, d]
            want[n, t, d] += c[n, t, s] * h[n, d, s]
    y = np.empty_like(x)
    NUMPY.selective_scan(x, dt, a, b, c, y)
    np.testing.assert_allclose(y, want, rtol=1e-13, atol=1e-14)


def test_the_gradients_are_those_of_finite_differences() -> None:
    *arrays, dy = given((2, 4, 3, 2), np.float64)
    gradients, y = [np.empty_like(array) for array in arrays], np.empty_like(dy)
    NUMPY.selective_scan_backward(*arrays, dy, *gradients)
    for array, gradient in zip(arrays, gradients):
        for at in np.ndindex(array.shape):
            sides = []
            for step in (1e-6, -1e-6):
                array[at] += step
                NUMPY.selective_scan(*arrays, y)
                sides.append(float((y * dy).sum()))
                array[at] -= step
            assert (sides[0] - sides[1]) / 2e-6 == pytest.approx(gradient[at], rel=1e-6, abs=1e-8)


def test_arrays_that_do_not_fit_are_refused() -> None:
    *arrays, dy = given((2, 4, 3, 2), np.float64)
    with pytest.raises(ValueError, match="selective_scan: b must be"):
        NATIVE.selective_scan(*arrays[:3], arrays[3][:, :3], arrays[4], dy)
    with pytest.raises(ValueError, match="selective_scan: x must have 3 dimensions"):
        NATIVE.selective_scan(arrays[0][0], *arrays[1:], dy)
    with pytest.raises(TypeError, match="float32 or float64"):
        NATIVE.selective_scan(*(array.astype(np.float16) for array in (*arrays, dy)))
