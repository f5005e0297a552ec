"""The counter-based generator: known answers, independence of the box, agreement of the two kernel sets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from taskflow.kernels import NumpyKernels, native_built
from taskflow.kernels.definitions.random import philox, words_at

SETS: list[Any] = [NumpyKernels()]
if native_built():
    from taskflow.kernels.native.kernels import NativeKernels

    SETS.append(NativeKernels())
each = pytest.mark.parametrize("kernels", SETS, ids=lambda kernels: kernels.name)
KEY = (0x243F6A88, 0x85A308D3)


@pytest.mark.parametrize(
    ("counter", "key", "want"),
    [  # the known answers published with Random123
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_known_answers(counter: Any, key: Any, want: Any) -> None:
    assert tuple(int(word) for word in philox(tuple(np.uint64(c) for c in counter), key)) == want


@each
def test_uniform_known_answers(kernels: Any) -> None:
    words = np.array([0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8], np.uint64)
    double, single = np.empty(4), np.empty(4, np.float32)
    kernels.uniform((0, 0), 0, (4,), (0,), double)
    kernels.uniform((0, 0), 0, (4,), (0,), single)
    np.testing.assert_array_equal(double, words / 2**32)
    np.testing.assert_array_equal(single, (words >> np.uint64(8)) / 2**24)


@each
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", ["uniform", "normal"])
def test_a_box_equals_the_slice_of_the_whole(kernels: Any, kind: str, dtype: Any) -> None:
    draw = getattr(kernels, kind)
    rng = np.random.default_rng(5)
    for shape in ((1000,), (7, 300), (5, 6, 11), (4, 1, 3, 9), ()):
        whole = np.empty(shape, dtype)
        draw(KEY, 3, shape, (0,) * len(shape), whole)
        for _ in range(12):
            lo = tuple(int(rng.integers(0, size + 1)) for size in shape)
            hi = tuple(int(rng.integers(low, size + 1)) for low, size in zip(lo, shape))
            if rng.random() < 0.3:  # whole trailing dimensions
                lo, hi = (*lo[:1], *(0 for _ in lo[1:])), (*hi[:1], *shape[1:])
            box = np.full(tuple(h - a for a, h in zip(lo, hi)), 7, dtype)
            draw(KEY, 3, shape, lo, box)
            np.testing.assert_array_equal(box, whole[tuple(slice(a, h) for a, h in zip(lo, hi))])


@each
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_moments_and_bounds(kernels: Any, dtype: Any) -> None:
    n = 200_000
    out = np.empty(n, dtype)
    kernels.uniform(KEY, 1, (n,), (0,), out)
    assert out.min() >= 0 and out.max() < 1
    assert abs(out.mean() - 0.5) < 0.005 and abs(out.var() - 1 / 12) < 0.002
    kernels.normal(KEY, 1, (n,), (0,), out)
    assert np.isfinite(out).all()
    assert abs(out.mean()) < 0.012 and abs(out.var() - 1) < 0.02 and abs((out**4).mean() - 3) < 0.15
    assert abs(np.mean(out[::2] * out[1::2])) < 0.02  # the two of a pair do not know of each other


@each
def test_streams_and_keys_differ(kernels: Any) -> None:
    drawn = []
    for key, stream in ((KEY, 0), (KEY, 1), (KEY, 2**32 - 1), ((KEY[0], 0), 0), ((0, KEY[1]), 0)):
        drawn.append(np.empty(64))
        kernels.uniform(key, stream, (64,), (0,), drawn[-1])
    assert len(np.unique(np.concatenate(drawn))) == 5 * 64


@each
def test_positions_beyond_32_bits(kernels: Any) -> None:
    shape, lo = (2**20, 2**20, 4), (2**19 + 1, 2**18 + 1, 1)
    out = np.empty((2, 2, 2))
    kernels.uniform(KEY, 9, shape, lo, out)
    start = [(lo[0] * 2**20 + lo[1]) * 4 + 1, (lo[0] * 2**20 + lo[1] + 1) * 4 + 1]
    want = words_at(KEY, 9, np.array([[p, p + 1] for p in start], np.uint64)) / 2**32
    np.testing.assert_array_equal(out[0], want)


@pytest.mark.skipif(not native_built(), reason="the compiled kernels are not built")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_sets_agree(dtype: Any) -> None:
    for shape, lo, box in (((5000,), (3,), (4001,)), ((50, 70), (1, 2), (40, 61)), ((3, 4, 5), (0, 0, 0), (3, 4, 5))):
        one, other = np.empty(box, dtype), np.empty(box, dtype)
        SETS[0].uniform(KEY, 2, shape, lo, one)
        SETS[1].uniform(KEY, 2, shape, lo, other)
        np.testing.assert_array_equal(other, one)
        SETS[0].normal(KEY, 2, shape, lo, one)
        SETS[1].normal(KEY, 2, shape, lo, other)
        np.testing.assert_allclose(other, one, rtol=0, atol=1e-6 if dtype is np.float32 else 1e-14)
