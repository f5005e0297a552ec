"""cuDNN's graphs say what our convolutions are: its frontend, which needs no GPU to describe them, infers our shapes."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

from taskflow.kernels import NumpyKernels
from taskflow.kernels.gpu.convolutions import Direction, Sliding, describe
from taskflow.kernels.gpu.kernels import GPUKernels


def frontend() -> Any:
    return pytest.importorskip("cudnn", reason='cuDNN\'s frontend is not installed: pip install "soap-taskflow[gpu]"')


def drawn(seed: int, direction: Direction) -> Sliding:
    random = Random(seed)
    groups = random.choice((1, 1, 2))
    kernel, stride, dilation = ((random.randint(1, 3), random.randint(1, 3)) for _ in range(3))
    padding = ((random.randint(0, 2), random.randint(0, 2)), (random.randint(0, 2), random.randint(0, 2)))
    output = (random.randint(1, 3), 8 * groups, random.randint(1, 5), random.randint(1, 5))
    size = [(n - 1) * s + (k - 1) * d + 1 - sum(p) for n, s, k, d, p in zip(output[2:], stride, kernel, dilation, padding)]
    if min(size) < 1:
        return drawn(seed + 1000, direction)
    image, weight = (output[0], 4 * groups, *size), (output[1], 4, *kernel)
    return Sliding(direction, image, weight, output, stride, padding, dilation, random.choice(("fp32", "bf16")))


@pytest.mark.parametrize("direction", list(Direction))
def test_graphs_are_described_with_our_shapes(direction: Direction) -> None:
    cudnn = frontend()
    for seed in range(10):
        sliding = drawn(seed, direction)
        graph, tensors = describe(cudnn, sliding)
        assert tuple(tuple(t.dim) for t in tensors) == sliding.operands
        assert [node.node_type.name for node in graph.nodes] == [direction.value.upper()]
        assert tensors[0].data_type == (cudnn.data_type.BFLOAT16 if sliding.precision == "bf16" else cudnn.data_type.FLOAT)
        assert tensors[2].data_type == cudnn.data_type.FLOAT
        assert all(tuple(t.stride) == tuple(n // 4 for n in np.empty(t.dim, np.float32).strides) for t in tensors)


@pytest.mark.parametrize("seed", range(12))
def test_float32_agrees_with_the_reference(seed: int, kernels: GPUKernels) -> None:
    of = drawn(seed, Direction.FORWARD)
    numbers = np.random.default_rng(seed)
    x, w, y = (numbers.normal(size=shape).astype(np.float32) for shape in (of.image, of.weight, of.output))
    groups, add = of.image[1] // of.weight[1], bool(seed % 2)
    found = []
    for each in (NumpyKernels(), kernels):
        dx, dw, dy, out = (each.xp.empty(a.shape, np.float32) for a in (x, w, y, y))
        ours = [each.xp.empty(a.shape, np.float32) for a in (x, w)]
        for array, value in zip((dx, dw, dy, *ours), (x, w, y, x, w)):
            each.device.upload(value, array)
        slides = (of.stride, of.padding, of.dilation, groups)
        each.conv2d(ours[0], ours[1], None, *slides, out=out)
        each.conv2d_backward_data(dy, ours[1], *slides, out=dx, accumulate=add)
        each.conv2d_backward_weight(ours[0], dy, *slides, out=dw, accumulate=add)
        found.append([each.device.to_host(a) for a in (out, dx, dw)])
    for expected, actual in zip(*found):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


class Declines:
    """Convolutions that have no plan for anything."""

    def run(self, *_: Any) -> bool:
        return False


def test_what_cudnn_declines_is_patches_and_products(kernels: GPUKernels) -> None:
    outs = []
    for of in (None, Declines()):
        kernels.convolutions = of  # type: ignore[assignment]
        arrays = [kernels.xp.empty(s, np.float32) for s in ((2, 4, 5, 5), (3, 4, 3, 3), (2, 3, 3, 3))]
        for array, seed in zip(arrays, range(3)):
            kernels.device.upload(np.random.default_rng(seed).normal(size=array.shape).astype(np.float32), array)
        kernels.conv2d(*arrays[:2], None, (1, 1), ((0, 0), (0, 0)), (1, 1), 1, out=arrays[2])
        outs.append(kernels.device.to_host(arrays[2]))
    assert np.array_equal(*outs)


def test_bfloat16_is_the_nearest(kernels: GPUKernels) -> None:
    numbers = np.random.default_rng(0)
    bits = numbers.integers(0, 1 << 32, 5000, dtype=np.uint32)
    x = np.concatenate([bits.view(np.float32), np.array([0, -0.0, np.inf, -np.inf, np.nan, 1 + 2**-8, 1 + 3 * 2**-8], np.float32)])
    there = kernels.xp.empty(x.shape, np.float32)
    kernels.device.upload(x, there)
    found = (kernels.device.to_host(kernels.rounded(there)).astype(np.uint32) << 16).view(np.float32)
    assert np.array_equal(np.isnan(found), np.isnan(x))
    with np.errstate(invalid="ignore", over="ignore"):
        low = (x.view(np.uint32) & 0xFFFF0000).view(np.float32)
        high = ((x.view(np.uint32) & 0xFFFF0000) + np.uint32(0x10000)).view(np.float32)
        fine = np.isfinite(x) & np.isfinite(high)
        wide = x.astype(np.float64)
        nearest = np.minimum(np.abs(low - wide), np.abs(high - wide))
        assert np.array_equal(np.abs(found - wide)[fine], nearest[fine])
    assert found[-2] == 1 and found[-1] == 1 + 2**-6, "ties go to the even number"
