"""taskflow doctor: what is there, what is missing and which command mends it; nothing it looks for need be there."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import taskflow
from taskflow.cli import doctor_checks, doctor_checks_gpu
from taskflow.cli.finding import MISSING, NOTE, OK, WRONG, Finding
from taskflow.cli.main import main
from taskflow.kernels.gpu.diagnostics import EXTRAS, INSTALL, install


def found_by(function: Any) -> dict[str, Finding]:
    return {f.about: f for f in function()}


def test_this_machine_can_run() -> None:
    result = CliRunner().invoke(main, ["doctor", "--json"])
    assert result.exit_code == 0, result.output
    value = json.loads(result.stdout)
    found = {f["about"]: f for f in value["findings"]}
    assert value["can_run"] is True and all(f["state"] != WRONG for f in value["findings"])
    assert found["taskflow"]["found"].startswith(f"taskflow {taskflow.__version__}, ")
    assert {"processor", "threads", "memory", "kernels", "compiled loops", "oneDNN", "BLAS", "search", "training", "MPI", "GPU",
            "caches"} <= set(found)  # fmt: skip
    assert "loss" in found["training"]["found"] and found["MPI"]["state"] == OK
    for finding in value["findings"]:
        assert finding["state"] in (OK, NOTE, MISSING) and (finding["state"] != MISSING or finding["remedy"])


def test_for_people() -> None:
    text = CliRunner().invoke(main, ["doctor"]).stdout
    assert text.endswith("taskflow can run here\n") and "kernels" in text and "…" not in text
    short = CliRunner().invoke(main, ["doctor", "-q"]).stdout
    assert len(short) < len(text) and short.endswith("taskflow can run here\n")


def test_exit_code_1_when_it_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKFLOW_KERNELS", "none")
    result = CliRunner().invoke(main, ["doctor"])
    assert result.exit_code == 1 and "TASKFLOW_KERNELS must be" in result.stdout and "unset TASKFLOW_KERNELS" in result.stdout
    assert result.stdout.endswith("taskflow cannot run here\n")


def test_it_imports_nothing_that_may_be_missing() -> None:
    code = (
        "import sys\nfrom taskflow.cli.doctor_checks import findings\nfound = findings()\n"
        "print([m for m in ('cupy', 'torch', 'mpi4py.MPI', 'cudnn') if m in sys.modules])"
    )
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environ, timeout=250)
    assert done.stdout.strip() == "[]", done.stderr


def test_no_mpi(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor_checks, "package", lambda name: None)
    mpi = found_by(doctor_checks._mpi)["MPI"]
    assert mpi.state == MISSING and "mpi4py is not installed" in mpi.found
    assert mpi.remedy.startswith("pip install 'soap-taskflow[mpi]'")
    monkeypatch.setattr(doctor_checks, "package", lambda name: "4.0")
    monkeypatch.setattr(doctor_checks, "_LIBRARY", "raise RuntimeError('cannot load MPI library')")
    mpi = found_by(doctor_checks._mpi)["MPI"]
    assert mpi.state == MISSING and "cannot load MPI library" in mpi.found


def test_an_mpirun_of_another_mpi(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One that starts two processes which do not find each other, as with the mpirun of another MPI."""
    program = tmp_path / "mpirun"
    program.write_text(f"#!/bin/sh\n'{sys.executable}' -c 'print(\"ranks=1\"); print(\"ranks=1\")'\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(doctor_checks, "_LIBRARY", "print('MPICH')")
    found = found_by(doctor_checks._mpi)
    assert found["MPI"].state == OK and found["mpirun"].state == MISSING
    assert "of another MPI than mpi4py's" in found["mpirun"].found


@pytest.mark.mpi
def test_the_mpirun_of_this_python() -> None:
    program = Path(sys.executable).parent / "mpirun"
    if not program.exists():
        pytest.skip("no mpirun beside this python")
    environ = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}", "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-m", "taskflow", "doctor", "--json"], capture_output=True, text=True, env=environ, timeout=250
    )
    found = {f["about"]: f for f in json.loads(done.stdout)["findings"]}
    assert found["mpirun"]["state"] == OK and found["mpirun"]["found"] == f"{program} starts ranks that find each other"


def test_no_driver_and_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_checks_gpu, "devices_found", list)
    monkeypatch.setattr(doctor_checks_gpu, "driver_version", lambda: None)
    assert found_by(doctor_checks_gpu.gpu)["GPU"].state == NOTE
    monkeypatch.setattr(doctor_checks_gpu, "devices_found", lambda: ["NVIDIA H200, 143771 MiB, 580.1"])
    monkeypatch.setattr(doctor_checks_gpu, "package", lambda name: None)
    assert found_by(doctor_checks_gpu.gpu)["CUDA driver"].state == MISSING
    for driver, extra in ((13000, "gpu"), (14010, "gpu"), (12040, "gpu-cuda12")):
        monkeypatch.setattr(doctor_checks_gpu, "driver_version", lambda driver=driver: driver)
        found = found_by(doctor_checks_gpu.gpu)
        assert found["GPU"].found == "NVIDIA H200, 143771 MiB, 580.1" and found["CUDA driver"].state == OK
        assert {found[name].remedy for name in ("CuPy", "cuDNN", "cuDNN frontend", "NCCL")} == {install(driver // 1000)}
        assert extra_of(install(driver // 1000)) == extra
    monkeypatch.setattr(doctor_checks_gpu, "driver_version", lambda: 11080)
    assert found_by(doctor_checks_gpu.gpu)["CUDA driver"].found == "CUDA 11.8 is too old"
    monkeypatch.setattr(doctor_checks_gpu, "works", lambda remedy: iter(()))
    monkeypatch.setattr(doctor_checks_gpu, "package", lambda name: "14.0" if name == "cupy-cuda12x" else None)
    assert found_by(doctor_checks_gpu.gpu)["CuPy"] == Finding("CuPy", OK, "cupy-cuda12x 14.0")


def extra_of(command: str) -> str:
    (extra,) = re.findall(r"^pip install 'soap-taskflow\[([\w-]+)\]'$", command)
    return extra


@pytest.mark.parametrize(("cuda", "extra"), EXTRAS.items())
def test_one_command_brings_all_that_the_doctor_looks_for(cuda: int, extra: str) -> None:
    """What is said without a GPU (mending.INSTALL), what the doctor says, and what pip installs are one thing."""
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    (line,) = re.findall(rf"^{extra} = \[(.+)\]$", text, re.MULTILINE)
    brought = {re.split(r"[\[>=<]", wanted)[0] for wanted in re.findall(r'"([^"]+)"', line)}
    for names in (doctor_checks_gpu.CUPY, doctor_checks_gpu.CUDNN, doctor_checks_gpu.FRONTEND, doctor_checks_gpu.NCCL):
        assert len(brought & set(names)) == 1, names
    assert all(str(cuda) in name or name in doctor_checks_gpu.FRONTEND for name in brought) and extra_of(install(cuda)) == extra
    assert install() == INSTALL


def test_caches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TASKFLOW_CACHE", str(tmp_path / "none"))
    assert "not there yet" in found_by(doctor_checks._caches)["caches"].found
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "costs.json").write_bytes(b"x" * 2_500_000)
    monkeypatch.setenv("TASKFLOW_CACHE", str(tmp_path))
    assert found_by(doctor_checks._caches)["caches"].found == f"{tmp_path}: 1 files, 2.5 MB"


def test_a_blas_that_is_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_checks, "instruction_set", lambda: ["avx2", "avx512f"])
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    said = [f for f in doctor_checks._kernels() if f.state == MISSING and f.about == "BLAS"]
    assert said and said[0].remedy == "unset OPENBLAS_CORETYPE"
    monkeypatch.delenv("OPENBLAS_CORETYPE")
    assert not [f for f in doctor_checks._kernels() if f.state == MISSING and f.about == "BLAS"]


def test_what_keeps_a_card_from_working(monkeypatch: pytest.MonkeyPatch) -> None:
    def answers(code: int, text: str) -> dict[str, Finding]:
        monkeypatch.setattr(doctor_checks_gpu, "tried", lambda *command, environ=None: (code, text))
        return found_by(doctor_checks_gpu.works)

    found = answers(0, "NVIDIA H200")
    assert found == {"GPU kernels": Finding("GPU kernels", OK, "a kernel and a product ran on NVIDIA H200")}
    found = answers(0, "NVIDIA H200\nImportError: no libcudnn")
    assert found["cuDNN at work"].state == MISSING and "no libcudnn" in found["cuDNN at work"].found
    found = answers(1, "Traceback\ntaskflow.DeviceMissing: GPU 0 cannot be used: memory is full")
    assert found["GPU kernels"].state == MISSING and found["GPU kernels"].found.endswith("memory is full")
    rows = [("A", "Default", "Disabled"), ("B", "Exclusive_Process", "[N/A]"), ("C", "Prohibited", "Enabled")]
    said = [(one.about, one.state) for one in doctor_checks_gpu.modes(rows)]
    assert said == [("GPU sharing", NOTE), ("GPU sharing", MISSING), ("MIG", NOTE)]


def test_the_doctor_really_tries_a_gpu() -> None:
    (found,) = [one for one in doctor_checks_gpu.works() if one.about == "GPU kernels"]
    if found.state == MISSING:
        assert "GPU" in found.found and "\n" not in found.found
    else:
        assert found.found.startswith("a kernel and a product ran on ")
