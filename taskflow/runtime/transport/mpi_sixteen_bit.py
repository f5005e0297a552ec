"""Sums of 16-bit floats between ranks by MPI, which cannot add them: 16 bits are sent, and added up in float32.

Every rank sends each other rank that one's share of the array. It adds up what it gets of its own share in float32, in the order
of the ranks, and rounds once. In an all-reduce it then sends the sum to all. So as many bytes travel as in a ring, and the sum is
the one that a single process computes, bit for bit; a ring would round it on its way, or send 32 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from taskflow.kernels import HOST
from taskflow.operators.sixteen_bit import add_up
from taskflow.runtime.transport.base import Collective, verify_shares

if TYPE_CHECKING:
    from mpi4py import MPI

    from taskflow.runtime.transport.mpi import MPITransport


class MPISixteenBitSum(Collective):
    """All-reduce of an array of 16-bit floats, or, with ``counts``, a reduce-scatter. Made by MPITransport, whose waits advance
    all that are under way: the second half of one begins when its first half is over, whatever a rank waits for.

    Its messages have a tag of their own. Those of both halves, and of later steps, come in order."""

    __slots__ = ("_adds", "_bits", "_comm", "_cuts", "_got", "_place", "_requests", "_spreads", "_tag", "_transport")

    def __init__(
        self, transport: MPITransport, comm: MPI.Intracomm, tag: int, array: np.ndarray[Any, Any], ranks: Sequence[int],
        counts: Sequence[int] | None = None,
    ) -> None:
        who = f"{'all-reduce' if counts is None else 'reduce-scatter'} of ranks {list(ranks)}"
        if not array.flags.c_contiguous or not array.flags.writeable:
            raise ValueError(f"{who}: needs a writable C-contiguous array, got {array.dtype}, strides {array.strides}")
        super().__init__(ranks, transport.rank, array.nbytes)
        self._transport, self._comm, self._tag, self._place = transport, comm, tag, self.ranks.index(transport.rank)
        flat, many = array.reshape(-1), len(ranks)
        self._spreads = counts is None
        self._cuts = (
            tuple(flat.size * n // many for n in range(many + 1)) if counts is None else verify_shares(who, array, counts, ranks)
        )
        self._bits = flat.view(np.uint16)
        own = flat[self._share(self._place)]
        self._got = [own if n == self._place else np.empty(own.shape, own.dtype) for n in range(many)]
        self._requests: list[MPI.Request] = []
        self._adds = False  # whether the first half is under way

    def _share(self, place: int) -> slice:
        return slice(self._cuts[place], self._cuts[place + 1])

    def start(self) -> None:
        if not self.done():
            raise RuntimeError(f"{self}: started again before the last one was over; wait for it first")
        transport = self._transport
        self._adds = True
        self._exchange([part.view(np.uint16) for part in self._got], [self._bits[self._share(n)] for n in range(len(self.ranks))])
        transport.sums_under_way.append(self)
        transport.bytes_sent += self.sent_bytes
        transport.messages += 1

    def _exchange(self, gets: Sequence[Any], gives: Sequence[Any]) -> None:
        """Start messages with each other rank."""
        others = [n for n in range(len(self.ranks)) if n != self._place]
        ends = [(self._comm.Irecv, gets[n], n) for n in others] + [(self._comm.Isend, gives[n], n) for n in others]
        step = max(1, self._transport.message_nbytes // self._bits.itemsize)
        self._requests = [
            move(array[at : at + step], n, self._tag) for move, array, n in ends for at in range(0, max(1, array.size), step)
        ]
        self._ring()

    def _ring(self) -> None:
        for rank in self.peers:
            self._transport.ranks.ring(rank)

    def done(self) -> bool:
        if not self._requests:
            return True
        if not self._transport.all_ended(self._requests):
            return False
        self._requests = []
        if self._adds:
            self._adds = False
            add_up(HOST, self._got[self._place], self._got, fresh=True)
            if self._spreads:
                shares = [self._bits[self._share(n)] for n in range(len(self.ranks))]
                self._exchange(shares, [shares[self._place]] * len(shares))
                return self.done()
        self._transport.bytes_received += self.received_bytes
        self._ring()
        return True

    @property
    def sent_bytes(self) -> int:
        """Bytes that this rank sends; of all ranks together as many as in a ring."""
        own, others = self._own_bytes
        return others + (own * (len(self.ranks) - 1) if self._spreads else 0)

    @property
    def received_bytes(self) -> int:
        """Bytes that this rank receives."""
        own, others = self._own_bytes
        return own * (len(self.ranks) - 1) + (others if self._spreads else 0)

    @property
    def _own_bytes(self) -> tuple[int, int]:
        """Bytes of this rank's share, and of the other shares."""
        own = self._got[self._place].nbytes
        return own, self.nbytes - own

    def free(self) -> bool:
        """True if nothing is under way."""
        return self.done()

    def __str__(self) -> str:
        return f"add up {self.nbytes} bytes of ranks {', '.join(map(str, self.ranks))}{', a share for each' * (not self._spreads)}"
