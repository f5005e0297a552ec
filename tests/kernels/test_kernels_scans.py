"""Scans: the compiled kernels do what the definition does, and that is the recurrence and its gradient."""

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


# ---- linear attention ------------------------------------------------------------------------------------------------
LINEAR = [  # samples, steps, heads, groups, first head, width, value, a decay for each feature, a correction
    (1, 1, 1, 1, 0, 1, 1, False, True), (2, 5, 4, 2, 0, 3, 4, False, True), (2, 5, 4, 2, 0, 3, 4, True, False),
    (1, 33, 3, 2, 1, 8, 5, True, True), (2, 16, 2, 2, 0, 4, 17, False, False), (0, 3, 2, 1, 0, 2, 2, False, True),
]


def heads(shape: tuple[Any, ...], dtype: Any) -> tuple[list[Any], tuple[int, int], Array]:
    """Numbers for q, k, v, g and beta; how many heads share queries and the first head's number; the gradient of the result."""
    n, t, h, groups, first, width, value, by_feature, corrects = shape
    rng = np.random.default_rng(sum(shape[:7]))
    q, k = (rng.normal(size=(n, t, groups, width)).astype(dtype) / width for _ in range(2))
    v, dy = (rng.normal(size=(n, t, h, value)).astype(dtype) for _ in range(2))
    g = -rng.uniform(0.01, 2, (n, t, h, *((width,) if by_feature else ()))).astype(dtype)
    beta = rng.uniform(0.1, 1, (n, t, h)).astype(dtype) if corrects else None
    return [q, k, v, g, beta], ((h + first) // groups, first), dy


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", LINEAR)
def test_compiled_linear_attention_is_the_definition(shape: tuple[Any, ...], dtype: Any) -> None:
    arrays, groups, dy = heads(shape, dtype)
    results = []
    for kernels in (NUMPY, NATIVE):
        y, gradients = np.full_like(dy, 7), [None if array is None else np.full_like(array, 7) for array in arrays]
        kernels.linear_attention(*arrays, *groups, y)
        kernels.linear_attention_backward(*arrays, *groups, dy, *gradients)
        results.append([array for array in (y, *gradients) if array is not None])
    eps = float(np.finfo(dtype).eps)
    for one, other in zip(*results):
        np.testing.assert_allclose(other, one, rtol=64 * eps, atol=64 * eps * max(1.0, np.abs(one).max(initial=0.0)))


@pytest.mark.parametrize("shape", LINEAR[1:4])
def test_gradients_of_linear_attention_are_those_of_finite_differences(shape: tuple[Any, ...]) -> None:
    arrays, groups, dy = heads((*shape[:1], min(shape[1], 4), *shape[2:]), np.float64)
    gradients, y = [None if array is None else np.empty_like(array) for array in arrays], np.empty_like(dy)
    NUMPY.linear_attention_backward(*arrays, *groups, dy, *gradients)
    for array, gradient in zip(arrays, gradients):
        for at in np.ndindex(array.shape) if array is not None else ():
            sides = []
            for step in (1e-6, -1e-6):
                array[at] += step
                NUMPY.linear_attention(*arrays, *groups, y)
                sides.append(float((y * dy).sum()))
                array[at] -= step
            assert gradient is not None and (sides[0] - sides[1]) / 2e-6 == pytest.approx(gradient[at], rel=1e-6, abs=1e-8)


def test_heads_without_groups_are_refused() -> None:
    arrays, (each, first), dy = heads(LINEAR[1], np.float64)
    with pytest.raises(ValueError, match="4 heads from number 1 on, 2 a group, need more than 2 groups"):
        NATIVE.linear_attention(*arrays, each, first + 1, dy)
    with pytest.raises(ValueError, match="linear_attention: beta must be"):
        NATIVE.linear_attention(*arrays[:4], arrays[4][:, 1:], each, first, dy)
