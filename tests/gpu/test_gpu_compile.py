"""The kernels compile for the GPUs that we mean: by NVRTC (which CuPy uses) or nvcc, neither of which needs a GPU."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from taskflow.kernels.gpu import source
from taskflow.kernels.gpu.device import OPTIONS

CUPYS_OPTIONS = ("--device-as-default-execution-space",)  # that CuPy 14 adds to ours
MISSING = "no CUDA compiler: neither CuPy's NVRTC nor nvcc is installed"


def nvrtc() -> Any:
    try:
        from cupy_backends.cuda.libs import nvrtc as found

        found.getVersion()
    except (ImportError, RuntimeError, AttributeError, OSError):
        return None
    return found


@pytest.mark.parametrize(("dtype", "architecture"), [
    ("float32", "sm_90"),
    *(pytest.param(*case, marks=pytest.mark.slow) for case in (("float32", "sm_80"), ("float64", "sm_80"), ("float64", "sm_90"))),
])
def test_every_kernel_compiles(dtype: str, architecture: str, tmp_path: Path) -> None:
    text = source.text(dtype)
    if (compiler := nvrtc()) is not None:
        program = compiler.createProgram(text, "kernels.cu", (), ())
        try:
            compiler.compileProgram(program, (f"--gpu-architecture={architecture}", *OPTIONS, *CUPYS_OPTIONS))
        except compiler.NVRTCError:
            pytest.fail(compiler.getProgramLog(program))
        made = compiler.getCUBIN(program)
    elif (nvcc := shutil.which("nvcc")) is not None:
        (tmp_path / "kernels.cu").write_text(text)
        command = [nvcc, f"-arch={architecture}", *OPTIONS, "-cubin", "-o", "kernels.cubin", "kernels.cu"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        made = (tmp_path / "kernels.cubin").read_bytes()
    else:
        pytest.skip(MISSING)
    for name in source.kernels():  # extern "C": the name is in the symbol table as it stands
        assert name.encode() in made, f"{name} is not in what was compiled"


def test_the_signatures_are_read_whole() -> None:
    kernels = source.kernels()
    text = source.text("float32")
    assert len(kernels) == text.count('extern "C" __global__ void') > 30
    kinds = {"Int", "int", "Word", "Long", "double", "REAL"}
    for kernel in kernels.values():
        for kind, name in kernel.parameters:
            assert kind in kinds or kind.endswith("*"), f"{kernel.name}: {kind} {name}"
            assert name.isidentifier()


def test_other_types_are_refused() -> None:
    with pytest.raises(ValueError, match="float32 or float64, got int8"):
        source.text("int8")
