"""Launch: whether this process runs alone or under an MPI launcher, read from the environment before MPI starts. Imports
neither numpy nor mpi4py.

``limit_threads`` must run before numpy is imported, since BLAS reads its variables once. So it is called in the first lines of
``taskflow/__init__.py``; it only sets variables, and only under a launcher. This module and its parent packages must therefore
be importable without numpy.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from taskflow.runtime.job import slurm
from taskflow.runtime.job.polling import node_cores, usable_cores

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
    """0 where the launcher does not say."""
    here: int
    """Ranks on this node; 0 where the launcher does not say."""
    rank_variable: str
    """The variable that has the rank."""

    @property
    def local_size(self) -> int:
        """Ranks on this node; ``size`` where the launcher does not say."""
        return self.here or self.size

    @property
    def srun(self) -> bool:
        """Whether Slurm's srun has started this rank, and no mpirun."""
        return self.name.startswith(_SRUN)


_SRUN = "Slurm (srun"
_SRUN_PMI = f"{_SRUN} --mpi=pmi2)"
# (name, rank, size, ranks on this node); the first whose rank and size are set counts.
_VARIABLES = (
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MVAPICH", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE"),
    ("PMI (MPICH, Intel MPI)", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"),
    ("PALS", "PALS_RANKID", "PALS_NRANKS", "PALS_LOCAL_SIZE"),
    # Not SLURM_NTASKS and SLURM_PROCID: a batch script has those too, and it is not a rank.
    (f"{_SRUN})", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", ""),
)


def launcher(environ: Mapping[str, str] | None = None) -> Launcher | None:
    """Return the launcher that started this process as a rank, read from the environment; None if there is none."""
    environ = os.environ if environ is None else environ
    for name, rank_variable, size_variable, local_variable in _VARIABLES:
        size = slurm.number(environ.get(size_variable))
        if size is None:
            continue
        if size_variable == "PMI_SIZE" and slurm.serves_pmi(environ):
            name = _SRUN_PMI
        if size == 1 and name.startswith(_SRUN):  # also an interactive shell, whose one PMI connection is not to be used up
            continue
        here = slurm.number(environ.get(local_variable)) or 0
        if not here and slurm.step_size(environ) == size:  # srun, by whatever protocol MPI starts
            here = slurm.tasks_here(environ)
        return Launcher(name, slurm.number(environ.get(rank_variable)) or 0, size, min(here, size), rank_variable)
    if (rank := slurm.number(environ.get("PMIX_RANK"))) is not None:  # PMIx keeps the size to itself
        return Launcher("PMIx", rank, 0, slurm.number(environ.get("OMPI_COMM_WORLD_LOCAL_SIZE")) or 0, "PMIX_RANK")
    return None


def speaks() -> bool:
    """True if this process should print what every rank could print: it is no rank, or the first one."""
    return (started := launcher()) is None or started.rank == 0


def say_once(text: str) -> None:
    """Print a line on stderr, under mpirun on rank 0 only. Works before MPI has started."""
    if speaks():
        print(text, file=sys.stderr, flush=True)


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
