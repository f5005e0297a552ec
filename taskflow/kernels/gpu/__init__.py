"""The kernel set for GPUs. Importing it needs no GPU and no CuPy; `gpu_kernels` does."""

from __future__ import annotations

import os

from taskflow.kernels.device import DeviceMissing
from taskflow.kernels.gpu.kernels import GPUKernels
from taskflow.kernels.gpu.place import choose_gpu

INSTALL = 'pip install "soap-taskflow[gpu]"'
PRECISION_VARIABLE = "TASKFLOW_PRECISION"


def gpu_missing() -> str | None:
    """None if a GPU can be used, else one sentence that says what is missing and what mends it."""
    try:
        _visible()
    except DeviceMissing as error:
        return str(error)
    return None


def gpu_kernels(precision: str | None = None) -> GPUKernels:
    """The kernels of this rank's GPU. ``precision``: fp32, tf32 or bf16 (default: TASKFLOW_PRECISION, else fp32), see
    `CupyDevice`.

    Raises DeviceMissing, with one sentence, if CuPy, a driver or a GPU is missing; ValueError for another precision or GPU.
    """
    visible = _visible()
    from taskflow.kernels.gpu.device import CupyDevice

    wanted = precision or os.environ.get(PRECISION_VARIABLE) or "fp32"
    kernels = GPUKernels(CupyDevice(choose_gpu(os.environ, visible), wanted))
    kernels.take_cudnn()
    return kernels


def _visible() -> int:
    """How many GPUs this process sees; DeviceMissing if none."""
    try:
        import cupy
    except ImportError as error:
        raise DeviceMissing(f"no GPU can be used: CuPy cannot be imported ({_line(error)}); {INSTALL}") from error
    try:
        count = int(cupy.cuda.runtime.getDeviceCount())
    except Exception as error:  # CuPy's own error types cannot be named without it
        raise DeviceMissing(
            f"no GPU can be used: the CUDA driver does not answer ({_line(error)}); install NVIDIA's driver for CUDA 13, or run "
            "where nvidia-smi shows a GPU"
        ) from error
    if count < 1:
        raise DeviceMissing("no GPU can be used: CUDA shows this process none; see CUDA_VISIBLE_DEVICES and nvidia-smi")
    return count


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
