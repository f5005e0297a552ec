"""Which kernels are there, and how one chooses."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

import taskflow.kernels as kernels
from taskflow.kernels.choose import CHOICES
from taskflow.kernels.definitions import busy


def test_the_extension_is_built_wherever_there_is_a_compiler() -> None:
    if shutil.which("cc") or shutil.which("gcc"):
        assert kernels.native_built(), "a C compiler is on PATH, but taskflow.kernels.native._rows cannot be imported"
    else:
        pytest.skip("no C compiler on PATH: the numpy kernels are used")


def test_the_environment_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TASKFLOW_KERNELS", raising=False)
    best = "numpy" if not kernels.native_built() else "native" if kernels.onednn_missing() else "onednn"
    assert kernels.default_kernels().name == best
    for name in CHOICES[CHOICES.index(best):]:
        monkeypatch.setenv("TASKFLOW_KERNELS", name)
        assert kernels.default_kernels().name == name
    monkeypatch.setenv("TASKFLOW_KERNELS", "fast")
    with pytest.raises(ValueError, match="onednn, native or numpy, got 'fast'"):
        kernels.default_kernels()


def test_without_the_extension_numpy_serves_and_forcing_native_is_a_clear_error() -> None:
    script = """
import sys
sys.modules["taskflow.kernels.native._rows"] = None  # as if it were not built
import taskflow.kernels as kernels
assert kernels.default_kernels().name == "numpy" and kernels.busy(3) < 0
import os
os.environ["TASKFLOW_KERNELS"] = "native"
try:
    kernels.default_kernels()
except RuntimeError as error:
    assert "C compiler" in str(error), error
else:
    raise AssertionError("no error")
"""
    environment = {name: value for name, value in os.environ.items() if name != "TASKFLOW_KERNELS"}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment)


def test_busy_twins_agree_and_time_grows_with_iterations() -> None:
    for iterations in (0, 1, 7, 1000):
        assert kernels.busy(iterations) == pytest.approx(busy(iterations), rel=1e-12)
    assert -64 < kernels.busy(10**6) < 0
