"""Collectives by MPI: one all-reduce of the library where our own messages would be many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from taskflow.machine import ring_share
from taskflow.runtime.transport import Collective

if TYPE_CHECKING:
    import numpy as np
    from mpi4py import MPI

    from taskflow.runtime.mpi import MPITransport


class Groups:
    """The communicators of a transport's sets of ranks. Each is made when all its ranks first ask for it; they ask for several in
    one order, the same on all."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        self._made: dict[tuple[int, ...], MPI.Intracomm] = {tuple(range(comm.size)): comm}

    def of(self, ranks: Sequence[int]) -> MPI.Intracomm:
        """That of ``ranks`` (rising, this one among them). ValueError if they are not."""
        key = tuple(ranks)
        size = self._comm.size
        if len(key) < 2 or self._comm.rank not in key or key != tuple(rank for rank in range(size) if rank in key):
            raise ValueError(
                f"collective of ranks {list(key)}: they must be two or more of 0 to {size - 1}, rising, with this "
                f"rank, {self._comm.rank}, among them"
            )
        if key not in self._made:
            self._made[key] = self._comm.Create_group(self._comm.group.Incl(key))
        return self._made[key]


class MPIAllReduce(Collective):
    """MPI_Iallreduce in place, in several pieces where a count would not fit. Made by MPITransport."""

    __slots__ = ("_array", "_comm", "_requests", "_transport")

    def __init__(self, transport: MPITransport, comm: MPI.Intracomm, array: np.ndarray[Any, Any], ranks: Sequence[int]) -> None:
        who = f"all-reduce of ranks {list(ranks)}"
        if array.dtype.kind != "f" or not array.flags.c_contiguous or not getattr(array.flags, "writeable", True):
            raise ValueError(
                f"{who}: needs a writable C-contiguous array of floating type, got {array.dtype}, strides {array.strides}"
            )
        super().__init__(ranks, transport.rank, array.nbytes)
        self._transport, self._comm, self._array = transport, comm, array.reshape(-1)
        self._requests: list[MPI.Request] = []

    def start(self) -> None:
        if not self.done():
            raise RuntimeError(f"{self}: started again before the last one was over; wait for it first")
        transport, array = self._transport, self._array
        step = max(1, transport.message_nbytes // array.itemsize)
        self._requests = [
            self._comm.Iallreduce(transport.in_place, array[at : at + step]) for at in range(0, max(1, array.size), step)
        ]
        transport.bytes_sent += self.sent_bytes
        transport.messages += 1
        for rank in self.peers:
            transport.ranks.ring(rank)

    def done(self) -> bool:
        if self._requests and self._transport.all_ended(self._requests):
            self._requests = []
            self._transport.bytes_received += self.sent_bytes
        return not self._requests

    @property
    def sent_bytes(self) -> int:
        """What this rank sends if the library goes around a ring."""
        return ring_share(len(self.ranks), self.ranks.index(self._transport.rank), self.nbytes)

    def free(self) -> bool:
        """Whether nothing is under way: a collective cannot be called off."""
        return self.done()

    def __str__(self) -> str:
        return f"add up {self.nbytes} bytes of ranks {', '.join(map(str, self.ranks))}"
