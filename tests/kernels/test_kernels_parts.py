"""Parts of arrays are copied and added as numpy does it, however they lie in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from taskflow.kernels import NumpyKernels

native = pytest.importorskip("taskflow.kernels.native.kernels", reason="the compiled kernels are not built")
_parts = pytest.importorskip("taskflow.kernels.native._parts")

NUMPY, NATIVE = NumpyKernels(), native.NativeKernels()
Array = Any


def some_part(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Array:
    """A part of ``shape`` of a larger array, with its dimensions in any order, some backwards or with steps."""
    order = rng.permutation(len(shape))
    steps = rng.integers(1, 3, len(shape)) * rng.choice([-1, 1, 1], len(shape))
    spare = rng.integers(0, 3, len(shape))
    whole = np.zeros([int(shape[i] * abs(steps[i]) + spare[i]) for i in order], dtype)
    view = whole.transpose(np.argsort(order))
    stepped = view[(..., *[slice(None, None, int(step)) for step in steps])]
    return stepped[(..., *[slice(0, size) for size in shape])]


def filled(part: Array, rng: np.random.Generator) -> Array:
    part[...] = rng.integers(0, 1000, part.shape)
    return part


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64, np.uint32, np.int16, np.float16, bool, np.complex64])
def test_any_part_is_copied_and_added(dtype: Any) -> None:
    rng = np.random.default_rng(7)
    for _ in range(150):
        sizes = rng.choice([0, 1, 2, 3, 5, 8, 17], rng.integers(0, 6), p=[0.02, 0.2, 0.2, 0.2, 0.15, 0.13, 0.1])
        shape = tuple(int(n) for n in sizes)
        x, out = (filled(some_part(rng, shape, dtype), rng) for _ in range(2))
        want = out + x
        NATIVE.add(x, out)
        np.testing.assert_array_equal(out, want)
        NATIVE.copy(x, out)
        np.testing.assert_array_equal(out, x)


def test_nothing_but_the_part_is_written() -> None:
    whole = np.zeros((4, 5, 6), np.float32)
    for kernel in (NATIVE.add, NATIVE.copy):
        whole[...] = 0
        kernel(np.ones((2, 3, 1), np.float32), whole[1:3, 1:4, 2:3])
        assert whole.sum() == whole[1:3, 1:4, 2].sum() == 6


def test_the_loops_take_what_is_cut_and_leave_the_rest_to_numpy() -> None:
    whole, flat = np.zeros((4, 5, 6), np.float32), np.ones((4, 2, 6), np.float32)
    assert _parts.add_part(flat, whole[:, 1:3]) and _parts.copy_part(flat, whole[:, 1:3])
    assert not _parts.add_part(flat.astype(np.float64), whole[:, 1:3])  # numpy converts
    assert not _parts.add_part(np.ones(6, np.float32), whole[:, 1:3])  # numpy repeats it
    swapped = np.arange(6, dtype=">f4")
    assert not _parts.copy_part(swapped, swapped.copy()) and not _parts.add_part(swapped, swapped.copy())
    assert not _parts.copy_part(np.zeros(3, object), np.zeros(3, object))
    NATIVE.add(np.ones(6), whole[:, 1:3])
    assert whole[:, 1:3].min() == 2.0
    frozen = np.zeros(3, np.float32)
    frozen.flags.writeable = False
    for kernel in (NATIVE.add, NATIVE.copy, NUMPY.add, NUMPY.copy):
        with pytest.raises(ValueError, match="read-only"):
            kernel(np.ones(3, np.float32), frozen)
