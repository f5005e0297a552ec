"""MPITransport: one rank of an MPI job, with persistent requests that are polled, never waited for inside MPI.

Importing this module starts nothing; MPI starts with the first MPITransport (or ``load_mpi``).
"""

from __future__ import annotations

import pickle
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from taskflow.floats import is_narrow
from taskflow.runtime.job import WATCHDOG_VARIABLE, Backoff, Wait, explain, poll, watchdog_limit
from taskflow.runtime.transport.base import Channel, Transport
from taskflow.runtime.transport.mpi_collectives import (
    Communicators,
    MPIAllGather,
    MPIAllReduce,
    MPIAllToAll,
    MPICollective,
    MPIReduceScatter,
)
from taskflow.runtime.transport.mpi_job import duplicate, load_mpi, ranks_of_job
from taskflow.runtime.transport.mpi_sixteen_bit import MPISixteenBitSum

if TYPE_CHECKING:
    from mpi4py import MPI

    Array = np.ndarray[Any, Any]

MESSAGE_NBYTES = 1 << 30
"""The longest single MPI message: a count is an int, so 2 GiB is the end. Longer transfers go in several."""
_EAGER_NBYTES = 1 << 10
"""A receive longer than this rings its sender when it ends: the sender may sleep until it does."""
_GRACE_SECONDS = 1.0
"""How long after a peer has left a message of it may still arrive."""
_CLOSE_SECONDS = 5.0
"""How long close() lets sends that were started finish."""
_HEAD_NBYTES = 1024
"""The first message of a value that is broadcast or gathered: its length, and as much of it as fits."""
_HEAD_TAG, _BODY_TAG = 1, 2
_PROTOCOL = pickle.HIGHEST_PROTOCOL
_UNDER_WAY: dict[int, tuple[Any, ...]] = {}
"""Messages of values that have not ended, with their memory. A wait that Ctrl-C or a lost peer breaks off leaves them here for
good, since MPI may still write there when the process tells the others how it ended: into freed memory otherwise."""


class MPIChannel(Channel):
    """Persistent requests, one for each GiB of a message. Made by MPITransport."""

    __slots__ = ("_active", "_array", "_requests", "_sends", "_single", "_transport", "tag")

    def __init__(self, transport: MPITransport, array: Array, peer: int, tag: int, sends: bool) -> None:
        self.peer, self.nbytes, self.tag = peer, array.nbytes, tag
        self._array = array  # the memory must live as long as the requests
        self._transport = transport
        self._sends = sends
        self._active = False
        make = transport.comm.Send_init if sends else transport.comm.Recv_init
        flat = array.reshape(-1).view(np.uint8)
        step = transport.message_nbytes
        starts = range(0, max(1, flat.size), step)
        self._requests: list[MPI.Prequest] = [make(flat[at : at + step], peer, tag) for at in starts]
        self._single = self._requests[0] if len(self._requests) == 1 else None

    def start(self) -> None:
        if self._active and not self.done():
            raise RuntimeError(f"{self}: started again before the last transfer was done; wait for it first")
        if not self._requests:
            raise RuntimeError(f"{self}: its transport is closed")
        self._active = True
        for request in self._requests:
            request.Start()
        if self._sends:
            transport = self._transport
            transport.bytes_sent += self.nbytes
            transport.messages += 1
            transport.ranks.ring(self.peer)

    def done(self) -> bool:
        if not self._active:
            return True
        if not (self._single.Test() if self._single is not None else self._transport.all_done(self._requests)):
            return False
        self._active = False
        if not self._sends:
            self._transport.bytes_received += self.nbytes
            if self.nbytes > _EAGER_NBYTES:
                self._transport.ranks.ring(self.peer)
        return True

    def free(self) -> bool:
        """Return the requests to MPI. Returns False if a send is still under way, which then keeps them."""
        if not self.done():
            if self._sends:
                return False
            for request in self._requests:
                request.Cancel()
            until = time.monotonic() + 0.1
            while not self.done():
                if time.monotonic() > until:  # half of it has arrived: leave it to MPI
                    return False
        for request in self._requests:
            request.Free()
        self._requests, self._single = [], None
        return True

    def __str__(self) -> str:
        verb, side = ("send", "to") if self._sends else ("receive", "from")
        return f"{verb} {self.nbytes} bytes {side} rank {self.peer} (tag {self.tag})"


class MPITransport(Transport):
    """One rank of an MPI job. Making one is collective: every rank makes it."""

    def __init__(
        self, watchdog_seconds: float | None = None, pace: Backoff | None = None, message_nbytes: int = MESSAGE_NBYTES
    ) -> None:
        """``watchdog_seconds``: as ``waiting.watchdog_limit``. ``pace``: how to wait, by default what suits the ranks
        and cores of this node. ``message_nbytes``: where transfers are split; the same on all ranks."""
        self._limit = watchdog_limit(watchdog_seconds)
        if not 0 < message_nbytes < 1 << 31:
            raise ValueError(f"MPITransport: message_nbytes must be between 1 and 2 GiB - 1, got {message_nbytes}")
        self.message_nbytes = message_nbytes
        self.ranks = ranks = ranks_of_job()
        self._pace = pace or ranks.pace
        self._mpi = load_mpi()
        self.all_done: Callable[[list[MPI.Prequest]], bool] = self._mpi.Prequest.Testall
        self.all_ended: Callable[[list[MPI.Request]], bool] = self._mpi.Request.Testall
        self.in_place = self._mpi.IN_PLACE
        self.comm = duplicate(ranks.world)
        self.groups = Communicators(self.comm, duplicate(ranks.world))
        self.rank, self.size = self.comm.rank, self.comm.size
        self._last_tag = int(self.comm.Get_attr(self._mpi.TAG_UB) or 32767)  # 32767: what every MPI grants
        self._channels: list[MPIChannel | MPICollective | MPISixteenBitSum] = []
        self.sums_under_way: list[MPISixteenBitSum] = []
        self._closed = False
        ranks.job.at_exit(self._end)

    def sender(self, array: Array, peer: int, tag: int) -> MPIChannel:
        return self._channel(array, peer, tag, sends=True)

    def receiver(self, array: Array, peer: int, tag: int) -> MPIChannel:
        if not getattr(array.flags, "writeable", True):  # a GPU's arrays always are
            raise ValueError(f"receive from rank {peer} (tag {tag}): the array must be writable; it is read-only")
        return self._channel(array, peer, tag, sends=False)

    def all_reduce(self, array: Array, ranks: Sequence[int]) -> MPIAllReduce | MPISixteenBitSum:
        if is_narrow(array.dtype):
            return self._sixteen_bit_sum(array, ranks, None)
        channel = MPIAllReduce(self, self._group(ranks), array, ranks)
        self._channels.append(channel)
        return channel

    def reduce_scatter(
        self, array: Array, counts: Sequence[int], ranks: Sequence[int]
    ) -> MPIReduceScatter | MPISixteenBitSum:
        if is_narrow(array.dtype):
            return self._sixteen_bit_sum(array, ranks, counts)
        channel = MPIReduceScatter(self, self._group(ranks), array, counts, ranks)
        self._channels.append(channel)
        return channel

    def _sixteen_bit_sum(self, array: Array, ranks: Sequence[int], counts: Sequence[int] | None) -> MPISixteenBitSum:
        channel = MPISixteenBitSum(self, self._group(ranks), self.groups.tag(ranks), array, ranks, counts)
        self._channels.append(channel)
        return channel

    def all_gather(self, array: Array, counts: Sequence[int], ranks: Sequence[int]) -> MPIAllGather:
        channel = MPIAllGather(self, self._group(ranks), array, counts, ranks)
        self._channels.append(channel)
        return channel

    def all_to_all(self, array: Array, counts: Sequence[Sequence[int]], ranks: Sequence[int]) -> MPIAllToAll:
        channel = MPIAllToAll(self, self._group(ranks), array, counts, ranks)
        self._channels.append(channel)
        return channel

    def _group(self, ranks: Sequence[int]) -> MPI.Intracomm:
        if self._closed:
            raise RuntimeError(f"collective of ranks {list(ranks)}: the transport is closed")
        return self.groups.of(ranks)

    def _channel(self, array: Array, peer: int, tag: int, sends: bool) -> MPIChannel:
        who = f"{'send to' if sends else 'receive from'} rank {peer} (tag {tag})"
        if self._closed:
            raise RuntimeError(f"{who}: the transport is closed")
        if not 0 <= peer < self.size or peer == self.rank:
            raise ValueError(f"{who}: the peer must be another rank below {self.size}; this is rank {self.rank}")
        if not 0 <= tag <= self._last_tag:
            raise ValueError(f"{who}: this MPI allows tags from 0 to {self._last_tag}")
        if not array.flags.c_contiguous:
            raise ValueError(f"{who}: the array must be C-contiguous, got shape {array.shape}, strides {array.strides}")
        channel = MPIChannel(self, array, peer, tag, sends)
        self._channels.append(channel)
        return channel

    def wait(self, channel: Channel, what: str | Callable[[], str]) -> None:
        if not channel.done():
            self._wait(channel.done, channel.peers, lambda: str(channel), what)

    def _wait(
        self, done: Callable[[], bool], peers: Sequence[int], transfer: Callable[[], str], what: str | Callable[[], str]
    ) -> None:
        """Poll until ``done()``; end the job if one of ``peers`` has left the program or the watchdog's limit is over."""
        job, limit = self.ranks.job, self._limit
        left_at: float | None = None
        began = time.monotonic()

        def between(waited: float) -> None:
            nonlocal left_at
            job.notices.poll()
            left = [peer for peer in peers if peer in job.notices.left]
            if left and left_at is None:
                left_at = waited
            if left_at is not None and waited - left_at > _GRACE_SECONDS:
                job.fail(f"waits in {_name(what)} to {transfer()}, but rank {left[0]} has left the program")
            if limit and waited > limit and not done():
                waits = job.notices.ask(done, self.ranks.ring)
                if not done():
                    why = explain(self.rank, waits)
                    job.fail(f"watchdog: {waits[self.rank]}. {why}; raise the limit with {WATCHDOG_VARIABLE} (0 = never)")

        def ended() -> bool:
            if self.sums_under_way:
                self.sums_under_way = [one for one in self.sums_under_way if not one.done()]
            return done()

        job.notices.waiting = lambda: Wait(tuple(peers), _name(what), transfer(), time.monotonic() - began)
        try:
            poll(ended, self._pace, between, self.ranks.sleep)
        finally:
            job.notices.waiting = None

    @contextmanager
    def patient(self, seconds: float) -> Iterator[None]:
        limit = self._limit
        self._limit = max(limit, seconds) if limit else limit
        try:
            yield
        finally:
            self._limit = limit

    # Values go by messages of our own rather than by MPI's collectives: so a wait has a peer that can be named, noticed
    # when it leaves, and rung.

    def broadcast(self, value: Any, root: int = 0) -> Any:
        return self._broadcast(value, root, f"broadcast from rank {root}")

    def gather(self, value: Any, root: int = 0) -> list[Any] | None:
        return self._gather(value, root, f"gather to rank {root}")

    def barrier(self) -> None:
        # Two sweeps, not log2(size) rounds of everybody: ranks that share cores would all have to be woken each round.
        self._gather(None, 0, "barrier")
        self._broadcast(None, 0, "barrier")

    def _broadcast(self, value: Any, root: int, what: str) -> Any:
        """A binomial tree: the rank ``place`` after the root hears from ``place`` without its lowest bit."""
        self._check_root(what, root)
        place = (self.rank - root) % self.size
        bit = 1
        while bit < self.size and not place & bit:
            bit <<= 1
        data = self._receive_bytes((self.rank - bit) % self.size, what) if place else pickle.dumps(value, _PROTOCOL)
        sends = []
        while bit > 1:
            bit >>= 1
            if place + bit < self.size:
                sends.append(self._send_bytes(data, (self.rank + bit) % self.size))
        for finish in sends:
            finish(what)
        return pickle.loads(data) if place else value

    def _gather(self, value: Any, root: int, what: str) -> list[Any] | None:
        """Every rank to the root, which takes them in order: so it can say which one is missing."""
        self._check_root(what, root)
        if self.rank != root:
            self._send_bytes(pickle.dumps(value, _PROTOCOL), root)(what)
            return None
        return [value if peer == root else pickle.loads(self._receive_bytes(peer, what)) for peer in range(self.size)]

    def _check_root(self, who: str, root: int) -> None:
        if self._closed:
            raise RuntimeError(f"{who}: the transport is closed")
        if not 0 <= root < self.size:
            raise ValueError(f"{who}: root must be a rank below {self.size}, got {root}")

    def _send_bytes(self, data: bytes, peer: int) -> Callable[[str], None]:
        """Start sending; call the result to wait for the end."""
        control = self.ranks.control
        head = len(data).to_bytes(8, "little") + data[: _HEAD_NBYTES - 8]
        sends: list[MPI.Request] = []
        _UNDER_WAY[id(sends)] = sends, head, data
        sends.append(control.Isend(head, peer, _HEAD_TAG))
        sends += [control.Isend(piece, peer, _BODY_TAG) for piece in self._pieces(data)]
        self.ranks.ring(peer)

        def finish(what: str) -> None:
            transfer = f"send {len(data)} bytes to rank {peer}"
            self._wait(lambda: self.all_ended(sends), (peer,), lambda: transfer, what)
            _UNDER_WAY.pop(id(sends), None)

        return finish

    def _receive_bytes(self, peer: int, what: str) -> bytes:
        control, head = self.ranks.control, bytearray(_HEAD_NBYTES)
        receives: list[MPI.Request] = []
        _UNDER_WAY[id(receives)] = receives, head
        receives.append(control.Irecv(head, peer, _HEAD_TAG))
        self._wait(receives[0].Test, (peer,), lambda: f"receive from rank {peer}", what)
        length = int.from_bytes(head[:8], "little")
        data = bytearray(length)
        data[: _HEAD_NBYTES - 8] = head[8 : 8 + min(length, _HEAD_NBYTES - 8)]
        body = self._pieces(data)
        _UNDER_WAY[id(receives)] = receives, head, data
        receives[:] = [control.Irecv(piece, peer, _BODY_TAG) for piece in body]
        transfer = f"receive {length} bytes from rank {peer}"
        self._wait(lambda: self.all_ended(receives), (peer,), lambda: transfer, what)
        del _UNDER_WAY[id(receives)]
        if receives:
            self.ranks.ring(peer)
        return bytes(data)

    def _pieces(self, data: bytes | bytearray) -> list[memoryview]:
        """Rest of a message that does not fit in its head, in messages of at most ``message_nbytes``."""
        rest = memoryview(data)[_HEAD_NBYTES - 8 :]
        return [rest[at : at + self.message_nbytes] for at in range(0, len(rest), self.message_nbytes)]

    def duplicate(self) -> MPITransport:
        return MPITransport(self._limit, self._pace, self.message_nbytes)

    def close(self) -> None:
        """Free the persistent requests and the communicator of the channels. Sends that were started get 5 s to end; while an
        exception propagates (in a ``finally``) nothing waits."""
        self._end(0.0 if sys.exc_info()[0] is not None else _CLOSE_SECONDS)

    def _end(self, patience: float = _CLOSE_SECONDS) -> None:
        if self._closed:
            return
        self._closed = True
        until = time.monotonic() + patience
        left = [channel for channel in self._channels if not channel.free()]
        while left and time.monotonic() < until:
            self.ranks.sleep(200e-6)
            left = [channel for channel in left if not channel.free()]
        self._channels = left
        if not left:
            with suppress(self._mpi.Exception):  # a message that this rank, ended by an error, never took
                self.comm.Free()


def _name(what: str | Callable[[], str]) -> str:
    return what if isinstance(what, str) else what()
