"""The compiled kernels for images do what the numpy reference does: random windows, asymmetric padding, pieces of nothing."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest

from taskflow.kernels import NumpyKernels

native = pytest.importorskip("taskflow.kernels.native.kernels", reason="the compiled kernels are not built")

NUMPY, NATIVE = NumpyKernels(), native.NativeKernels()
DTYPES = [np.float32, np.float64]
Array = Any


def near(one: Array, other: Array, scale: float = 1.0) -> None:
    """Equal to rounding: ``scale`` is the size of the terms that were added."""
    eps = float(np.finfo(one.dtype).eps)
    np.testing.assert_allclose(one, other, rtol=16 * eps, atol=16 * eps * scale, equal_nan=True)


def windows(seed: int, dilated: bool) -> tuple[Random, dict[str, Any], tuple[int, ...], tuple[int, int]]:
    """Random numbers, geometry, shape of the images, size of the output."""
    random = Random(seed)
    kernel, stride = ((random.choice((1, 2, 2, 3, 3, 3, 4, 5)), random.randint(1, 3)) for _ in range(2))
    if random.random() < 0.5:  # the usual ones, which have loops of their own
        side, step = random.choice(((2, 2), (3, 2), (3, 1), (2, 1)))
        kernel, stride = (side, side), (step, step)
    dilation = (random.randint(1, 3), random.randint(1, 3)) if dilated and random.random() < 0.5 else (1, 1)
    out = (random.randint(1, 9), random.choice((1, 2, 7, 8, 30, 33)))
    padding, size = [], []
    for k, s, d, o in zip(kernel, stride, dilation, out):
        before, after = random.randint(0, d * (k - 1) // 2 + 1), random.randint(0, d * (k - 1) // 2 + 1)
        size.append(max(0, (o - 1) * s + d * (k - 1) + 1 - before - after))
        # What the windows do not cover is cut away, as the operators do it.
        padding.append((before, (o - 1) * s + d * (k - 1) + 1 - before - size[-1]))
    shape = (random.randint(0, 3), random.randint(1, 3), *size)
    given = {"kernel": kernel, "stride": stride, "padding": tuple(padding), "dilation": dilation}
    return random, given, shape, out


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(60))
def test_max_pool(seed: int, dtype: Any) -> None:
    random, given, shape, size = windows(seed, True)
    rng = np.random.default_rng(seed)
    x = rng.integers(-4, 5, shape).astype(dtype)  # many are equal
    if x.size and random.random() < 0.3:
        x.reshape(-1)[rng.integers(0, x.size, 3)] = random.choice((np.nan, -np.inf, np.inf))
    kind = random.choice((np.uint8, np.uint16, np.uint32))
    a, b = (np.full((*shape[:2], *size), 7, dtype) for _ in range(2))
    i, j = (np.full(a.shape, 7, kind) for _ in range(2))
    NUMPY.max_pool2d(x, **given, out=a, index=i)
    NATIVE.max_pool2d(x, **given, out=b, index=j)
    np.testing.assert_array_equal(b, a)
    # Of several NaN in a window, any may be pointed at.
    np.testing.assert_array_equal(j[~np.isnan(a)], i[~np.isnan(a)])
    _point_at_nan(x, given, a, j)
    dy, before = rng.normal(size=a.shape).astype(dtype), rng.normal(size=shape).astype(dtype)
    for accumulate in (False, True):
        a, b = before.copy(), before.copy()
        NUMPY.max_pool2d_backward(dy, i, **given, out=a, accumulate=accumulate)
        NATIVE.max_pool2d_backward(dy, i, **given, out=b, accumulate=accumulate)
        near(b, a, scale=8)


def _point_at_nan(x: Array, given: dict[str, Any], out: Array, index: Array) -> None:
    for n, c, y, z in np.argwhere(np.isnan(out)):
        element = divmod(int(index[n, c, y, z]), given["kernel"][1])
        at = [
            o * s - p[0] + e * d
            for o, s, p, e, d in zip((y, z), given["stride"], given["padding"], element, given["dilation"])
        ]
        assert np.isnan(x[n, c, at[0], at[1]])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(60))
def test_sum_pool(seed: int, dtype: Any) -> None:
    _, given, shape, size = windows(1000 + seed, False)
    del given["dilation"]
    rng = np.random.default_rng(seed)
    x, before, scale = (rng.normal(size=s).astype(dtype) for s in (shape, shape, size))
    dy = rng.normal(size=(*shape[:2], *size)).astype(dtype)
    a, b = np.full_like(dy, 7), np.full_like(dy, 7)
    NUMPY.sum_pool2d(x, **given, scale=scale, out=a)
    NATIVE.sum_pool2d(x, **given, scale=scale, out=b)
    near(b, a, scale=25)
    for accumulate in (False, True):
        a, b = before.copy(), before.copy()
        NUMPY.sum_pool2d_backward(dy, **given, scale=scale, out=a, accumulate=accumulate)
        NATIVE.sum_pool2d_backward(dy, **given, scale=scale, out=b, accumulate=accumulate)
        near(b, a, scale=25)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [(35, 35), (8, 8), (1, 5), (5, 1), (2, 2), (1, 1), (62, 62), (63, 64), (3, 2000)])
def test_sums_of_neighbours(size: tuple[int, int], dtype: Any) -> None:
    """3 x 3 windows, one apart, with a border: whole planes at once, up to a size, and their gradient by the same loop."""
    rng = np.random.default_rng(0)
    given = {"kernel": (3, 3), "stride": (1, 1), "padding": ((1, 1), (1, 1)), "scale": rng.normal(size=size).astype(dtype)}
    x, before = (rng.normal(size=(2, 3, *size)).astype(dtype) for _ in range(2))
    a, b = np.full_like(x, 7), np.full_like(x, 7)
    for kernels, out in ((NUMPY, a), (NATIVE, b)):
        kernels.sum_pool2d(x, **given, out=out)
    near(b, a, scale=25)
    for accumulate in (False, True):
        a, b = before.copy(), before.copy()
        for kernels, out in ((NUMPY, a), (NATIVE, b)):
            kernels.sum_pool2d_backward(x, **given, out=out, accumulate=accumulate)
        near(b, a, scale=25)


@pytest.mark.parametrize(("kernel", "stride", "padding", "shape"), [
    ((7, 7), (1, 1), ((0, 0), (0, 0)), (2, 5, 7, 7)),  # global
    ((7, 9), (7, 9), ((0, 0), (0, 0)), (2, 3, 21, 9)),
    ((2, 1500), (1, 400), ((1, 0), (300, 0)), (1, 2, 4, 3000)),  # wider than the loops' buffer
    ((3, 3), (1, 1), ((1, 1), (1, 1)), (1, 2, 5, 900)),  # several chunks
    ((2, 40), (1, 60), ((0, 0), (5, 0)), (1, 2, 3, 20_000)),
])
def test_large_windows_and_rows(kernel: tuple[int, int], stride: tuple[int, int], padding: Any, shape: Any) -> None:
    rng = np.random.default_rng(0)
    size = tuple((n + sum(p) - k) // s + 1 for n, p, k, s in zip(shape[2:], padding, kernel, stride))
    x, scale, dy = rng.normal(size=shape), rng.normal(size=size), rng.normal(size=(*shape[:2], *size))
    covered = tuple((p[0], (o - 1) * s + k - n - p[0]) for n, p, k, s, o in zip(shape[2:], padding, kernel, stride, size))
    seen = np.ascontiguousarray(x[..., : shape[2] + min(0, covered[0][1]), : shape[3] + min(0, covered[1][1])])
    around = tuple((low, max(0, high)) for low, high in covered)
    for run in (
        lambda s, out: s.sum_pool2d(seen, kernel, stride, around, scale, out=out),
        lambda s, out: s.max_pool2d(seen, kernel, stride, around, out=out, index=np.empty(out.shape, np.uint32)),
    ):
        a, b = np.empty_like(dy), np.empty_like(dy)
        run(NUMPY, a)
        run(NATIVE, b)
        near(b, a, scale=1000)
    index = np.empty(dy.shape, np.uint32)
    NUMPY.max_pool2d(seen, kernel, stride, around, out=np.empty_like(dy), index=index)
    for run in (
        lambda s, out: s.sum_pool2d_backward(dy, kernel, stride, around, scale, out=out),
        lambda s, out: s.max_pool2d_backward(dy, index, kernel, stride, around, out=out),
    ):
        a, b = np.empty_like(seen), np.empty_like(seen)
        run(NUMPY, a)
        run(NATIVE, b)
        near(b, a, scale=1000)


def test_an_index_of_padding_gives_its_gradient_to_nobody() -> None:
    dy, index = np.ones((1, 1, 2, 2)), np.zeros((1, 1, 2, 2), np.uint8)
    a, b = np.empty((1, 1, 2, 2)), np.empty((1, 1, 2, 2))
    for kernels, out in ((NUMPY, a), (NATIVE, b)):
        kernels.max_pool2d_backward(dy, index, (2, 2), (1, 1), ((1, 0), (1, 0)), out=out)
    np.testing.assert_array_equal(a, [[[[1, 0], [0, 0]]]])
    np.testing.assert_array_equal(b, a)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(40))
def test_convolution(seed: int, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    random, given, shape, size = windows(2000 + seed, True)
    monkeypatch.setattr("taskflow.kernels.native._convolutions._BLOCK_NBYTES", random.choice((1, 2000, 1 << 21)))
    groups = random.choice((1, 1, 2))
    shape = (shape[0], shape[1] * groups, *shape[2:])
    rng, outputs, kernel = np.random.default_rng(seed), groups * random.randint(1, 4), given.pop("kernel")
    x, weight, bias, dy = (rng.normal(size=s).astype(dtype) for s in (
        shape, (outputs, shape[1] // groups, *kernel), (outputs,), (shape[0], outputs, *size)
    ))
    a, b = np.full_like(dy, 7), np.full_like(dy, 7)
    NUMPY.conv2d(x, weight, bias, **given, groups=groups, out=a)
    NATIVE.conv2d(x, weight, bias, **given, groups=groups, out=b)
    near(b, a, scale=80)
    for accumulate in (False, True):
        a, b = x.copy(), x.copy()
        NUMPY.conv2d_backward_data(dy, weight, **given, groups=groups, out=a, accumulate=accumulate)
        NATIVE.conv2d_backward_data(dy, weight, **given, groups=groups, out=b, accumulate=accumulate)
        near(b, a, scale=80)
        a, b = weight.copy(), weight.copy()
        NUMPY.conv2d_backward_weight(x, dy, **given, groups=groups, out=a, accumulate=accumulate)
        NATIVE.conv2d_backward_weight(x, dy, **given, groups=groups, out=b, accumulate=accumulate)
        near(b, a, scale=400)


# ---- channels ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(0, 3, 4), (1, 1, 1), (4, 17, 1), (3, 5, 2), (2, 3, 0), (3, 4, 49), (2, 33, 100)])
def test_channels(shape: tuple[int, int, int], dtype: Any) -> None:
    rng = np.random.default_rng(sum(shape))
    x, dy, before = (rng.normal(size=shape).astype(dtype) for _ in range(3))
    scale, offset, total = (rng.normal(size=shape[1]).astype(dtype) for _ in range(3))
    terms = shape[0] * shape[2] + 1
    for accumulate in (False, True):
        a, b = total.copy(), total.copy()
        NUMPY.channel_sums(x, a, accumulate)
        NATIVE.channel_sums(x, b, accumulate)
        near(b, a, scale=terms)
        a, b = before.copy(), before.copy()
        NUMPY.channel_affine(x, scale, offset, a, accumulate)
        NATIVE.channel_affine(x, scale, offset, b, accumulate)
        near(b, a, scale=4)
    for run in (lambda s, out: s.channel_moments(x, out), lambda s, out: s.channel_products(x, dy, out)):
        one, other = np.full((2, shape[1]), 7.0), np.full((2, shape[1]), 7.0)
        run(NUMPY, one)
        run(NATIVE, other)
        near(other, one, scale=terms)


def test_moments_stay_exact_far_from_zero() -> None:
    """The variance of float32 values 20,000 standard deviations from zero, which is the difference of two large sums."""
    x = np.random.default_rng(0).normal(10_000, 0.5, size=(8, 3, 1000)).astype(np.float32)
    for kernels in (NUMPY, NATIVE):
        out = np.empty((2, 3))
        kernels.channel_moments(x, out)
        mean, square = out / 8000
        np.testing.assert_allclose(square - mean**2, x.astype(np.float64).var(axis=(0, 2)), rtol=1e-6)


# ---- arguments --------------------------------------------------------------------------------------------------------

X, Y, I = np.zeros((1, 2, 4, 4)), np.zeros((1, 2, 2, 2)), np.zeros((1, 2, 2, 2), np.uint8)
NONE = ((0, 0), (0, 0))


@pytest.mark.parametrize(("call", "error"), [
    (lambda: NATIVE.max_pool2d(X[0], (2, 2), (2, 2), NONE, out=Y, index=I), ValueError),
    (lambda: NATIVE.max_pool2d(X, (2, 2), (2, 2), NONE, out=Y[:, :1], index=I), ValueError),
    (lambda: NATIVE.max_pool2d(X, (2, 2), (2, 2), NONE, out=Y, index=I.astype(np.int8)), TypeError),
    (lambda: NATIVE.max_pool2d(X, (20, 20), (2, 2), NONE, out=Y, index=I), TypeError),
    (lambda: NATIVE.max_pool2d(X, (2, 2), (2, 2), NONE, out=Y, index=np.broadcast_to(I[:1, :1], I.shape)), ValueError),
    (lambda: NATIVE.max_pool2d(X, (2, 2), (0, 2), NONE, out=Y, index=I), ValueError),
    (lambda: NATIVE.max_pool2d(X, (2, 2), (2, 2), NONE, out=Y.astype(np.float32), index=I), ValueError),
    (lambda: NATIVE.max_pool2d(X.astype(np.int64), (2, 2), (2, 2), NONE, out=Y, index=I), TypeError),
    (lambda: NATIVE.max_pool2d_backward(Y, I[:, :1], (2, 2), (2, 2), NONE, out=X), ValueError),
    (lambda: NATIVE.sum_pool2d(X, (2, 2), (2, 2), NONE, np.ones((2, 3)), out=Y), ValueError),
    (lambda: NATIVE.sum_pool2d(X.swapaxes(2, 3), (2, 2), (2, 2), NONE, np.ones((2, 2)), out=Y), ValueError),
    (lambda: NATIVE.channel_moments(X, np.zeros((2, 2))), ValueError),
    (lambda: NATIVE.channel_moments(X[0], np.zeros((2, 3))), ValueError),
    (lambda: NATIVE.channel_affine(X[0], *[np.zeros(4)] * 2, out=np.broadcast_to(0.0, (2, 4, 4))), ValueError),
])
def test_arguments_that_would_be_misread_are_refused(call: Callable[[], None], error: type[Exception]) -> None:
    with pytest.raises(error):
        call()


def test_any_index_is_safe() -> None:
    """What no forward pass would write does not touch memory outside of the gradient."""
    whole = np.zeros((3, 1, 6, 6))
    index = np.full((1, 1, 3, 3), 255, np.uint8)
    NATIVE.max_pool2d_backward(np.ones((1, 1, 3, 3)), index, (2, 2), (2, 2), NONE, out=whole[1:2])
    assert not whole[0].any() and not whole[2].any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(12))
def test_a_channels_numbers(seed: int, dtype: Any) -> None:
    rng = np.random.default_rng(seed)
    channels, groups, count = int(rng.integers(1, 70)), int(rng.integers(1, 4)), int(rng.integers(2, 500))
    values = rng.standard_normal((groups, count, channels)) * rng.uniform(0.1, 3) + rng.standard_normal(channels)
    moments = np.stack([values.sum(1), (values**2).sum(1)], axis=1)
    moments[0, :, 0] = count, count  # a channel that does not vary
    if channels > 2:
        moments[0, 1, 1], moments[-1, 0, 2] = 0.0, np.nan  # a variance that rounding made negative
    weight, bias, mean = (rng.standard_normal(channels).astype(dtype) for _ in range(3))
    variance, products = rng.uniform(0.5, 2, channels).astype(dtype), rng.standard_normal((2, channels))
    found = []
    for kernels in (NUMPY, NATIVE):
        scales, changes, new = np.full((2, channels), 7, dtype), np.full((5, channels), 7.0), np.full((2, channels), 7, dtype)
        kernels.channel_scales(moments[0], count, 1e-3, weight, bias, out=scales)
        kernels.channel_changes(moments[0], count, 1e-3, weight, products, out=changes)
        kernels.channel_running(moments, count, 0.1, count / (count - 1), mean, variance, new[0], new[1])
        found.append((scales, changes, new))
    for one, other, scale in zip(*found, (40, 1e6, 10)):
        near(one, other, scale)


def test_a_channels_numbers_of_wrong_shapes_are_refused() -> None:
    sums, weight = np.zeros((2, 4)), np.zeros(4, np.float32)
    for call in (
        lambda: NATIVE.channel_scales(sums, 3, 1e-3, weight, weight[:3], np.zeros((2, 4), np.float32)),
        lambda: NATIVE.channel_changes(sums[:, :3], 3, 1e-3, weight, sums, np.zeros((5, 4))),
        lambda: NATIVE.channel_running(sums, 3, 0.1, 1.5, weight, weight, weight.copy(), weight.copy()),
        lambda: NATIVE.channel_running(sums[None, :, :3], 3, 0.1, 1.5, weight, weight, weight.copy(), weight.copy()),
    ):
        with pytest.raises(ValueError):
            call()
