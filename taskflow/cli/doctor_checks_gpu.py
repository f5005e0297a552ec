"""Checks of `taskflow doctor` for GPUs. They import neither CuPy nor anything that needs a driver."""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
from collections.abc import Iterator

from taskflow.cli.finding import MISSING, NOTE, OK, Finding, package, tried
from taskflow.kernels.gpu.diagnostics import EXTRAS, INSTALL, install

CUPY = ("cupy-cuda13x", "cupy-cuda12x", "cupy-cuda11x", "cupy")
CUDNN = ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12")
FRONTEND = ("nvidia-cudnn-frontend",)
NCCL = ("nvidia-nccl-cu13", "nvidia-nccl-cu12")
TRY = (
    "from taskflow.kernels import kernels_on\n"
    "kernels = kernels_on('gpu')\n"
    "print(kernels.device.name, kernels.without_cudnn, sep='\\n')"
)
"""A program that runs one kernel and one product, and says on which card, and why it goes without cuDNN, if it does."""
OLDEST = min(EXTRAS)  # CUDA's version that there are packages for


def gpu() -> Iterator[Finding]:
    """Yield findings about the devices, the driver, and the packages that use them."""
    devices, driver = devices_found(), driver_version()
    if not devices and driver is None:
        have = [f"{name} {v}" for name in (*CUPY, *CUDNN, *NCCL) if (v := package(name))]
        beside = f" (installed all the same: {', '.join(have)})" if have else ""
        yield Finding("GPU", NOTE, f"no NVIDIA driver found{beside}; plans for machines with GPUs can be searched and simulated "
                      "without one")  # fmt: skip
        return
    if devices:
        yield Finding("GPU", OK, "; ".join(devices))
    if driver is None:
        yield Finding("CUDA driver", MISSING, "nvidia-smi is there, but libcuda.so.1 does not load", "install NVIDIA's driver")
        return
    major, minor = driver // 1000, driver % 1000 // 10
    remedy = install(major)
    if major < OLDEST:
        yield Finding("CUDA driver", MISSING, f"CUDA {major}.{minor} is too old", f"install a driver for CUDA {OLDEST} or newer")
    else:
        yield Finding("CUDA driver", OK, f"for CUDA up to {major}.{minor}")
    yield from modes(devices_and_modes())
    for about, names in (("CuPy", CUPY), ("cuDNN", CUDNN), ("cuDNN frontend", FRONTEND), ("NCCL", NCCL)):
        yield _installed(about, names, remedy)
    if any(package(name) for name in CUPY):
        yield from works(remedy)


def works(remedy: str = INSTALL) -> Iterator[Finding]:
    """Try in a separate process whether a kernel and a matrix product run. ``remedy``: the command that installs cuDNN where it
    is missing."""
    code, text = tried(sys.executable, "-c", TRY, environ={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    lines = text.splitlines() or ["no message"]
    if code:
        yield Finding("GPU kernels", MISSING, lines[-1], "see the message; TASKFLOW_GPU chooses another GPU")
        return
    yield Finding("GPU kernels", OK, f"a kernel and a product ran on {lines[0]}")
    if len(lines) > 1 and lines[1]:
        yield Finding(
            "cuDNN at work", MISSING, f"not used, convolutions go by patches and products: {lines[1]}",
            remedy,
        )


def modes(found: list[tuple[str, str, str]]) -> Iterator[Finding]:
    """Yield findings about compute modes that keep several ranks from sharing a card, and about MIG. ``found``: each card's
    name, compute mode and MIG mode."""
    for name, compute, mig in found:
        if "exclusive" in compute.lower():
            yield Finding("GPU sharing", NOTE, f"{name}: compute mode {compute}: one process at a time; several ranks on it need "
                          "MPS, or nvidia-smi -c 0")  # fmt: skip
        elif "prohibited" in compute.lower():
            yield Finding("GPU sharing", MISSING, f"{name}: compute mode {compute}: no process may use it", "nvidia-smi -c 0")
        if mig.lower() == "enabled":
            yield Finding("MIG", NOTE, f"{name} is cut into instances, of which CUDA shows a process one: CUDA_VISIBLE_DEVICES "
                          "names it")  # fmt: skip


def _installed(about: str, names: tuple[str, ...], remedy: str) -> Finding:
    have = [f"{name} {v}" for name in names if (v := package(name)) is not None]
    return Finding(about, OK, ", ".join(have)) if have else Finding(about, MISSING, "not installed", remedy)


def devices_found() -> list[str]:
    """Return nvidia-smi's list of cards: name, memory, driver."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    code, text = tried(program, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()] if code == 0 else []


def devices_and_modes() -> list[tuple[str, str, str]]:
    """Return each card's name, compute mode and MIG mode, from nvidia-smi."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    code, text = tried(program, "--query-gpu=name,compute_mode,mig.mode.current", "--format=csv,noheader")
    rows = [[part.strip() for part in line.split(",")] for line in text.splitlines()] if code == 0 else []
    return [(row[0], row[1], row[2]) for row in rows if len(row) == 3]


def driver_version() -> int | None:
    """Return the newest CUDA version that the driver supports, as 1000 x major + 10 x minor; None without a driver."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    value = ctypes.c_int()
    return int(value.value) if library.cuDriverGetVersion(ctypes.byref(value)) == 0 else None
