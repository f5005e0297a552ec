"""StagedTransport: messages between GPUs by MPI, through pinned memory of the host, or from the GPU's memory where MPI takes
it.

A GPU works asynchronously: when a send starts, its data may not be computed yet. So a send first queues a copy to pinned
memory, after all work queued so far, and MPI starts when that copy is done. Every call of the transport checks for that. A
receive ends when the copy to the GPU's memory is queued: work that is queued later finds the values.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from taskflow.floats import is_narrow
from taskflow.runtime.transport.base import Channel, Transport

SETTLE_SECONDS = 20e-6  # between two looks at the GPU


class WrappedTransport(Transport):
    """Transport for arrays of a device, on top of one for arrays of the host, which does everything that does not concern
    arrays."""

    def __init__(self, inner: Transport, device: Any, choice: object) -> None:
        self.inner, self.device, self.choice = inner, device, choice
        self.rank, self.size = inner.rank, inner.size

    def describe(self) -> str:
        return str(self.choice)

    def reserve_tags(self, count: int) -> int:
        return self.inner.reserve_tags(count)

    def wait(self, channel: Channel, what: str | Callable[[], str]) -> None:
        self.inner.wait(channel, what)

    def broadcast(self, value: Any, root: int = 0) -> Any:
        self.settle()
        return self.inner.broadcast(value, root)

    def gather(self, value: Any, root: int = 0) -> list[Any] | None:
        self.settle()
        return self.inner.gather(value, root)

    def barrier(self) -> None:
        self.settle()
        self.inner.barrier()

    @contextmanager
    def patient(self, seconds: float) -> Iterator[None]:
        with self.inner.patient(seconds):
            yield

    def close(self) -> None:
        self.inner.close()


class StagedTransport(WrappedTransport):
    """Transport through pinned memory. ``direct``: MPI reads and writes the GPU's memory itself; then nothing is copied, but
    MPI still has to wait until the GPU has reached that point."""

    def __init__(self, inner: Transport, device: Any, choice: object, direct: bool = False) -> None:
        super().__init__(inner, device, choice)
        self.direct = direct
        self._pending: list[Staged] = []

    def sender(self, array: Any, peer: int, tag: int) -> Channel:
        return Staged(self, array, lambda memory: self.inner.sender(memory, peer, tag), takes=False)

    def receiver(self, array: Any, peer: int, tag: int) -> Channel:
        return StagedReceive(self, array, lambda memory: self.inner.receiver(memory, peer, tag), takes=True)

    def all_reduce(self, array: Any, ranks: Sequence[int]) -> Channel:
        return StagedCollective(self, array, lambda memory: self.inner.all_reduce(memory, ranks), takes=True)

    def reduce_scatter(self, array: Any, counts: Sequence[int], ranks: Sequence[int]) -> Channel:
        own, scatter = self._share(counts, ranks), self.inner.reduce_scatter
        return StagedCollective(self, array, lambda memory: scatter(memory, counts, ranks), takes=True, brings=own)

    def all_gather(self, array: Any, counts: Sequence[int], ranks: Sequence[int]) -> Channel:
        own, gather = self._share(counts, ranks), self.inner.all_gather
        return StagedCollective(self, array, lambda memory: gather(memory, counts, ranks), takes=True, gives=own)

    def all_to_all(self, array: Any, counts: Sequence[Sequence[int]], ranks: Sequence[int]) -> Channel:
        given, exchange = sum(counts[list(ranks).index(self.rank)]), self.inner.all_to_all
        return StagedCollective(
            self, array, lambda memory: exchange(memory, counts, ranks), takes=True, gives=slice(0, given),
            brings=slice(given, None),
        )

    def _share(self, counts: Sequence[int], ranks: Sequence[int]) -> slice:
        """This rank's, of a one-dimensional array."""
        place = list(ranks).index(self.rank)
        return slice(sum(counts[:place]), sum(counts[: place + 1]))

    def progress(self) -> None:
        """Start the transfers that the GPU is ready for. Collectives begin in the order in which they were queued, as on the
        other ranks."""
        waiting: list[Staged] = []
        for channel in self._pending:
            held = channel.collective and any(other.collective for other in waiting)
            if held or not channel.begin():
                waiting.append(channel)
        self._pending = waiting

    def settle(self) -> None:
        self.progress()
        while self._pending:
            time.sleep(SETTLE_SECONDS)
            self.progress()

    def expect(self, channel: Staged) -> None:
        """Start this channel's message as soon as the GPU is ready."""
        self._pending.append(channel)
        self.progress()

    def duplicate(self) -> StagedTransport:
        return StagedTransport(self.inner.duplicate(), self.device, self.choice, self.direct)


class Staged(Channel):
    """Message or collective between arrays of the GPU: one between arrays of the host (``inner`` makes it for given memory),
    and the copies before and after it. ``takes``: whether it receives values. ``gives`` and ``brings``: the rows that are
    copied out and in."""

    collective = False

    __slots__ = (
        "_array", "_copied", "_direct", "_free", "_from_staging", "_inner", "_out", "_staging", "_started", "_takes", "_to_staging",
        "_transport", "_within",
    )

    def __init__(
        self, transport: StagedTransport, array: Any, inner: Callable[[Any], Channel], takes: bool, *,
        gives: slice | None = None, brings: slice | None = None,
    ) -> None:
        self._transport, self._array, self._takes = transport, array, takes
        self._direct = transport.direct and not (self.collective and is_narrow(array.dtype))  # the host adds up 16-bit floats
        self._staging = staging = array if self._direct else transport.device.pinned(array.shape, array.dtype)
        self._out, self._to_staging = (array, staging) if gives is None else (array[gives], staging[gives])
        self._within, self._from_staging = (array, staging) if brings is None else (array[brings], staging[brings])
        self._inner = inner(staging)
        self.peer, self.nbytes = self._inner.peer, array.nbytes
        self._free: Any = None  # when the GPU is ready for it to start
        self._copied: Any = None  # when the GPU has taken what the last one brought
        self._started = False

    @property
    def peers(self) -> tuple[int, ...]:
        return self._inner.peers

    def start(self) -> None:
        if not self.done():
            raise RuntimeError(f"{self}: started again before the last transfer was done; wait for it first")
        transport, device = self._transport, self._transport.device
        self._started = True
        self._free = device.mark() if self._direct else device.copy_out(self._out, self._to_staging)
        transport.expect(self)

    def begin(self) -> bool:
        """Start if the GPU is ready; return True if it is."""
        if not self._free.done:
            return False
        self._free = None
        self._inner.start()
        return True

    def done(self) -> bool:
        if not self._started:
            return True
        self._transport.progress()
        if self._free is not None or not self._inner.done():
            return False
        self._started = False
        if self._takes and not self._direct:
            self._copied = self._transport.device.copy_in(self._from_staging, self._within, self._copied)
        return True

    def __str__(self) -> str:
        waiting = " (the GPU has not got there yet)" if self._free is not None else ""
        return f"{self._inner}{waiting}"


class StagedReceive(Staged):
    """Message that only receives values: nothing is copied out before it."""

    __slots__ = ()

    def start(self) -> None:
        if self._direct:
            Staged.start(self)
            return
        if not self.done():
            raise RuntimeError(f"{self}: started again before the last transfer was done; wait for it first")
        device = self._transport.device
        self._started = True
        # The message may come at once, into pinned memory that the last one has left; the GPU's memory is free for it when
        # the GPU has done what it was asked for so far.
        if self._copied is not None:
            device.wait_for(self._copied)
        self._copied = device.mark()
        self._inner.start()


class StagedCollective(Staged):
    """Collective: values are copied out, MPI runs it, and results are copied in."""

    collective = True
    __slots__ = ()
