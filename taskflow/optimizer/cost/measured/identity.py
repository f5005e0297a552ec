"""Identity of measured costs: what they depend on besides the task: the processor, the libraries, the kernels, the threads."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

import numpy as np

from taskflow.kernels import KernelSet
from taskflow.optimizer.cost.measured.blas_threads import openblas


def identity(kernels: KernelSet) -> dict[str, str]:
    """Return everything that measured costs depend on. Costs measured under another identity are not used."""
    if not kernels.device.waits:
        device: Any = kernels.device
        return {
            "processor": device.name, "python": _python(), "kernels": kernels.name, **device.libraries,
            "taskflow": sys.modules["taskflow"].__version__,
        }
    blas = _blas()
    return {
        "processor": processor_name(),
        "python": _python(),
        "numpy": np.__version__,
        "blas": blas["name"],
        "blas_core": blas["core"],
        "blas_threads": blas["threads"],
        "kernels": kernels.name,
        "kernel_threads": str(kernels.threads),
        "taskflow": sys.modules["taskflow"].__version__,  # the package itself, of which every room is a part
    }


def _python() -> str:
    return f"{platform.python_implementation()} {sys.version_info.major}.{sys.version_info.minor}"


def digest(value: dict[str, str]) -> str:
    """Return sixteen hex digits of an identity."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def processor_name() -> str:
    """Return the CPU's model and the cores that this process may use."""
    name = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    except OSError:
        pass  # not Linux: the platform's word will do
    return f"{name} ({platform.machine()})"


def _blas() -> dict[str, str]:
    """The name and version of numpy's BLAS, which kernels it chose for this CPU, and with how many threads it runs."""
    try:
        config: Any = np.show_config(mode="dicts")
        built = config["Build Dependencies"]["blas"]
        name = f"{built['name']} {built['version']}"
    except (KeyError, TypeError):
        name = "unknown"
    core = os.environ.get("OPENBLAS_CORETYPE", "unknown")
    threads = os.environ.get("OPENBLAS_NUM_THREADS") or os.environ.get("OMP_NUM_THREADS") or "unset"
    if (library := openblas()) is not None:
        core, threads = (library.corename() or b"unknown").decode(), str(library.get_threads())
    return {"name": name, "core": core, "threads": threads}
