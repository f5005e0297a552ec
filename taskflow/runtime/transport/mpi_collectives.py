"""Collectives by MPI: one call of the library instead of many messages of our own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import accumulate, count, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from taskflow.floats import is_float, is_narrow
from taskflow.machine import ring_share
from taskflow.runtime.transport.base import Collective, verify_exchange, verify_shares

if TYPE_CHECKING:
    from mpi4py import MPI

    from taskflow.runtime.transport.mpi import MPITransport


SAFE_TAGS = 32768
"""MPI grants tags below this."""


class Communicators:
    """Communicators of a transport's sets of ranks. Each is made when all its ranks first ask for it; they must ask for several
    in the same order on all ranks. That of all ranks is there from the start: making one does not end if a rank never asks. None
    is the transport's own, so that its tags are free."""

    def __init__(self, comm: MPI.Intracomm, whole: MPI.Intracomm) -> None:
        """``comm``: the transport's own. ``whole``: another one of all ranks, for their collectives."""
        self._comm = comm
        self._made: dict[tuple[int, ...], MPI.Intracomm] = {tuple(range(comm.size)): whole}
        self._tags: dict[tuple[int, ...], Iterator[int]] = {}

    def tag(self, ranks: Sequence[int]) -> int:
        """Return a tag that no other channel of these ranks has: all of them ask in the same order."""
        return next(self._tags.setdefault(tuple(ranks), count())) % SAFE_TAGS

    def of(self, ranks: Sequence[int]) -> MPI.Intracomm:
        """Return the communicator of ``ranks``. Raises ValueError unless they are ascending and include this one."""
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


class MPICollective(Collective, ABC):
    """Requests for one array, several if its size exceeds MPI's counts. Made by MPITransport.

    MPI has no 16-bit floats. Where it only moves them, it gets their bytes; it cannot ``sum`` them (`MPISixteenBitSum` does).
    """

    halves = 1
    name = "collective"
    sums = True  # elements of the array
    __slots__ = ("_array", "_comm", "_requests", "_transport")

    def __init__(self, transport: MPITransport, comm: MPI.Intracomm, array: np.ndarray[Any, Any], ranks: Sequence[int]) -> None:
        who = f"{self.name} of ranks {list(ranks)}"
        of_floats = not self.sums or is_float(array.dtype)
        if not of_floats or not array.flags.c_contiguous or not getattr(array.flags, "writeable", True):
            raise ValueError(
                f"{who}: needs a writable C-contiguous array{' of floating type' * self.sums}, got {array.dtype}, strides "
                f"{array.strides}"
            )
        flat = array.reshape(-1)
        if is_narrow(array.dtype):
            flat = flat.view(np.uint16)
        super().__init__(ranks, transport.rank, flat.nbytes)
        self._transport, self._comm, self._array = transport, comm, flat
        self._requests: list[MPI.Request] = []

    def start(self) -> None:
        if not self.done():
            raise RuntimeError(f"{self}: started again before the last one was over; wait for it first")
        transport, size = self._transport, self.longest
        step = max(1, transport.message_nbytes // self._array.itemsize)
        self._requests = [self.ask(at, min(at + step, size)) for at in range(0, max(1, size), step)]
        transport.bytes_sent += self.sent_bytes
        transport.messages += 1
        for rank in self.peers:
            transport.ranks.ring(rank)

    @property
    def longest(self) -> int:
        """Return the largest number of elements of one request."""
        return self._array.size

    @abstractmethod
    def ask(self, low: int, high: int) -> MPI.Request:
        """Return MPI's request for elements ``low`` to ``high``."""

    def end(self) -> None:
        """Finish a completed collective."""

    def done(self) -> bool:
        if self._requests and self._transport.all_ended(self._requests):
            self._requests = []
            self._transport.bytes_received += self.received_bytes
            self.end()
        return not self._requests

    @property
    def sent_bytes(self) -> int:
        """Bytes that this rank sends if the library uses a ring."""
        return ring_share(len(self.ranks), self.ranks.index(self._transport.rank), self.nbytes, self.halves)

    @property
    def received_bytes(self) -> int:
        """Bytes that this rank receives."""
        return self.sent_bytes

    def free(self) -> bool:
        """True if nothing is under way: a collective cannot be cancelled."""
        return self.done()


class MPIAllReduce(MPICollective):
    """MPI_Iallreduce in place."""

    halves, name = 2, "all-reduce"
    __slots__ = ()

    def ask(self, low: int, high: int) -> MPI.Request:
        return self._comm.Iallreduce(self._transport.in_place, self._array[low:high])


class MPIShares(MPICollective):
    """Collective of which each rank has a share: ``counts`` elements, one share after the other."""

    __slots__ = ("_cuts",)

    def __init__(
        self, transport: MPITransport, comm: MPI.Intracomm, array: np.ndarray[Any, Any], counts: Sequence[int],
        ranks: Sequence[int],
    ) -> None:
        super().__init__(transport, comm, array, ranks)
        self._cuts = verify_shares(f"{self.name} of ranks {list(ranks)}", array, counts, ranks)

    def within(self, low: int, high: int) -> list[int]:
        """Return how many of elements ``low`` to ``high`` are each rank's."""
        return [max(0, min(last, high) - max(first, low)) for first, last in pairwise(self._cuts)]

    @property
    def own(self) -> slice:
        """Share of this rank."""
        place = self.ranks.index(self._transport.rank)
        return slice(self._cuts[place], self._cuts[place + 1])


class MPIReduceScatter(MPIShares):
    """MPI_Ireduce_scatter. MPI may not put the share at its place within the array that it adds up (and MPICH's in-place
    version aborts where it copies between overlapping ranges), so the share goes to a separate array first."""

    name, does = "reduce-scatter", "add up {} bytes of ranks {}, a share for each"
    __slots__ = ("_share",)

    def __init__(
        self, transport: MPITransport, comm: MPI.Intracomm, array: np.ndarray[Any, Any], counts: Sequence[int],
        ranks: Sequence[int],
    ) -> None:
        super().__init__(transport, comm, array, counts, ranks)
        self._share = self._array[self.own].copy()  # of the device's memory, if that is where the array is

    def ask(self, low: int, high: int) -> MPI.Request:
        counts, first = self.within(low, high), max(low, self.own.start) - self.own.start
        mine = self._share[first : first + counts[self.ranks.index(self._transport.rank)]]
        return self._comm.Ireduce_scatter(self._array[low:high], mine, counts)

    def end(self) -> None:
        self._array[self.own] = self._share


class MPIAllGather(MPIShares):
    """MPI_Iallgatherv in place."""

    name, sums, does = "all-gather", False, "gather {} bytes from ranks {}"
    __slots__ = ()

    def ask(self, low: int, high: int) -> MPI.Request:
        return self._comm.Iallgatherv(self._transport.in_place, [self._array[low:high], self.within(low, high)])


class MPIAllToAll(MPICollective):
    """MPI_Ialltoallv, from the first part of the array to the rest."""

    name, sums, does = "all-to-all", False, "exchange {} bytes among ranks {}"
    __slots__ = ("_counts", "_given", "_place")

    def __init__(
        self, transport: MPITransport, comm: MPI.Intracomm, array: np.ndarray[Any, Any], counts: Sequence[Sequence[int]],
        ranks: Sequence[int],
    ) -> None:
        super().__init__(transport, comm, array, ranks)
        self._place = list(ranks).index(transport.rank)
        self._given = verify_exchange(f"{self.name} of ranks {list(ranks)}", array, counts, ranks, transport.rank)
        self._counts = [list(row) for row in counts]

    @property
    def longest(self) -> int:
        return max(max(row) for row in self._counts)  # the same on all ranks, which ask as often

    def ask(self, low: int, high: int) -> MPI.Request:
        row, column = self._counts[self._place], [row[self._place] for row in self._counts]
        given, got = self._array[: self._given], self._array[self._given :]
        return self._comm.Ialltoallv([given, _within(row, low, high)], [got, _within(column, low, high)])

    @property
    def sent_bytes(self) -> int:
        return self._given * self._array.itemsize

    @property
    def received_bytes(self) -> int:
        return (self._array.size - self._given) * self._array.itemsize


def _within(counts: Sequence[int], low: int, high: int) -> tuple[list[int], list[int]]:
    """For each block, the part within the elements ``low`` to ``high``: how many, and their offset in the array of all blocks."""
    starts = accumulate(counts[:-1], initial=0)
    return (
        [max(0, min(count, high) - low) for count in counts],
        [start + min(low, count) for start, count in zip(starts, counts)],
    )
