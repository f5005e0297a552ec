"""A GPU that cannot be used says why, and what mends it, in one line: drivers, compilers, memory, and what shares the card."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from host_device import compiles, host_kernels
from language_model import model, undivided
from strict_arrays import xp

from taskflow.kernels import DeviceMissing
from taskflow.kernels.gpu import gpu_kernels, gpu_missing
from taskflow.kernels.gpu.diagnostics import remedy
from taskflow.rules import SGD
from taskflow.runtime.executor import Executor


@pytest.mark.parametrize(("said", "mends"), [
    ("cudaErrorInsufficientDriver: CUDA driver version is insufficient for CUDA runtime version", "soap-taskflow[gpu-cuda12]"),
    ("cudaErrorNoDevice: no CUDA-capable device is detected", "CUDA_VISIBLE_DEVICES"),
    ("Out of memory allocating 1,024 bytes (allocated so far: 512 bytes).", "fewer ranks"),
    ("CUDA_ERROR_OUT_OF_MEMORY: out of memory", "fewer ranks"),
    ("cudaErrorDevicesUnavailable: CUDA-capable device(s) is/are busy or unavailable", "nvidia-smi -c 0"),
    ("cudaErrorMpsConnectionFailed: MPS client failed to connect to the MPS control daemon", "MPS daemon"),
    ("libnvrtc.so.13: cannot open shared object file: No such file or directory", "cupy-cuda13x[ctk]"),
    ("cuBLAS is not found (libcublas.so.13 or libcublas.so.12): pip install nvidia-cublas", "cuBLAS is missing"),
    ("cudaErrorNoKernelImageForDevice: no kernel image is available for execution on the device", "too old or too new"),
    ("cudaErrorSystemDriverMismatch: system has unsupported display driver / cuda driver combination", "start the machine again"),
    ("libcuda.so.1: cannot open shared object file", "nvidia-smi shows a GPU"),
    ("something new", "taskflow doctor"),
])
def test_remedies(said: str, mends: str) -> None:
    assert mends in remedy(RuntimeError(said))


def like_cupy(monkeypatch: pytest.MonkeyPatch, count: Any, device: Any = None) -> None:
    """A module in CuPy's place, whose driver answers, or fails as it is told to."""
    module: Any = ModuleType("cupy")
    module.cuda = SimpleNamespace(runtime=SimpleNamespace(getDeviceCount=count), Device=device)
    monkeypatch.setitem(sys.modules, "cupy", module)


def failing(message: str) -> Any:
    def fail(*_: Any) -> Any:
        raise RuntimeError(message)

    return fail


def test_a_driver_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    like_cupy(monkeypatch, failing("cudaErrorInsufficientDriver: CUDA driver\nversion is insufficient"))
    said = gpu_missing()
    assert said is not None and len(said.splitlines()) == 1
    assert said.startswith("no GPU can be used: the CUDA driver does not answer (RuntimeError: cudaError") and "update it" in said
    like_cupy(monkeypatch, lambda: 0)
    assert "CUDA shows this process none" in str(gpu_missing())


def test_a_card_that_takes_no_other_process(monkeypatch: pytest.MonkeyPatch) -> None:
    like_cupy(monkeypatch, lambda: 1, failing("cudaErrorDevicesUnavailable: device(s) is/are busy or unavailable"))
    with pytest.raises(DeviceMissing, match=r"^GPU 0 cannot be used: RuntimeError: cudaErrorDevicesUnavailable.*exclusive"):
        gpu_kernels()
    with pytest.raises(ValueError, match="precision must be fp32, tf32 or bf16, got 'fp8'"):
        gpu_kernels("fp8")


@pytest.mark.skipif(not compiles(), reason="no C++20 compiler: the GPU's kernels cannot be run on the host")
def test_a_step_that_does_not_fit_says_how_much_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, kernels = model(), host_kernels()
    run = Executor(graph, undivided(graph), SGD(0.1), kernels=kernels)
    arena = run.program("train").plan.memory.nbytes
    plain = xp.empty

    def full(shape: Any, *rest: Any) -> Any:
        if shape == arena:
            raise MemoryError("Out of memory allocating 5 bytes")
        return plain(shape, *rest)

    monkeypatch.setattr(type(xp), "empty", staticmethod(full), raising=False)
    with pytest.raises(MemoryError, match=r"host emulation has no room for the 0\.\d\d GB .*allocating 5 bytes\); take a smaller"):
        Executor(graph, undivided(graph), SGD(0.1), kernels=kernels)


@pytest.mark.gpu
def test_the_card_here_works() -> None:
    if missing := gpu_missing():
        pytest.skip(missing)
    kernels = gpu_kernels()
    kernels.try_out()
    assert kernels.without_cudnn == "" or kernels.convolutions is None
