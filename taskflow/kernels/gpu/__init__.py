"""The kernel set for GPUs. Importing it needs no GPU and no CuPy; `gpu_kernels` does."""

from __future__ import annotations

import os

from taskflow.kernels.device import DeviceMissing
from taskflow.kernels.gpu.diagnostics import INSTALL, line, remedy
from taskflow.kernels.gpu.kernels import GPUKernels
from taskflow.kernels.gpu.place import choose_gpu

PRECISION_VARIABLE = "TASKFLOW_PRECISION"


def gpu_missing() -> str | None:
    """Return None if a GPU can be used, else a sentence that says what is missing and how to get it."""
    try:
        _visible()
    except DeviceMissing as error:
        return str(error)
    return None


def gpu_kernels(precision: str | None = None) -> GPUKernels:
    """Return the kernels of this rank's GPU. ``precision``: fp32, tf32 or bf16 (default: TASKFLOW_PRECISION, else fp32), see
    `CupyDevice`. Runs one kernel and one matrix product, so that whatever is missing raises its error here.

    Raises DeviceMissing, with one sentence, if CuPy, a driver, a GPU, or something they need is missing; ValueError for an
    unknown precision or GPU.
    """
    visible = _visible()
    from taskflow.kernels.gpu.device import CupyDevice

    wanted = precision or os.environ.get(PRECISION_VARIABLE) or "fp32"
    index = choose_gpu(os.environ, visible)
    try:
        kernels = GPUKernels(CupyDevice(index, wanted))
        kernels.try_out()
    except (ValueError, DeviceMissing):
        raise
    except Exception as error:  # CuPy's own error types cannot be named without it
        raise DeviceMissing(f"GPU {index} cannot be used: {line(error)}; {remedy(error)}") from error
    kernels.take_cudnn()
    return kernels


def _visible() -> int:
    """Number of GPUs that this process sees. Raises DeviceMissing if there are none."""
    try:
        import cupy
    except Exception as error:  # not only ImportError: a library that it opens may be broken
        raise DeviceMissing(f"no GPU can be used: CuPy cannot be imported ({line(error)}); {INSTALL}") from error
    try:
        count = int(cupy.cuda.runtime.getDeviceCount())
    except Exception as error:
        raise DeviceMissing(f"no GPU can be used: the CUDA driver does not answer ({line(error)}); {remedy(error)}") from error
    if count < 1:
        raise DeviceMissing("no GPU can be used: CUDA shows this process none; see CUDA_VISIBLE_DEVICES and nvidia-smi")
    return count
