"""Compiled kernels of the cross-entropy in blocks of classes against numpy's, and both against the one in one piece."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from taskflow.kernels import NumpyKernels

native = pytest.importorskip("taskflow.kernels.native.kernels", reason="the compiled kernels are not built")
NUMPY, NATIVE = NumpyKernels(), native.NativeKernels()
DTYPES = [np.float32, np.float64]
# rows; classes, blocks, first block that is here; how many are here
CASES = [
    (1, (1, 1, 0), 1), (5, (7, 7, 2), 3), (9, (40, 3, 1), 2), (6, (1001, 64, 0), 64), (4, (1001, 64, 17), 30), (0, (9, 2, 1), 1),
]


def near(actual: Any, expected: Any, scale: float = 1.0) -> None:
    eps = float(np.finfo(expected.dtype).eps)
    np.testing.assert_allclose(actual, expected, rtol=32 * eps, atol=32 * eps * scale)


def drawn(rows: int, split: tuple[int, int, int], here: int, dtype: Any, amount: float) -> tuple[Any, Any]:
    """Scores with gaps between the rows, and targets: of every class that is here, of others, and ignored ones."""
    classes, blocks, first = split
    numbers = np.random.default_rng((rows, classes))
    start, end = first * classes // blocks, (first + here) * classes // blocks
    scores = (numbers.normal(size=(rows, end - start + 3)) * amount).astype(dtype)[:, : end - start]
    target = numbers.integers(0, classes, rows)
    target[1::4] = -100
    return scores, target


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("amount", [1.0, 1e3])
@pytest.mark.parametrize(("rows", "split", "here"), CASES)
def test_class_blocks(rows: int, split: Any, here: int, amount: float, smoothing: float, dtype: Any) -> None:
    scores, target = drawn(rows, split, here, dtype, amount)
    results = []
    for kernels in (NUMPY, NATIVE):
        p, pairs = np.full(scores.shape, 7, dtype), np.full((rows, 2 * here), 7.0)
        kernels.class_blocks(scores, target, -100, split, p, pairs, smoothing)
        inside, again = scores.copy(), np.empty_like(pairs)
        kernels.class_blocks(inside, target, -100, split, inside, again, smoothing)  # in place
        np.testing.assert_array_equal(inside, p)
        np.testing.assert_array_equal(again, pairs)
        ignored = target == -100
        assert not p[ignored].any() and not pairs[ignored].any()
        assert p[~ignored].sum() == pytest.approx(here * (~ignored).sum(), rel=1e-5)
        results.append((p, pairs))
    # An exponent x - max rounds: its error is relative to the exponents that matter. Sums of scores may cancel.
    near(results[1][0], results[0][0])
    np.testing.assert_allclose(results[1][1], results[0][1], rtol=32 * np.finfo(dtype).eps, atol=1e-13 * amount)
    dy, before = np.random.default_rng(1).normal(size=(rows, 2 * here)), np.random.default_rng(2).normal(size=scores.shape)
    for accumulate in (False, True):
        a, b = before.astype(dtype), before.astype(dtype)
        NUMPY.class_blocks_backward(results[0][0], target, -100, split, dy, a, accumulate, smoothing)
        NATIVE.class_blocks_backward(results[0][0], target, -100, split, dy, b, accumulate, smoothing)
        near(b, a, 4)
        if not accumulate:
            assert not b[target == -100].any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "blocks"), [(0, 3), (1, 1), (7, 5), (20, 64)])
@pytest.mark.parametrize("amount", [1.0, 1e4])
def test_loss_of_blocks(rows: int, blocks: int, amount: float, dtype: Any) -> None:
    numbers = np.random.default_rng(blocks)
    y, before = (numbers.normal(size=(rows, 2 * blocks)).astype(dtype) * dtype(amount) for _ in range(2))
    target = numbers.integers(0, 3, rows)
    shares = [np.full((rows, blocks), 7, dtype) for _ in range(2)]
    one, other = (k.cross_entropy_of_blocks(y, target, 2, s) for k, s in zip((NUMPY, NATIVE), shares))
    assert other == pytest.approx(one, rel=32 * float(np.finfo(dtype).eps))
    near(shares[1], shares[0])
    assert not shares[1][target == 2].any()
    for accumulate in (False, True):
        a, b = before.copy(), before.copy()
        NUMPY.cross_entropy_of_blocks_backward(shares[0], target, 2, 0.37, a, accumulate)
        NATIVE.cross_entropy_of_blocks_backward(shares[0], target, 2, 0.37, b, accumulate)
        near(b, a)
        if not accumulate:
            assert not b[target == 2].any()


@pytest.mark.parametrize("kernels", [NUMPY, NATIVE], ids=lambda kernels: kernels.name)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_blocks_give_the_loss_in_one_piece(smoothing: float, dtype: Any, kernels: Any) -> None:
    rows, classes, blocks, eps = 12, 1000, 7, float(np.finfo(dtype).eps)
    scores, target = drawn(rows, (classes, blocks, 0), blocks, dtype, 10.0)
    p, q, dx, dz = (np.empty(scores.shape, dtype) for _ in range(4))
    pairs, shares, dy = np.empty((rows, 2 * blocks)), np.empty((rows, blocks)), np.empty((rows, 2 * blocks))
    expected = kernels.cross_entropy(scores, target, -100, p, smoothing)
    kernels.class_blocks(scores, target, -100, (classes, blocks, 0), q, pairs, smoothing)
    assert kernels.cross_entropy_of_blocks(pairs, target, -100, shares) == pytest.approx(expected, rel=8 * eps)
    kernels.cross_entropy_backward(p, target, -100, 0.3, dx, False, smoothing)
    kernels.cross_entropy_of_blocks_backward(shares, target, -100, 0.3, dy)
    kernels.class_blocks_backward(q, target, -100, (classes, blocks, 0), dy, dz, False, smoothing)
    near(dz, dx)


@pytest.mark.parametrize("kernels", [NUMPY, NATIVE], ids=lambda kernels: kernels.name)
@pytest.mark.parametrize("wrong", [-1, 9])
def test_targets_outside_are_refused(kernels: Any, wrong: int) -> None:
    x, pairs, target = np.zeros((3, 3)), np.zeros((3, 2)), np.array([0, wrong, 8])
    with pytest.raises(IndexError, match=rf"\[0, 9\).*got {wrong} in row 1"):
        kernels.class_blocks(x, target, -100, (9, 3, 1), x.copy(), pairs)
    with pytest.raises(IndexError, match=rf"\[0, 9\).*got {wrong} in row 1"):
        kernels.class_blocks_backward(x, target, -100, (9, 3, 1), pairs, x.copy())


@pytest.mark.parametrize("split", [(9, 3, 2), (9, 4, 1), (3, 4, 0), (9, 3, -1)])
def test_columns_that_are_no_blocks_are_refused(split: tuple[int, int, int]) -> None:
    x, pairs, target = np.zeros((2, 6)), np.zeros((2, 4)), np.zeros(2, int)
    with pytest.raises(ValueError, match="6 columns and 4 / 2 pairs are no blocks"):
        NATIVE.class_blocks(x, target, -100, split, x, pairs, 0.0)
