"""The compiled layer normalisation, activations, dropout and masked softmax do what the numpy reference does."""

from __future__ import annotations

from collections.abc import Callable
from math import erfc, sqrt
from typing import Any

import numpy as np
import pytest

from taskflow.kernels import NumpyKernels

native = pytest.importorskip("taskflow.kernels.native.kernels", reason="the compiled kernels are not built")

NUMPY, NATIVE = NumpyKernels(), native.NativeKernels()
DTYPES = [np.float32, np.float64]
SHAPES = [(0, 3), (1, 1), (1, 17), (3, 5), (4, 16), (7, 31), (5, 1001), (40, 600)]
Array = Any


def near(one: Array, other: Array, scale: float = 1.0) -> None:
    """Equal to rounding: ``scale`` is the size of the terms that were added."""
    eps = float(np.finfo(one.dtype).eps)
    np.testing.assert_allclose(one, other, rtol=16 * eps, atol=16 * eps * scale, equal_nan=True)


def both(run: Callable[[Any, Array], None], before: Array, scale: float = 1.0) -> Array:
    """Run with both sets on copies of ``before``; the numpy result, after comparing."""
    a, b = before.copy(), before.copy()
    run(NUMPY, a)
    run(NATIVE, b)
    near(b, a, scale)
    return a


# ---- layer normalisation ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_layer_norm(shape: tuple[int, int], dtype: Any) -> None:
    rng = np.random.default_rng(shape[0] * 1000 + shape[1])
    x, dy, before = (rng.normal(size=shape).astype(dtype) for _ in range(3))
    weight, bias = (rng.normal(size=shape[1]).astype(dtype) for _ in range(2))
    statistics = np.empty((shape[0], 2), dtype)
    both(lambda s, out: s.layer_norm(x, weight, bias, 0.1, out, statistics), before, 8)
    both(lambda s, out: s.layer_norm(x, weight, bias, 0.1, np.empty_like(x), out), statistics, 4)
    for accumulate in (False, True):
        dx = both(lambda s, out, a=accumulate: s.layer_norm_backward(x, weight, statistics, dy, out, None, a), before, 32)
        sums = np.full((2, shape[1]), 7, dtype)
        sums = both(
            lambda s, out, a=accumulate: s.layer_norm_backward(x, weight, statistics, dy, None, out, a), sums,
            16 + 4 * shape[0],
        )
        out, together = before.copy(), np.full_like(sums, 7)
        NATIVE.layer_norm_backward(x, weight, statistics, dy, out, together, accumulate)
        near(out, dx, 32)
        near(together, sums, 16 + 4 * shape[0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_layer_norm_of_rows_far_from_zero(dtype: Any) -> None:
    """The mean's own rounding is all that is lost: half a unit of 1000, against a deviation of 1."""
    x = (np.random.default_rng(0).normal(size=(6, 300)) + 1000).astype(dtype)
    out, statistics = np.empty_like(x), np.empty((6, 2), dtype)
    NATIVE.layer_norm(x, np.ones(300, dtype), np.zeros(300, dtype), 0.0, out, statistics)
    wide = x.astype(np.longdouble)
    want = (wide - wide.mean(1, keepdims=True)) / wide.std(1, keepdims=True)
    assert np.abs(out - want).max() < 1000 * np.finfo(dtype).eps


# ---- activations -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("function", ["relu", "sigmoid", "tanh"])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 5, 7), (1000,)])
def test_activations(shape: tuple[int, ...], function: str, dtype: Any) -> None:
    rng = np.random.default_rng(len(shape))
    x, dy, before = (np.asarray(rng.normal(size=shape) * 3, dtype) for _ in range(3))
    y = both(lambda s, out: s.activate(function, x, out), before)
    for accumulate in (False, True):
        both(lambda s, out, a=accumulate: s.activate_backward(function, y, dy, out, a), before, 4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("approximate", [False, True])
@pytest.mark.parametrize("shape", [(0,), (1,), (3, 5, 7), (5000,)])
def test_gelu(shape: tuple[int, ...], approximate: bool, dtype: Any) -> None:
    rng = np.random.default_rng(len(shape))
    x, dy, before = (np.asarray(rng.normal(size=shape) * 3, dtype) for _ in range(3))
    both(lambda s, out: s.gelu(x, approximate, out), before, 4)
    for accumulate in (False, True):
        both(lambda s, out, a=accumulate: s.gelu_backward(x, approximate, dy, out, a), before, 64)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gelu_keeps_its_relative_precision_in_the_tail(dtype: Any) -> None:
    """Where 1/2 + erf / 2 would have lost every digit: what is left is the rounding of x^2 in exp(-x^2 / 2)."""
    x = np.concatenate([np.linspace(-9, 9, 4001), [0.0, -0.0, 1e-30, 200, -200]]).astype(dtype)
    out = np.empty_like(x)
    NATIVE.gelu(x, False, out)
    want = np.array([v * erfc(-v / sqrt(2)) / 2 for v in x.astype(np.float64)])
    np.testing.assert_allclose(out, want, rtol=64 * np.finfo(dtype).eps, atol=np.finfo(dtype).tiny)


def test_nan_stays_where_it_is() -> None:
    x = np.linspace(-3, 3, 40).astype(np.float32)
    x[7] = np.nan
    out = np.empty_like(x)
    for run in (
        *(lambda f=f: NATIVE.activate(f, x, out) for f in ("relu", "sigmoid", "tanh")),
        lambda: NATIVE.gelu(x, False, out), lambda: NATIVE.gelu(x, True, out),
    ):
        run()
        assert np.flatnonzero(np.isnan(out)).tolist() == [7]


def test_activations_may_replace_their_input() -> None:
    x = np.linspace(-3, 3, 77)
    for function in ("relu", "sigmoid", "tanh"):
        want, y = np.empty_like(x), x.copy()
        NATIVE.activate(function, x, want)
        NATIVE.activate(function, y, y)
        np.testing.assert_array_equal(y, want)


@pytest.mark.parametrize("kernels", [NUMPY, NATIVE], ids=lambda kernels: kernels.name)
def test_other_functions_are_refused(kernels: Any) -> None:
    x = np.zeros(3)
    with pytest.raises(ValueError, match="relu, sigmoid or tanh, got 'selu'"):
        kernels.activate("selu", x, x)
    with pytest.raises(ValueError, match="relu, sigmoid or tanh, got 'selu'"):
        kernels.activate_backward("selu", x, x, x)


# ---- dropout ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("p", [0.0, 0.25, 0.5, 0.9])
@pytest.mark.parametrize(("shape", "lo", "box"), [
    ((5, 7), (0, 0), (5, 7)), ((40, 33), (3, 5), (21, 11)), ((9, 4, 300), (2, 0, 0), (3, 4, 300)), ((6, 6), (1, 1), (0, 3)),
    ((1000,), (1,), (999,)),
])
def test_dropout(shape: tuple[int, ...], lo: tuple[int, ...], box: tuple[int, ...], p: float, dtype: Any) -> None:
    rng = np.random.default_rng(sum(shape))
    x, dy, before = (rng.normal(size=box).astype(dtype) for _ in range(3))
    masks = np.ones(box, bool), np.ones(box, bool)
    results = np.empty(box, dtype), np.empty(box, dtype)
    for kernels, out, mask in zip((NUMPY, NATIVE), results, masks):
        kernels.dropout((3, 2**31), 17, shape, lo, p, x, out, mask)
    np.testing.assert_array_equal(*masks)
    near(*results)
    for accumulate in (False, True):
        both(lambda s, out, a=accumulate: s.dropout_backward(masks[0], p, dy, out, a), before, 16)


# ---- softmax with ends, smoothed cross-entropy --------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "seen", "columns"), [(0, 3, 3), (1, 1, 1), (7, 9, 9), (30, 20, 33), (5, 0, 4)])
def test_softmax_of_the_first_columns(rows: int, seen: int, columns: int, dtype: Any) -> None:
    rng = np.random.default_rng(rows)
    x, ends = rng.normal(size=(rows, seen)).astype(dtype), rng.integers(0, seen + 1, rows)
    out = both(lambda s, out: s.softmax(x, out, ends), np.full((rows, columns), 7, dtype))
    for row, end in enumerate(ends):
        assert not out[row, end:].any() and out[row, :end].sum() == pytest.approx(float(end > 0))


@pytest.mark.parametrize("kernels", [NUMPY, NATIVE], ids=lambda kernels: kernels.name)
@pytest.mark.parametrize("wrong", [-1, 4])
def test_ends_beyond_the_columns_are_refused(kernels: Any, wrong: int) -> None:
    with pytest.raises(ValueError, match=rf"ends must lie in \[0, 3\].*got {wrong} in row 1"):
        kernels.softmax(np.zeros((2, 3)), np.zeros((2, 5)), np.array([1, wrong]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 2), (4, 16), (7, 31), (13, 1001)])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
def test_smoothed_cross_entropy(shape: tuple[int, int], smoothing: float, dtype: Any) -> None:
    rng = np.random.default_rng(shape[1])
    logits, before = (rng.normal(size=shape).astype(dtype) * 3 for _ in range(2))
    target = rng.integers(0, shape[1], shape[0])
    target[1::3] = -100
    p, q = logits.copy(), logits.copy()  # in place, too
    one = NUMPY.cross_entropy(p, target, -100, p, smoothing)
    other = NATIVE.cross_entropy(q, target, -100, q, smoothing)
    assert other == pytest.approx(one, rel=8 * float(np.finfo(dtype).eps))
    near(q, p)
    for accumulate in (False, True):
        both(
            lambda s, out, a=accumulate: s.cross_entropy_backward(p, target, -100, 0.37, out, a, smoothing=smoothing),
            before, 8,
        )
