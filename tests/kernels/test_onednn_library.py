"""Finding oneDNN: what happens without it, and that what is declared of its API is what its headers say."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

from taskflow.kernels import default_kernels, native_built, onednn_missing

HERE = Path(__file__).resolve()
API = HERE.parents[2] / "taskflow" / "kernels" / "onednn/api.h"


def headers() -> Path | None:
    """The include folder of the wheel onednn-devel-cpu-gomp."""
    try:
        files = distribution("onednn-devel-cpu-gomp").files or ()
    except PackageNotFoundError:
        return None
    found = [Path(str(file.locate())).resolve() for file in files if file.name == "dnnl.h"]
    return next((path.parent for path in found if (path.parent / "oneapi" / "dnnl" / "dnnl.h").exists()), None)


def python(script: str, **environment: str) -> str:
    kept = {name: value for name, value in os.environ.items() if name != "TASKFLOW_KERNELS"}
    done = subprocess.run(
        [sys.executable, "-c", script], env={**kept, **environment}, capture_output=True, text=True, timeout=250,
        cwd=HERE.parents[2],
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.skipif(headers() is None or shutil.which("cc") is None, reason="no oneDNN headers, or no C compiler")
def test_declarations_agree_with_the_headers(tmp_path: Path) -> None:
    """A compiler compares every constant and every signature."""
    theirs = {
        "CPU": "dnnl_cpu", "F32": "dnnl_f32", "ANY": "dnnl_format_tag_any", "FORWARD_TRAINING": "dnnl_forward_training",
        "CONVOLUTION_DIRECT": "dnnl_convolution_direct", "SCRATCHPAD_USER": "dnnl_scratchpad_mode_user",
        "IN_ORDER": "dnnl_stream_in_order", "QUERY_INFO": "dnnl_query_impl_info_str",
    }
    lines = ['#include "oneapi/dnnl/dnnl.h"', f'#include "{API}"']
    source = API.read_text()
    constants = re.findall(r"^    ONEDNN_(\w+) = \d+", source, re.MULTILINE)
    assert len(constants) > 20
    for name in constants:
        if name.startswith("ARG_"):
            other = f"DNNL_{name}"
        elif name.startswith("QUERY_") and name not in theirs:
            other = f"dnnl_query_{name[6:].lower()}_md"
        else:
            other = theirs[name]
        lines.append(f"_Static_assert((int)ONEDNN_{name} == (int){other}, \"{name}\");")
    # Opaque handles are void pointers and enumerations integers here; so both must have one size and number.
    for name, arguments in re.findall(r"F\((\w+), [^,]+,\s*\\?\s*\(([^)]*)\)\)", source.replace("\\\n", " ")):
        count = 0 if arguments == "void" else arguments.count(",") + 1
        zeros = ", ".join("0" for _ in range(count))
        lines.append(f"void call_{name}(void) {{ (void)dnnl_{name}({zeros}); (void)dnnl.{name}({zeros}); }}")
    assert len(lines) > 55
    lines.append("_Static_assert(sizeof(OneDNNArgument) == sizeof(dnnl_exec_arg_t), \"arguments\");")
    lines.append("_Static_assert(offsetof(OneDNNVersion, cpu_runtime) == offsetof(dnnl_version_t, cpu_runtime), \"version\");")
    (tmp_path / "check.c").write_text("\n".join(lines))
    done = subprocess.run(
        ["cc", "-std=c11", "-fsyntax-only", "-I", str(headers()), str(tmp_path / "check.c")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not native_built(), reason="the compiled kernels are not built")
def test_without_the_library_the_native_kernels_serve_and_a_sentence_says_why() -> None:
    said = python("""
import importlib.metadata, ctypes
from importlib.metadata import PackageNotFoundError
import taskflow.kernels.onednn.library as library
def nothing(name): raise PackageNotFoundError(name)
library.distribution = nothing
library.LIBRARY = "libdnnl-that-is-not-there.so"
from taskflow.kernels import default_kernels, onednn_missing
print(default_kernels().name)
print(onednn_missing())
import os
os.environ["TASKFLOW_KERNELS"] = "onednn"
try:
    default_kernels()
except RuntimeError as error:
    print(error)
""")
    name, why, refused = said.splitlines()
    assert name == "native"
    assert refused == f"TASKFLOW_KERNELS=onednn, but {why}; or unset TASKFLOW_KERNELS"
    assert "libdnnl-that-is-not-there.so" in why and why.endswith("pip install onednn-cpu-gomp")


@pytest.mark.skipif(not native_built(), reason="the compiled kernels are not built")
def test_without_the_extension_the_native_kernels_serve() -> None:
    said = python("""
import sys
sys.modules["taskflow.kernels.onednn._onednn"] = None  # as if it were not built
from taskflow.kernels import default_kernels, onednn_missing
print(default_kernels().name)
print(onednn_missing())
""")
    assert said.splitlines()[0] == "native" and "install a C compiler" in said


@pytest.mark.skipif(onednn_missing() is not None, reason=str(onednn_missing()))
def test_threads_follow_the_environment() -> None:
    script = "from taskflow.kernels import default_kernels; k = default_kernels(); print(k.name, k.threads)"
    assert python(script, OMP_NUM_THREADS="3") == "onednn 3"
    from taskflow.kernels.onednn.kernels import OneDNNKernels

    with pytest.raises(ValueError, match="threads must be at least 1, got 0"):
        OneDNNKernels(0)


@pytest.mark.skipif(onednn_missing() is not None, reason=str(onednn_missing()))
def test_importing_loads_no_library() -> None:
    script = """
import taskflow.kernels.onednn.kernels, taskflow.kernels.onednn.library
print("dnnl" in open("/proc/self/maps").read())
taskflow.kernels.default_kernels()
print("dnnl" in open("/proc/self/maps").read())
"""
    assert python(script).split() == ["False", "True"]
    assert default_kernels().name == os.environ.get("TASKFLOW_KERNELS", "onednn")
