"""Launch: whether this process runs alone or under an MPI launcher, read from the environment before MPI starts. Imports
neither numpy nor mpi4py.

``limit_threads`` must run before numpy is imported, since BLAS reads its variables once. So it is called in the first lines of
``taskflow/__init__.py``; it only sets variables, and only under a launcher. This module and its parent packages must therefore
be importable without numpy.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from taskflow.runtime.job.polling import node_cores, usable_cores

if TYPE_CHECKING:
    pass

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
INTERRUPTED = 130
"""The exit status after Ctrl-C, as shells have it: 128 and the signal's number."""


class LaunchError(RuntimeError):
    """Error for a job that was not started in a way that can work; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Launcher:
    """Variables that an MPI launcher put into this process's environment."""

    name: str
    """Whose variables they are."""
    rank: int
    size: int
    local_size: int
    """Ranks on this node; ``size`` where the launcher does not say."""

    def variables(self) -> tuple[str, str]:
        """The environment variables of the rank and of the number of ranks on this node; the latter may not be set."""
        return next(((rank, local) for name, rank, _, local in _VARIABLES if name == self.name), ("PMIX_RANK", ""))


# (name, rank, size, ranks on this node); the first whose rank and size are set counts.
_VARIABLES = (
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MVAPICH", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE"),
    ("PMI (MPICH, Intel MPI)", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"),
    ("PALS", "PALS_RANKID", "PALS_NRANKS", "PALS_LOCAL_SIZE"),
    # Not SLURM_NTASKS and SLURM_PROCID: a batch script has those too, and it is not a rank.
    ("Slurm (srun)", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", ""),
)


def launcher(environ: Mapping[str, str] | None = None) -> Launcher | None:
    """Return the launcher that started this process as a rank, read from the environment; None if there is none."""
    environ = os.environ if environ is None else environ
    for name, rank_variable, size_variable, local_variable in _VARIABLES:
        size = _number(environ.get(size_variable))
        if size is None or (size == 1 and name.startswith("Slurm")):  # srun of one task: also an interactive shell
            continue
        rank = _number(environ.get(rank_variable)) or 0
        local = _number(environ.get(local_variable))
        if local is None and _number(environ.get("SLURM_STEP_NUM_TASKS")) == size:  # srun, by whatever protocol MPI starts
            local = _slurm_tasks(environ.get("SLURM_STEP_TASKS_PER_NODE", ""), _number(environ.get("SLURM_NODEID")) or 0)
        return Launcher(name, rank, size, min(local or size, size))
    if (rank_only := _number(environ.get("PMIX_RANK"))) is not None:  # PMIx keeps the size to itself
        local_size = _number(environ.get("OMPI_COMM_WORLD_LOCAL_SIZE")) or 0
        return Launcher("PMIx", rank_only, 0, local_size)
    return None


def speaks() -> bool:
    """True if this process should print what every rank could print: it is no rank, or the first one."""
    return (started := launcher()) is None or started.rank == 0


def say_once(text: str) -> None:
    """Print a line on stderr, under mpirun on rank 0 only. Works before MPI has started."""
    if speaks():
        print(text, file=sys.stderr, flush=True)


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.strip().isdigit() else None


def _slurm_tasks(text: str, node: int) -> int | None:
    """Tasks on ``node`` from Slurm's list of counts: "2(x3),1" is 2, 2, 2, 1."""
    for count, repeat in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        node -= int(repeat or 1)
        if node < 0:
            return int(count)
    return None


def limit_threads() -> None:
    """Give each rank its share of the cores for BLAS: cores / ranks on this node, at least 1. Must be called before numpy is
    imported. Sets OMP_NUM_THREADS, OPENBLAS_NUM_THREADS and MKL_NUM_THREADS, but never one that is already set. If
    OMP_NUM_THREADS is set, sets nothing, since the others follow it. Does nothing without an MPI launcher."""
    started = launcher()
    if started is None or THREAD_VARIABLES[0] in os.environ:
        return
    threads = usable_cores() if usable_cores() < node_cores() else node_cores() // max(1, started.local_size)
    for variable in THREAD_VARIABLES:
        os.environ.setdefault(variable, str(max(1, threads)))
