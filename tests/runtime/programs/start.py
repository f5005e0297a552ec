"""Starts the programs of this folder under mpirun, for the tests."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
BIN = Path(sys.executable).parent
MPIRUN = shutil.which("mpirun", path=f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}")

needs_mpi = pytest.mark.skipif(MPIRUN is None, reason="there is no mpirun beside this python or on PATH")


@dataclass(frozen=True)
class Ended:
    """How a job ended; ``text`` is standard output and error together."""

    code: int
    text: str
    seconds: float


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's variables, less those of a launcher around pytest, with this checkout first to import."""
    launchers = ("PMI_", "PMIX_", "OMPI_", "SLURM_", "HYDRA_", "MPI_LOCAL", "PALS_", "MV2_")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(launchers)}
    kept["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), kept.get("PYTHONPATH")]))
    return {**kept, **(extra or {})}


def mpirun(
    ranks: int,
    program: str,
    *arguments: str,
    extra: Mapping[str, str] | None = None,
    interrupt_at: str | None = None,
    limit: float = 60,
) -> Ended:
    """Run ``program`` on ``ranks`` ranks. ``interrupt_at``: once this was printed, send SIGINT to mpirun, as Ctrl-C
    does; ``seconds`` count from there. A job that lasts longer than ``limit`` seconds is killed and fails the test."""
    assert MPIRUN is not None
    command = [MPIRUN, "-n", str(ranks), sys.executable, str(HERE / program), *arguments]
    job = subprocess.Popen(
        command, env=environment(extra), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, start_new_session=True,
    )
    text, began = "", time.monotonic()
    try:
        if interrupt_at is not None:
            assert job.stdout is not None
            while interrupt_at not in text and (line := job.stdout.readline()):
                text += line
            began = time.monotonic()
            job.send_signal(signal.SIGINT)
        text += job.communicate(timeout=limit)[0]
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)
        text += job.communicate()[0]
        pytest.fail(f"{' '.join(command[3:])}: still running after {limit} s; it said:\n{text}")
    return Ended(job.returncode, text, time.monotonic() - began)
