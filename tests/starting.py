"""Starts programs as a user does, alone or under mpirun, for the tests of all rooms."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from mpi_words import spoken

ROOT = Path(__file__).resolve().parents[1]
MPIRUN = shutil.which("mpirun", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
needs_mpi = pytest.mark.skipif(MPIRUN is None, reason="there is no mpirun beside this python or on PATH")


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's variables, less those of a launcher around pytest, with this checkout first to import."""
    launchers = ("PMI_", "PMIX_", "OMPI_COMM_", "SLURM_", "HYDRA_", "MPI_LOCAL", "PALS_", "MV2_")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(launchers)}
    kept["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), kept.get("PYTHONPATH")]))
    return {**kept, **(extra or {})}


def on_ranks(ranks: int) -> list[str]:
    """What comes before a command line that so many ranks are to run; nothing for 0."""
    return [str(MPIRUN), "-n", str(ranks)] if ranks else []


def free_port() -> int:
    """A port that nothing listens at now."""
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return int(one.getsockname()[1])


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """Within the block no file gets longer than ``size`` bytes: a write fails as on a full disk, in other words."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def run_python(
    *arguments: str, ranks: int = 0, folder: Path = ROOT, limit: float = 250.0, extra: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """How this Python, with ``arguments``, ended in ``folder``: on so many ranks under mpirun, or without it. ``extra``: variables.
    What Open MPI's mpirun adds is left out. After ``limit`` seconds all its processes are killed, and the test fails."""
    command = [*on_ranks(ranks), sys.executable, *arguments]
    job = subprocess.Popen(
        command, cwd=folder, env=environment(extra), text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, start_new_session=True,
    )
    try:
        out, errors = job.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)  # the group of its own that start_new_session made: mpirun and its ranks
        pytest.fail(f"still running after {limit:g} s:\n{job.communicate()}")
    return subprocess.CompletedProcess(command, job.returncode, out, spoken(errors))


def run_torch(
    ranks: int, *arguments: str, folder: Path = ROOT, limit: float = 200.0, extra: Mapping[str, str] | None = None, among: int = 0
) -> subprocess.CompletedProcess[str]:
    """How a program ended on so many of PyTorch's ranks, each with one thread, started as torchrun does (torch_ranks.py).
    ``among``: of so many, if not all are started."""
    words = (str(Path(__file__).with_name("torch_ranks.py")), str(ranks), str(among or ranks), str(free_port()), *arguments)
    return run_python(*words, folder=folder, limit=limit, extra={"OMP_NUM_THREADS": "1", **(extra or {})})
