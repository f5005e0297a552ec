"""Starting: alone or under an MPI launcher, whose variables tell before MPI starts. Imports neither numpy nor mpi4py.

``limit_threads`` must run before numpy is imported, since BLAS reads its variables once; so it belongs in the first
lines of ``taskflow/__init__.py`` (it only sets variables, and only under a launcher), and this module must stay
importable without numpy: ``taskflow/runtime/__init__.py`` must call it before it imports a module that needs numpy.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import shutil
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

from taskflow.runtime.job.polling import node_cores, start_limit, usable_cores

if TYPE_CHECKING:
    from taskflow.runtime.transport import Transport

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
INTERRUPTED = 130
"""The exit status after Ctrl-C, as shells have it: 128 and the signal's number."""
_SILENT_SECONDS = 1.0
"""How long a rank that is not the first keeps a start-up error back, so that the first one's is seen alone."""


class LaunchError(RuntimeError):
    """The job was not started in a way that can work; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Launcher:
    """What an MPI launcher said in this process's environment."""

    name: str
    """Whose variables they are."""
    rank: int
    size: int
    local_size: int
    """Ranks on this node; ``size`` where the launcher does not say."""

    def variables(self) -> tuple[str, str]:
        """The environment's variables for the rank and for the number of ranks on this node; the latter may not be set."""
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
_NOT_OPEN_MPI = ("MPICH", "Intel MPI", "MVAPICH", "MVAPICH2")
"""Libraries that do not start under Open MPI's mpirun: MPICH's ends the process, with a message for its makers."""


def launcher(environ: Mapping[str, str] | None = None) -> Launcher | None:
    """Who started this process as a rank, from its environment; None if nobody did."""
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
    """Whether this process is to tell the user what every rank could tell: it is no rank, or the first."""
    return (started := launcher()) is None or started.rank == 0


def say_once(text: str) -> None:
    """A line on stderr, under mpirun on rank 0 only. Works before MPI has started."""
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
    """Give each rank its share of the cores for BLAS: cores / ranks on this node, at least 1. To be called before
    numpy is imported. Sets OMP_NUM_THREADS, OPENBLAS_NUM_THREADS and MKL_NUM_THREADS, never one that is set; if
    OMP_NUM_THREADS is, nothing, since the others follow it. Does nothing without an MPI launcher."""
    started = launcher()
    if started is None or THREAD_VARIABLES[0] in os.environ:
        return
    threads = usable_cores() if usable_cores() < node_cores() else node_cores() // max(1, started.local_size)
    for variable in THREAD_VARIABLES:
        os.environ.setdefault(variable, str(max(1, threads)))


def connect(processors: int | None = None, watchdog_seconds: float | None = None) -> Transport:
    """The transport of this process: MPITransport under an MPI launcher, else LocalTransport (and MPI is not touched).

    Args: ``processors``, if given, is how many ranks an MPI job must have (a LocalTransport carries any number of
    processors); ``watchdog_seconds`` as in ``waiting.watchdog_limit``. Raises LaunchError if mpi4py or its MPI library
    does not load, if mpirun belongs to another MPI than mpi4py, or if the number of ranks is not ``processors``.
    """
    started = launcher()
    if started is None:
        from taskflow.runtime.transport import LocalTransport

        return LocalTransport()
    try:
        size = _start_mpi(started, start_limit())
    except LaunchError:
        if started.rank > 0:
            time.sleep(_SILENT_SECONDS)
        raise
    from taskflow.runtime.transport import MPITransport

    transport = MPITransport(watchdog_seconds)
    if processors is not None and processors != size:
        raise LaunchError(
            f"connect: the strategy is for {processors} processors, one rank each, but this job has {size} ranks; "
            f"start it with mpirun -n {processors}, or choose a strategy for {size}"
        )
    return transport


def _start_mpi(started: Launcher, limit: float) -> int:
    """Start MPI and return the number of its ranks; LaunchError if that is not what the launcher started."""
    try:
        mpi = _start_when_all_ranks_have_called_connect(started, limit)
    except ModuleNotFoundError as error:
        if error.name not in ("mpi4py", "mpi4py.MPI"):
            raise
        raise LaunchError(
            f"connect: started as a rank by {started.name}, but mpi4py is not installed for {sys.executable}; "
            "pip install mpi4py mpich, or on a cluster, against its own MPI: pip install --no-binary mpi4py mpi4py"
        ) from error
    except LaunchError:
        raise
    except (ImportError, RuntimeError, OSError) as error:
        raise LaunchError(
            f"connect: mpi4py is installed, but its MPI library does not load ({_line(error)}); pip install mpich, or "
            "on a cluster, build mpi4py against its own MPI: pip install --no-binary mpi4py mpi4py"
        ) from error
    size = int(mpi.COMM_WORLD.size)
    if started.size not in (0, size):
        raise LaunchError(_mismatch(started, f"sees {size}", _line(mpi.Get_library_version())))
    return size


def _start_when_all_ranks_have_called_connect(started: Launcher, limit: float) -> ModuleType:
    """Load MPI, which waits for all ranks, holds the interpreter meanwhile, and goes on for ever if one has ended
    before it came here. A process beside the ranks names that one (`arrivals`). Where there is none, only a thread outside Python
    can end the wait: faulthandler's, which says no more than where it was, and so this function has the name of what is missing."""
    from taskflow.runtime.job.arrivals import STARTED, arrive
    from taskflow.runtime.transport import load_mpi

    def check(mpi: ModuleType) -> None:
        if started.name == "Open MPI" and (maker := mpi.get_vendor()[0]) in _NOT_OPEN_MPI:
            raise LaunchError(_mismatch(started, f"is {maker}'s", _line(mpi.Get_library_version())))

    crowded = started.local_size > node_cores()
    rank_variable, local_variable = started.variables()
    here = started.local_size if os.environ.get(local_variable) else 0
    line = arrive(started.rank, started.size, here, rank_variable, limit or float("inf")) if started.size > 1 else None
    target = os.open(os.devnull, os.O_WRONLY) if started.rank > 1 else os.dup(2)  # two that speak are enough
    with line or contextlib.nullcontext(), open(target, "w") as file:
        # Who watches the arrivals names the rank that is missing, and is given time to.
        if limit:
            faulthandler.dump_traceback_later(limit if line is None else 1.2 * limit + 10, exit=True, file=file)
        try:
            mpi = load_mpi(crowded, check)
            if line is not None:
                with contextlib.suppress(OSError):
                    line.send(STARTED, socket.MSG_NOSIGNAL)
            return mpi
        finally:
            if limit:
                faulthandler.cancel_dump_traceback_later()


def _mismatch(started: Launcher, what: str, library: str) -> str:
    mine = os.path.join(os.path.dirname(sys.executable), "mpirun")
    if started.name.startswith("Slurm"):
        advice = "say srun --mpi=pmi2 or pmix (srun --mpi=list shows what there is), use the library's mpirun in the batch script"
    elif os.access(mine, os.X_OK):
        advice = f"start with {mine}, the mpirun of this python"
    else:
        advice = "use the mpirun of that library"
    return (
        f"connect: {started.name} started {started.size} ranks, but the MPI library that mpi4py loaded {what}: "
        f"launcher and library are not of the same MPI. Library: {library}. mpirun on PATH: "
        f"{shutil.which('mpirun') or 'none'}. Either {advice}, or build mpi4py against the MPI of your launcher: "
        "pip install --no-binary mpi4py mpi4py"
    )


def _line(text: object) -> str:
    """The first line, whitespace made plain."""
    return " ".join(str(text).strip().partition("\n")[0].split())
