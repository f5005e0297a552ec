"""cuDNN's graphs say what our convolutions are: its frontend, which needs no GPU to describe them, infers our shapes."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from random import Random
from typing import Any

import fake_cudnn
import numpy as np
import pytest
from host_device import compiles, host_kernels

from taskflow.kernels import NumpyKernels
from taskflow.kernels.gpu import convolutions
from taskflow.kernels.gpu.convolutions import VARIANTS, Convolutions, Direction, Sliding, describe
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
    return Sliding(direction, image, weight, output, stride, padding, dilation)


STEPS = (
    "validate", "build_operation_graph", "create_execution_plans", "deselect_numeric_notes", "deselect_workspace_greater_than",
    "check_support", "build_plans", "get_workspace_size", "execute",
)


def test_the_frontend_has_what_we_call() -> None:
    cudnn = frontend()
    assert all(hasattr(cudnn.pygraph, name) for name in (*STEPS, *(direction.value for direction in Direction)))
    assert hasattr(cudnn, "create_handle") and hasattr(cudnn, "set_stream") and hasattr(cudnn.heur_mode, "FALLBACK")


@pytest.mark.parametrize("direction", list(Direction))
def test_graphs_are_described_with_our_shapes(direction: Direction) -> None:
    cudnn = frontend()
    for seed in range(10):
        sliding = drawn(seed, direction)
        for variant in {v for several in VARIANTS.values() for v in several}:
            graph, tensors = describe(cudnn, sliding, variant)
            assert tuple(tuple(t.get_dim()) for t in tensors) == sliding.operands
            kinds = [getattr(cudnn.data_type, name) for name in (variant.operands, variant.operands, variant.result)]
            assert [t.get_data_type() for t in tensors] == kinds
            dense = [tuple(n // 4 for n in np.empty(shape, np.float32).strides) for shape in sliding.operands]
            assert [tuple(t.get_stride()) for t in tensors] == dense
            if hasattr(graph, "nodes"):
                assert [node.node_type.name for node in graph.nodes] == [direction.value.upper()]
            else:  # up to 1.24 the frontend checks a graph by itself; later ones ask a GPU
                graph.validate()
            assert all(hasattr(cudnn.numerical_note, name) for name in variant.without)


@pytest.mark.parametrize("seed", range(12))
def test_float32_agrees_with_the_reference(seed: int, kernels: GPUKernels, near: float = 1e-4) -> None:
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
        least = near if near < 1e-3 else 0.15  # in bfloat16: four deviations of a sum of 75
        np.testing.assert_allclose(actual, expected, rtol=near, atol=least)


def refuses(*kinds: str) -> Any:
    """Refuses plans of these kinds of operands and result."""
    wanted = {tuple(getattr(fake_cudnn.data_type, one) for one in kind.split()) for kind in kinds}
    return lambda operands, result, _: (operands, result) in wanted


@pytest.mark.skipif(not compiles(), reason="no C++20 compiler: the GPU's kernels cannot be run on the host")
@pytest.mark.parametrize(("precision", "refuse", "fail", "used"), [
    ("fp32", lambda *_: False, 0, "FLOAT FLOAT"),
    ("fp32", lambda _, __, unwanted: "TENSOR_CORE" in unwanted, 0, "FLOAT FLOAT"),
    ("fp32", lambda *_: True, 0, ""),
    ("fp32", lambda *_: False, 3, ""),
    ("tf32", lambda _, __, unwanted: "DOWN_CONVERT_INPUTS" in unwanted, 0, "FLOAT FLOAT"),
    ("bf16", lambda *_: False, 0, "BFLOAT16 FLOAT"),
    ("bf16", refuses("BFLOAT16 FLOAT"), 0, "BFLOAT16 BFLOAT16"),
    ("bf16", refuses("BFLOAT16 FLOAT", "BFLOAT16 BFLOAT16"), 0, "FLOAT FLOAT"),
])
def test_plans_of_a_frontend_like_cudnns(
    precision: str, refuse: Any, fail: int, used: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    frontend = fake_cudnn.Frontend(refuse, fail)
    monkeypatch.setitem(sys.modules, "cudnn", frontend)
    for seed in range(4):
        kernels = host_kernels()
        stream = type("Stream", (), {"ptr": 77})
        kernels.convolutions = Convolutions(kernels.xp, stream, precision, kernels.rounded, kernels.widen)
        frontend.fail, frontend.executed = fail, []
        test_float32_agrees_with_the_reference(seed, kernels, 3e-2 if used.startswith("BFLOAT16") else 1e-4)
        kinds = [tuple(getattr(fake_cudnn.data_type, one) for one in used.split())] * 3 if used else []
        assert frontend.executed == kinds and frontend.stream == 77
        said = capsys.readouterr().err
        assert len(kernels.convolutions.declined) == (0 if used else 3) and said.count("cuDNN declines") == (0 if used else 1)


@pytest.mark.skipif(not compiles(), reason="no C++20 compiler: the GPU's kernels cannot be run on the host")
def test_what_fails_after_it_has_run_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    frontend, kernels = fake_cudnn.Frontend(), host_kernels()
    monkeypatch.setitem(sys.modules, "cudnn", frontend)
    kernels.convolutions = Convolutions(kernels.xp, type("S", (), {"ptr": 1}), "fp32", kernels.rounded, kernels.widen)
    x, w, y = (kernels.xp.zeros(s, np.float32) for s in ((2, 4, 5, 5), (3, 4, 3, 3), (2, 3, 3, 3)))
    given = Direction.FORWARD, x, w, y, (1, 1), ((0, 0), (0, 0)), (1, 1)
    assert kernels.convolutions.run(*given)
    frontend.fail = 1
    with pytest.raises(RuntimeError, match="EXECUTION_FAILED"):
        kernels.convolutions.run(*given)
    assert kernels.convolutions.run(*given)


@pytest.mark.skipif(not compiles(), reason="no C++20 compiler: the GPU's kernels cannot be run on the host")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("accumulate", [False, True])
def test_arrays_that_begin_anywhere_are_copied(precision: str, accumulate: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A weight within its layer's memory, or the second sample of a small image, begins at any multiple of 4 bytes."""
    frontend, plain = fake_cudnn.Frontend(), NumpyKernels()
    monkeypatch.setitem(sys.modules, "cudnn", frontend)
    numbers = np.random.default_rng(0)
    for apart in range(4):
        kernels = host_kernels()
        kernels.convolutions = Convolutions(kernels.xp, type("S", (), {"ptr": 1}), precision, kernels.rounded, kernels.widen)
        given, there = [], []
        for shape in ((2, 4, 5, 5), (3, 4, 3, 3), (2, 3, 3, 3)):
            size = int(np.prod(shape))
            block = kernels.xp.zeros(size + 8, np.float32)
            first = -(block.data.ptr // 4) % 4 + apart
            array = block[first : first + size].reshape(shape)
            assert array.data.ptr % 16 == 4 * apart
            given.append(numbers.normal(size=shape).astype(np.float32))
            kernels.device.upload(given[-1], array)
            there.append(array)
        slides = ((1, 1), ((0, 0), (0, 0)), (1, 1), 1)
        for of, (x, w, y) in ((plain, given), (kernels, there)):
            of.conv2d(x, w, None, *slides, out=y)
            of.conv2d_backward_data(y, w, *slides, out=x, accumulate=accumulate)
            of.conv2d_backward_weight(x, y, *slides, out=w, accumulate=accumulate)
        near = 1e-4 if precision == "fp32" else 0.1
        for expected, array in zip(given, there):
            found = kernels.device.to_host(array)
            assert np.linalg.norm(found - expected) <= near * np.linalg.norm(expected)
        assert not kernels.convolutions.declined and len(frontend.executed) == 3
        frontend.executed.clear()


def test_a_frontend_that_does_not_work_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = host_kernels()
    monkeypatch.setattr(fake_cudnn.Frontend, "create_handle", lambda _: 1 / 0)
    monkeypatch.setitem(sys.modules, "cudnn", fake_cudnn.Frontend())
    monkeypatch.setattr(type(kernels.device), "compute", type("S", (), {"ptr": 1}), raising=False)
    monkeypatch.setattr(type(kernels.device), "precision", "fp32", raising=False)
    kernels.take_cudnn()
    assert kernels.convolutions is None and kernels.without_cudnn.startswith("ZeroDivisionError")


def test_libcudnn_is_loaded_from_where_the_frontend_does_not_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(convolutions.ctypes, "CDLL", lambda path, mode: asked.append(path))
    own, brought = tmp_path / "own", tmp_path / "brought"
    library = brought / "nvidia" / "cudnn" / "lib" / "libcudnn.so.9"
    monkeypatch.setattr(convolutions.sysconfig, "get_path", lambda _: str(own))
    monkeypatch.setattr(sys, "path", [str(own), str(brought)])
    convolutions.load_cudnn()
    assert not asked
    library.parent.mkdir(parents=True)
    library.touch()
    convolutions.load_cudnn()
    assert asked == [str(library)]
    shutil.copytree(brought, own)
    convolutions.load_cudnn()
    assert len(asked) == 1, "the frontend finds that one, and two of the same name would be loaded"


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
    narrow, sums = kernels.xp.empty(300, np.uint16), kernels.xp.empty(300, np.float32)
    kernels.device.upload(np.arange(300, dtype=np.uint16), narrow)
    kernels.device.upload(np.ones(300, np.float32), sums)
    kernels.widen(narrow, sums, True)
    assert np.array_equal(kernels.device.to_host(sums), 1 + (np.arange(300, dtype=np.uint32) << 16).view(np.float32))
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
