"""Diagnostics: advice on errors of CUDA's libraries, found from their text. Pure: CuPy's own exception types cannot be named
without importing it."""

from __future__ import annotations

NEWEST = 13  # CUDA, for which the packages are that INSTALL brings
EXTRAS = {NEWEST: "gpu", 12: "gpu-cuda12"}  # by CUDA's version: extras of pyproject.toml, of the same packages


def install(cuda: int = NEWEST) -> str:
    """Return the command that installs CuPy, cuDNN, its frontend and NCCL, for drivers that support this CUDA version or a
    newer one."""
    return f"pip install 'soap-taskflow[{EXTRAS[NEWEST if cuda >= NEWEST else min(EXTRAS)]}]'"


INSTALL, INSTALL_12 = install(), install(12)

REMEDIES: tuple[tuple[tuple[str, ...], str], ...] = (
    (("insufficientdriver", "unsupportedptxversion", "cuda driver version is insufficient"),
     f"the NVIDIA driver is not installed or older than CuPy's CUDA: update it, or pip uninstall cupy-cuda13x and {INSTALL_12}"),
    (("nodevice", "no cuda-capable device"),
     "CUDA shows this process no GPU: see CUDA_VISIBLE_DEVICES and nvidia-smi"),
    (("outofmemory", "out of memory", "memoryallocation", "alloc_failed"),
     "the GPU's memory is full: nvidia-smi shows who holds it; start fewer ranks on it, or take a smaller batch"),
    (("devicesunavailable", "devices unavailable", "busy or unavailable", "exclusive"),
     "the GPU takes no other process: its compute mode is exclusive (nvidia-smi -c 0 lets several in), or start MPS's daemon"),
    (("mps",), "the MPS daemon does not answer: start it again, or unset CUDA_MPS_PIPE_DIRECTORY"),
    (("systemnotready", "driver mismatch", "systemdrivermismatch", "compatnotsupported"),
     "driver and libraries do not belong together: start the machine again after an update of the driver"),
    (("nvrtc", "cuda_fp16.h", "cannot open source file"),
     f"CUDA's compiler or its headers are missing: {INSTALL} brings them (cupy-cuda13x[ctk])"),
    (("cublas",), f"cuBLAS is missing or does not start: {INSTALL} brings it"),
    (("nokernelimage", "invaliddevicefunction", "invalid gpu architecture"),
     "this GPU is too old or too new for the installed CUDA: it serves those that CUDA 13 does, from Turing on"),
    (("libcuda", "driver shared library", "cudart", "stub library"),
     "the NVIDIA driver is not installed where the linker looks (libcuda.so.1); run where nvidia-smi shows a GPU"),
)
"""What an error says, in small letters without spaces or as it stands, and what mends it; the first that fits counts."""


def remedy(error: BaseException) -> str:
    """Return one clause on how to correct an error, or on where to look if the error is not known."""
    message = f"{type(error).__name__} {error}".lower()
    for signs, hint in REMEDIES:
        if any(sign in message or sign in message.replace(" ", "") for sign in signs):
            return hint
    return "see nvidia-smi and `taskflow doctor`"


def line(error: BaseException) -> str:
    """Return an error on one line, cut off if it is long."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:240]
