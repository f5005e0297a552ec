"""The compiled kernels do what the numpy reference does: odd shapes, strided rows, extreme values, NaN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from taskflow.kernels import NumpyKernels

native = pytest.importorskip("taskflow.kernels.native.kernels", reason="the compiled kernels are not built")
_pointwise = pytest.importorskip("taskflow.kernels.native._pointwise")

NUMPY, NATIVE = NumpyKernels(), native.NativeKernels()
DTYPES = [np.float32, np.float64]
SHAPES = [(0, 3), (1, 1), (1, 17), (3, 5), (4, 16), (7, 31), (13, 64), (5, 1001), (2, 0)]
Array = Any


def near(one: Array, other: Array, scale: float = 1.0) -> None:
    """Equal to rounding: ``scale`` is the size of the terms that were added."""
    eps = float(np.finfo(one.dtype).eps)
    np.testing.assert_allclose(one, other, rtol=16 * eps, atol=16 * eps * scale, equal_nan=True)


def strided(shape: tuple[int, ...], dtype: Any, rng: np.random.Generator, amount: float = 1.0) -> Array:
    """A view [:, t] of a larger array: strided over its first dimension, the rest contiguous."""
    whole = (rng.normal(size=(shape[0], 3, *shape[1:])) * amount).astype(dtype)
    return whole[:, 1]


# ---- exp, sigmoid, tanh ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("function", ["exp", "sigmoid", "tanh"])
def test_functions_are_right_to_two_units_everywhere(function: str, dtype: Any) -> None:
    rng = np.random.default_rng(0)
    reach = 750 if dtype is np.float64 else 105
    x = np.concatenate([
        rng.uniform(-reach, reach, 50_001), rng.normal(size=50_000), rng.normal(size=10_000) * 1e-3,
        np.linspace(-1, 1, 10_001), 10.0 ** rng.uniform(-37, 0, 1000), [0.0, 1e30, -1e30],
    ]).astype(dtype)
    wide = x.astype(np.longdouble)
    with np.errstate(over="ignore", under="ignore"):
        want = {"exp": np.exp, "tanh": np.tanh, "sigmoid": lambda v: 1 / (1 + np.exp(-v))}[function](wide)
        normal = (np.abs(want) > np.finfo(dtype).tiny) & (np.abs(want) < np.finfo(dtype).max)
        rounded = want.astype(dtype)
    got = np.empty_like(x)
    _pointwise.elementwise(function, x, got)
    assert np.max(np.abs(got[normal] / want[normal] - 1)) < 2 * np.finfo(dtype).eps
    # What is too small for a normal number may be flushed to zero, what is too large is infinite.
    tiny = ~normal & np.isfinite(rounded)
    assert np.all(np.abs(got[tiny] - rounded[tiny]) < np.finfo(dtype).tiny)
    assert np.all(got[np.isinf(rounded)] == np.inf)


@pytest.mark.parametrize("dtype", DTYPES)
def test_functions_at_infinity_zero_and_nan(dtype: Any) -> None:
    x = np.array([np.inf, -np.inf, 0.0, -0.0, np.nan] * 5, dtype)
    out = np.empty_like(x)
    for function, want in (
        ("exp", [np.inf, 0, 1, 1, np.nan]), ("sigmoid", [1, 0, 0.5, 0.5, np.nan]), ("tanh", [1, -1, 0.0, -0.0, np.nan]),
    ):
        _pointwise.elementwise(function, x, out)
        np.testing.assert_array_equal(out, np.array(want * 5, dtype))
        if function == "tanh":
            assert np.signbit(out[3]) and not np.signbit(out[2])


# ---- LSTM ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("amount", [1.0, 300.0])
def test_lstm_cell(shape: tuple[int, int], dtype: Any, amount: float) -> None:
    rng = np.random.default_rng(shape[0] * 1000 + shape[1])
    n, h = shape
    gates, c_prev = strided((n, 4, h), dtype, rng, amount), strided(shape, dtype, rng)
    results = []
    for kernels in (NUMPY, NATIVE):
        whole = np.full((n, 3, 4, h), 7, dtype)
        whole[:, 1] = gates
        c, out = np.full((n, 3, h), 7, dtype), np.full((n, 2, h), 7, dtype)
        kernels.lstm_cell(whole[:, 1], c_prev, c[:, 2], out[:, 0])
        results.append((whole, c, out))  # the untouched parts are compared, too
    for one, other in zip(*results):
        near(other, one, scale=4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_lstm_cell_backward(shape: tuple[int, int], dtype: Any) -> None:
    rng = np.random.default_rng(shape[0] * 1000 + shape[1])
    n, h = shape
    gates, c_prev, c, dh, dc = (
        strided((n, 4, h), dtype, rng), *(strided(shape, dtype, rng) for _ in range(4))
    )
    NUMPY.lstm_cell(gates, c_prev, c, np.empty(shape, dtype))
    results = []
    for kernels in (NUMPY, NATIVE):
        dgates, again = np.full((n, 2, 4, h), 7, dtype), np.stack([dc, dc], axis=1)
        kernels.lstm_cell_backward(gates, c_prev, c, dh, again[:, 1], dgates[:, 0])
        results.append((dgates, again))
    for one, other in zip(*results):
        near(other, one, scale=8)


def test_lstm_cell_keeps_nan_where_it_is() -> None:
    gates = np.zeros((2, 4, 19), np.float32)
    gates[1, 2, 5] = np.nan
    c, h = np.empty((2, 19), np.float32), np.empty((2, 19), np.float32)
    NATIVE.lstm_cell(gates, np.zeros_like(c), c, h)
    assert np.argwhere(np.isnan(c)).tolist() == np.argwhere(np.isnan(h)).tolist() == [[1, 5]]


def test_lstm_cell_may_write_c_over_c_prev() -> None:
    rng = np.random.default_rng(1)
    gates, c = rng.normal(size=(3, 4, 21)), rng.normal(size=(3, 21))
    want, h = np.empty_like(c), np.empty_like(c)
    NATIVE.lstm_cell(gates.copy(), c, want, h)
    NATIVE.lstm_cell(gates, c, c, h)
    np.testing.assert_array_equal(c, want)


# ---- softmax and cross-entropy ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape[1]])
@pytest.mark.parametrize("amount", [1.0, 1e3, 1e30])
def test_softmax_and_backward(shape: tuple[int, int], dtype: Any, amount: float) -> None:
    rng = np.random.default_rng(shape[0] * 1000 + shape[1])
    x, dy, before = strided(shape, dtype, rng, amount), strided(shape, dtype, rng), strided(shape, dtype, rng)
    y, other = np.empty(shape, dtype), np.empty(shape, dtype)
    NUMPY.softmax(x, y)
    NATIVE.softmax(x, other)
    # An exponent x - max rounds: its error is relative to the exponents that matter (about -ln(eps)).
    near(other, y, scale=1)
    np.testing.assert_allclose(other, y, rtol=100 * np.finfo(dtype).eps, atol=np.finfo(dtype).tiny)
    for accumulate in (False, True):
        a, b = before.copy(), before.copy()
        NUMPY.softmax_backward(y, dy, a, accumulate)
        NATIVE.softmax_backward(y, dy, b, accumulate)
        near(b, a, scale=4)


@pytest.mark.parametrize("dtype", DTYPES)
def test_softmax_of_infinite_and_nan_rows(dtype: Any) -> None:
    x = np.zeros((5, 37), dtype)
    x[0, 3], x[1, 20], x[2, 36], x[3, :] = np.nan, np.inf, -np.inf, -np.inf
    a, b = np.empty_like(x), np.empty_like(x)
    with np.errstate(invalid="ignore"):
        NUMPY.softmax(x, a)
    NATIVE.softmax(x, b)
    assert np.isnan(b[[0, 1, 3]]).all() and b[2, 36] == 0
    near(b, a)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("index", [np.int64, np.int32])
@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape[1]])
@pytest.mark.parametrize("amount", [1.0, 1e3])
def test_cross_entropy_and_backward(shape: tuple[int, int], index: Any, dtype: Any, amount: float) -> None:
    rng = np.random.default_rng(shape[0] * 1000 + shape[1])
    logits, before = strided(shape, dtype, rng, amount), strided(shape, dtype, rng)
    target = rng.integers(0, shape[1], shape[0]).astype(index)
    target[1::3] = -100
    p, q = np.empty(shape, dtype), np.empty(shape, dtype)
    one, other = NUMPY.cross_entropy(logits, target, -100, p), NATIVE.cross_entropy(logits, target, -100, q)
    eps = float(np.finfo(dtype).eps)
    assert other == pytest.approx(one, rel=8 * eps, abs=8 * eps * shape[0] * amount)
    near(q, p)
    for accumulate in (False, True):
        a, b = before.copy(), before.copy()
        NUMPY.cross_entropy_backward(p, target, -100, 0.37, a, accumulate)
        NATIVE.cross_entropy_backward(p, target, -100, 0.37, b, accumulate)
        near(b, a, scale=2)
        if not accumulate:
            assert not b[target == -100].any()


@pytest.mark.parametrize("kernels", [NUMPY, NATIVE], ids=lambda kernels: kernels.name)
@pytest.mark.parametrize("wrong", [-1, 5])
def test_cross_entropy_refuses_targets_outside(kernels: Any, wrong: int) -> None:
    x, out = np.zeros((3, 5)), np.zeros((3, 5))
    target = np.array([0, wrong, 4])
    with pytest.raises(IndexError, match=rf"\[0, 5\).*got {wrong} in row 1"):
        kernels.cross_entropy(x, target, -100, out)
    with pytest.raises(IndexError, match=rf"\[0, 5\).*got {wrong} in row 1"):
        kernels.cross_entropy_backward(x, target, -100, 1.0, out)
    assert not out.any()


# ---- embedding -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("index", [np.int64, np.int32, np.uint8])
@pytest.mark.parametrize(("rows", "size", "width"), [(0, 5, 3), (1, 1, 1), (40, 7, 33), (100, 11, 16), (9, 0, 4)])
def test_embedding_and_backward(rows: int, size: int, width: int, index: Any, dtype: Any) -> None:
    rng = np.random.default_rng(rows + size)
    table, dy, first = strided((size, width), dtype, rng), strided((rows, width), dtype, rng), 3
    chosen = rng.integers(0, size + 2 * first, rows).astype(index)  # some lie below the piece, some above
    a, b = np.full((rows, width), 7, dtype), np.full((rows, width), 7, dtype)
    NUMPY.embedding(table, chosen, first, a)
    NATIVE.embedding(table, chosen, first, b)
    np.testing.assert_array_equal(b, a)
    for accumulate in (False, True):
        a, b = table.copy(), table.copy()
        NUMPY.embedding_backward(chosen, first, dy, a, accumulate)
        NATIVE.embedding_backward(chosen, first, dy, b, accumulate)
        np.testing.assert_array_equal(b, a)  # rows are added in order in both


# ---- sums ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [*SHAPES, (2000, 3), (17, 1500)])
def test_sums(shape: tuple[int, int], dtype: Any) -> None:
    rng = np.random.default_rng(shape[0] * 1000 + shape[1])
    x, before = strided(shape, dtype, rng), rng.normal(size=shape[1]).astype(dtype)
    for accumulate in (False, True):
        b = before.copy()
        NATIVE.sum_rows(x, b, accumulate)
        exact = x.astype(np.longdouble).sum(axis=0) + (before if accumulate else 0)
        near(b, exact.astype(dtype), scale=shape[0])
    flat = np.ascontiguousarray(x)
    assert NATIVE.sum_of_squares(flat) == pytest.approx(NUMPY.sum_of_squares(flat), rel=1e-13, abs=0)
    assert NATIVE.sum_of_squares(flat) == NATIVE.sum_of_squares(flat.copy())


# ---- arguments -------------------------------------------------------------------------------------------------------

F = np.float32


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: NATIVE.softmax(np.zeros((2, 3), np.float16), np.zeros((2, 3), np.float16)), TypeError),
        (lambda: NATIVE.softmax(np.zeros((2, 3)), np.zeros((2, 3), F)), ValueError),
        (lambda: NATIVE.softmax(np.zeros((2, 3)), np.zeros((3, 2))), ValueError),
        (lambda: NATIVE.softmax(np.zeros((3, 2)).T, np.zeros((2, 3))), ValueError),
        (lambda: NATIVE.softmax(np.zeros(3), np.zeros(3)), ValueError),
        (lambda: NATIVE.softmax(None, np.zeros((2, 3))), TypeError),
        (lambda: NATIVE.softmax(np.zeros((2, 3)), np.broadcast_to(0.0, (2, 3))), ValueError),
        (lambda: NATIVE.softmax(np.zeros((2, 3), ">f4"), np.zeros((2, 3), F)), ValueError),
        (lambda: NATIVE.lstm_cell(np.zeros((2, 3, 4)), *[np.zeros((2, 4))] * 3), ValueError),
        (lambda: NATIVE.lstm_cell(np.zeros((2, 4, 8))[:, :, ::2], *[np.zeros((2, 4))] * 3), ValueError),
        (lambda: NATIVE.lstm_cell(np.zeros((4, 2, 4)).swapaxes(0, 1), *[np.zeros((2, 4))] * 3), ValueError),
        (lambda: NATIVE.embedding(np.zeros((4, 3)), np.zeros(2), 0, np.zeros((2, 3))), ValueError),
        (lambda: NATIVE.embedding(np.zeros((4, 3)), np.zeros(3, int), 0, np.zeros((2, 3))), ValueError),
        (lambda: NATIVE.sum_rows(np.zeros((4, 3)), np.zeros(4)), ValueError),
        (lambda: NATIVE.sum_of_squares(np.zeros((4, 3)).T), ValueError),
        (lambda: NATIVE.sgd(np.zeros(4), np.zeros(3), None, 1, 0, 0, 0, False, 1, False), ValueError),
        (lambda: NATIVE.adam(*[np.zeros(4)] * 4, 1, 0.9, 0.9, 1e-8, 0, False, 1, 0), ValueError),
        (lambda: NATIVE.uniform((1, 2), 0, (4, 4), (2, 3), np.zeros((2, 2))), ValueError),
        (lambda: NATIVE.uniform((1, 2), 0, (4,), (0, 0), np.zeros((2, 2))), ValueError),
        (lambda: NATIVE.uniform((1, 2**32), 0, (4,), (0,), np.zeros(4)), OverflowError),
    ],
)
def test_arguments_that_would_be_misread_are_refused(call: Callable[[], None], error: type[Exception]) -> None:
    with pytest.raises(error):
        call()


def test_an_error_says_what_was_required_and_given() -> None:
    with pytest.raises(ValueError, match=r"softmax: out must be float64 \(2, 3\).*got float32 \(2, 4\)"):
        NATIVE.softmax(np.zeros((2, 3)), np.zeros((2, 4), F))
