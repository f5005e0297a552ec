"""Start of an MPI job: the library is loaded, and every rank learns which ranks are on which node, and how to wait and wake.

Importing this module starts nothing; MPI starts with the first MPITransport (or ``load_mpi``).
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from taskflow.runtime.job import Backoff, Doorbell, JobEnd, node_cores, pace_for, plain_sleep

if TYPE_CHECKING:
    from mpi4py import MPI

    Array = np.ndarray[Any, Any]


def load_mpi(crowded: bool = False, check: Callable[[ModuleType], None] | None = None) -> ModuleType:
    """Start MPI, once, and return ``mpi4py.MPI``. ``crowded``: ranks outnumber the cores of this node, so MPI's own waits (at
    start and end of the program) must yield at once. ``check`` is given the library before it starts, and may raise. Raises
    ImportError or RuntimeError if there is no MPI."""
    if "mpi4py.MPI" in sys.modules:
        from mpi4py import MPI
    else:
        if crowded:  # MPICH reads this when it starts; other libraries do not know it
            os.environ.setdefault("MPIR_CVAR_POLLS_BEFORE_YIELD", "1")
        import mpi4py

        mpi4py.rc.initialize, mpi4py.rc.finalize = False, True
        from mpi4py import MPI
    if check is not None:
        check(MPI)
    if not MPI.Is_initialized():
        with warnings.catch_warnings():  # that mpirun may be another MPI's: `launch` says it, once
            warnings.filterwarnings("ignore", "suspicious MPI execution environment", RuntimeWarning)
            MPI.Init_thread(MPI.THREAD_FUNNELED)  # BLAS has threads, but only this one calls MPI
    return MPI


@dataclass(frozen=True, slots=True)
class Ranks:
    """State that all transports of this process share: the communicator for control, and how to wait on this node."""

    world: MPI.Intracomm
    control: MPI.Intracomm
    job: JobEnd
    pace: Backoff
    doorbell: Doorbell | None
    bells: Sequence[bytes | None]
    """By rank: what wakes it, None if nothing does (another node, or it never sleeps long)."""

    def sleep(self, seconds: float) -> bool:
        """Sleep for this long, or until another rank of this node rings; return True if one did."""
        return plain_sleep(seconds) if self.doorbell is None else self.doorbell.sleep(seconds)

    def ring(self, peer: int) -> None:
        """Wake rank ``peer`` if it sleeps on this node."""
        bell = self.bells[peer]
        if bell is not None and self.doorbell is not None:
            self.doorbell.ring(bell)


_ranks: Ranks | None = None


def ranks_of_job() -> Ranks:
    """Return the one Ranks of this process. The first call is collective: every rank must make it at about the same time."""
    global _ranks
    if _ranks is None:
        _ranks = _meet(load_mpi())
    return _ranks


def _meet(mpi: ModuleType) -> Ranks:
    world: MPI.Intracomm = mpi.COMM_WORLD
    doorbell = Doorbell() if Doorbell.supported() else None
    job = JobEnd(duplicate(world), world.Abort, plain_sleep if doorbell is None else doorbell.sleep)
    job.watch()  # first of all: what follows may fail on one rank
    control = duplicate(world)
    # By rank: its node, addresses of the doorbell and of a watcher, the process.
    table = np.zeros((world.size, 4, 64), np.uint8)
    table[world.rank, 0] = _padded(job.lifeline.node)
    if doorbell is not None:
        table[world.rank, 1] = _padded(doorbell.address)
    table[world.rank, 2] = _padded(job.lifeline.address)
    table[world.rank, 3] = _padded(str(os.getpid()).encode())
    _poll_plainly(control.Iallgather(mpi.IN_PLACE, table))
    here = (table[:, 0] == table[world.rank, 0]).all(axis=1)
    _begin_watch(job, control, table)
    ranks_here, cores = int(here.sum()), node_cores()
    # Where each rank has a core to spin on, a ring would cost the sender more than it saves the receiver.
    ringing = doorbell is not None and ranks_here > cores
    bells = [_unpadded(table[rank, 1]) if ringing and here[rank] else None for rank in range(world.size)]
    return Ranks(world, control, job, pace_for(ranks_here, cores), doorbell, bells)


def _begin_watch(job: JobEnd, control: MPI.Intracomm, table: Array) -> None:
    """Every rank calls it with the same ``table``; on several nodes rank 0 tells where the watchers meet."""
    nodes, _, addresses, processes = ([_unpadded(cell) or b"" for cell in table[:, column]] for column in range(4))
    invitation = _padded(job.lifeline.invite() if control.rank == 0 and len(set(nodes)) > 1 else b"").copy()
    if len(set(nodes)) > 1:
        _poll_plainly(control.Ibcast(invitation, 0))
    job.lifeline.begin(control.rank, nodes, addresses, [int(process) for process in processes], _unpadded(invitation) or b"")


def _padded(text: bytes) -> Array:
    """64 bytes: the length, then ``text`` (at most 63)."""
    return np.frombuffer(bytes([len(text)]) + text.ljust(63, b"\0"), np.uint8)


def _unpadded(cell: Array) -> bytes | None:
    return cell[1 : 1 + int(cell[0])].tobytes() or None


def _poll_plainly(request: MPI.Request) -> None:
    while not request.Test():
        time.sleep(200e-6)


def duplicate(comm: MPI.Intracomm) -> MPI.Intracomm:
    """Return a communicator of the same ranks; every rank calls it at about the same time."""
    copy, request = comm.Idup()
    _poll_plainly(request)
    return copy
