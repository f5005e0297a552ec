"""connect: the transport of this process, alone or as a rank under an MPI launcher."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import shutil
import socket
import sys
import time
from types import ModuleType
from typing import TYPE_CHECKING

from taskflow.runtime.job import (
    STARTED,
    Launcher,
    LaunchError,
    arrive,
    launcher,
    make_room,
    node_cores,
    say_once,
    slurm,
    start_limit,
)

if TYPE_CHECKING:
    from taskflow.runtime.transport import Transport

_SILENT_SECONDS = 1.0
"""How long a rank that is not the first keeps a start-up error back, so that the first one's is seen alone."""

_NOT_OPEN_MPI = ("MPICH", "Intel MPI", "MVAPICH", "MVAPICH2")
"""Libraries that do not start under Open MPI's mpirun: MPICH's ends the process, with a message for its makers."""


def connect(processors: int | None = None, watchdog_seconds: float | None = None) -> Transport:
    """Return the transport of this process: MPITransport under an MPI launcher, else LocalTransport (MPI is then not touched).

    Args: ``processors``, if given, is the number of ranks that an MPI job must have (a LocalTransport takes any number of
    processors). ``watchdog_seconds``: see `taskflow.runtime.job.polling.watchdog_limit`. Raises LaunchError if mpi4py or its
    MPI library does not load, if mpirun belongs to another MPI than mpi4py, or if the number of ranks is not ``processors``.
    """
    started = launcher()
    if started is None:
        if tasks := slurm.not_started(os.environ):
            say_once(f"note: this Slurm job has {tasks} tasks, but only this process runs: srun or mpirun starts one for each task")
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
            "pip install 'soap-taskflow[mpi]', or on a cluster, against its own MPI: pip install --no-binary mpi4py mpi4py"
        ) from error
    except LaunchError:
        raise
    except (ImportError, RuntimeError, OSError) as error:
        raise LaunchError(
            f"connect: mpi4py is installed, but its MPI library does not load ({_line(error)}); "
            "pip install 'soap-taskflow[mpi]', or on a cluster, build mpi4py against its own: pip install --no-binary mpi4py mpi4py"
        ) from error
    size = int(mpi.COMM_WORLD.size)
    if started.size not in (0, size):
        raise LaunchError(_mismatch(started, f"sees {size}", _line(mpi.Get_library_version())))
    return size


def _start_when_all_ranks_have_called_connect(started: Launcher, limit: float) -> ModuleType:
    """Load MPI, which waits for all ranks, holds the interpreter meanwhile, and goes on for ever if one has ended
    before it came here. A process beside the ranks names that one (`arrivals`). Where there is none, only a thread outside Python
    can end the wait: faulthandler's, which says no more than where it was, and so this function has the name of what is missing."""
    from taskflow.runtime.transport import load_mpi

    def check(mpi: ModuleType) -> None:
        if started.name == "Open MPI" and (maker := mpi.get_vendor()[0]) in _NOT_OPEN_MPI:
            raise LaunchError(_mismatch(started, f"is {maker}'s", _line(mpi.Get_library_version())))
        if not mpi.Is_initialized() and started.size > 1:
            make_room(started.local_size, mpi.Get_library_version())
            _fit_pmi(started, mpi.Get_library_version())

    crowded = started.local_size > node_cores()
    line = None
    if started.size > 1:
        line = arrive(started.rank, started.size, started.here, started.rank_variable, limit or float("inf"))
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


def _fit_pmi(started: Launcher, library: str) -> None:
    """Before MPICH starts on several nodes by srun: choose the network layer whose addresses its PMI can carry, and say so."""
    by_pmi = started.srun and started.rank_variable == "PMI_RANK"
    if by_pmi and started.here < started.size and (layer := slurm.netmod(library, os.environ)):
        os.environ[slurm.NETMOD] = layer
        set_to = f"MPICH uses libfabric ({slurm.NETMOD}={layer})"
        say_once(f"note: UCX's addresses do not fit srun's PMI: {set_to}; mpirun in the batch script keeps UCX")


def _mismatch(started: Launcher, what: str, library: str) -> str:
    mine = os.path.join(os.path.dirname(sys.executable), "mpirun")
    if started.srun:
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
