"""Starts programs on GPUs that are not there: with `fake_cudart.c` in the place of CUDA's runtime, beside PyTorch's own code."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from starting import environment, run_torch

HERE = Path(__file__).parent
NO_MARKS = ("__device_builtin__=", "__builtin_align__(n)=", "__align__(n)=", "__device_builtin_texture_type__=",
            "__device_builtin_surface_type__=", "CUDARTAPI=",
            "__cuda_builtin_vector_align8(tag,...)=struct tag { __VA_ARGS__ }")  # fmt: skip

@cache
def runtime() -> str:
    """The path of the compiled runtime. Skips the test where PyTorch is not for CUDA 13, or without its headers or a C compiler."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test TORCH=1")
    if not (torch.version.cuda or "").startswith("13."):
        pytest.skip(f"this PyTorch is not for CUDA 13, but for {torch.version.cuda or 'CPUs'}")
    found = importlib.util.find_spec("nvidia")
    roots = [Path(root, "cu13/include") for root in (found.submodule_search_locations or [] if found else [])]
    headers = next((path for path in roots if path.is_dir()), None)
    if headers is None:
        pytest.skip("CUDA's headers are not installed")
    folder = Path(tempfile.mkdtemp(prefix="taskflow-cudart-"))
    (folder / "crt").mkdir()
    (folder / "crt" / "host_defines.h").write_text("")  # which NVIDIA has in another package
    words = ["cc", "-shared", "-fPIC", "-O1", "-w", "-Wl,-soname,libcuda.so.1", *(f"-D{mark}" for mark in NO_MARKS)]
    library = folder / "libcudart-of-none.so"
    try:
        done = subprocess.run(
            [*words, f"-I{folder}", f"-I{headers}", str(HERE / "fake_cudart.c"), "-o", str(library)], capture_output=True, text=True
        )
    except FileNotFoundError:
        pytest.skip("no C compiler")
    assert done.returncode == 0, done.stderr
    return str(library)


def on_absent_gpus(
    program: str, arguments: Sequence[str], ranks: int, folder: Path, limit: float = 900.0, among: int = 0
) -> list[Any]:
    """What the first ranks of a program of this folder, all started at once (with RANK and WORLD_SIZE), have written to
    ``rankN.json``. ``among``: of so many, if not all are started."""
    extra = environment({"LD_PRELOAD": runtime(), "PYTHONPATH": str(HERE.parent)})
    done = run_torch(ranks, str(HERE / program), *arguments, folder=folder, extra=extra, limit=limit, among=among)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(ranks)]
