"""NCCLTransport: messages between GPUs by NCCL, with one rank for each GPU.

All messages go on one stream. Every rank starts its messages in the order of the step's tasks, which is the same for all. So
the first unfinished message in that order is at the head of the stream on both of its ranks, and proceeds: no two ranks can
wait for each other. The same holds for collectives; each set of ranks has its own communicator. The program itself waits only
for the end of a step, and names a message that does not end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from taskflow.floats import is_narrow
from taskflow.runtime.transport.base import Channel, Collective, Transport, verify_exchange, verify_shares
from taskflow.runtime.transport.staged import WrappedTransport


class NCCLTransport(WrappedTransport):
    """Transport of one rank. Making one is collective."""

    def __init__(self, inner: Transport, device: Any, choice: object) -> None:
        super().__init__(inner, device, choice)
        from cupy.cuda import nccl

        self._nccl: Any = nccl
        identity = inner.broadcast(nccl.get_unique_id() if inner.rank == 0 else None)
        self.communicator: Any = self._communicator(inner.size, identity, inner.rank)
        self._communicators = {tuple(range(inner.size)): self.communicator}
        self._under_way: list[NCCLMessage] = []

    def sender(self, array: Any, peer: int, tag: int) -> Channel:
        return NCCLChannel(self, array, peer, tag, sends=True)

    def receiver(self, array: Any, peer: int, tag: int) -> Channel:
        return NCCLChannel(self, array, peer, tag, sends=False)

    def all_reduce(self, array: Any, ranks: Sequence[int]) -> Channel:
        if is_narrow(array.dtype):
            many = len(ranks)
            counts = [array.size * (n + 1) // many - array.size * n // many for n in range(many)]
            return NCCLSixteenBitSum(self, array.reshape(-1), counts, self._group(ranks), spreads=True)
        return NCCLAllReduce(self, array, self._group(ranks))

    def reduce_scatter(self, array: Any, counts: Sequence[int], ranks: Sequence[int]) -> Channel:
        if is_narrow(array.dtype):
            return NCCLSixteenBitSum(self, array, counts, self._group(ranks), spreads=False)
        return NCCLReduceScatter(self, array, counts, self._group(ranks))

    def all_gather(self, array: Any, counts: Sequence[int], ranks: Sequence[int]) -> Channel:
        return NCCLAllGather(self, array, counts, self._group(ranks))

    def all_to_all(self, array: Any, counts: Sequence[Sequence[int]], ranks: Sequence[int]) -> Channel:
        return NCCLAllToAll(self, array, counts, self._group(ranks))

    def _group(self, ranks: Sequence[int]) -> tuple[int, ...]:
        """``ranks``, of which there is now a communicator."""
        key = tuple(ranks)
        if key not in self._communicators:
            identity = self._nccl.get_unique_id() if self.rank == key[0] else None
            identity = self.inner.groups.of(key).bcast(identity)  # type: ignore[attr-defined]
            self._communicators[key] = self._communicator(len(key), identity, key.index(self.rank))
        return key

    def _communicator(self, size: int, identity: Any, rank: int) -> Any:
        try:
            return self._nccl.NcclCommunicator(size, identity, rank)
        except Exception as error:  # CuPy's own type, which cannot be named without it
            raise RuntimeError(
                f"rank {self.rank}: NCCL does not start ({' '.join(str(error).split())}); NCCL_DEBUG=WARN says more, "
                "TASKFLOW_TRANSFERS=mpi-host goes without it"
            ) from error

    def start(self, channel: OnStream) -> Any:
        """Put a message or collective on the stream, after all work queued so far on the GPU; return the event of its end."""
        stream, nccl = self.device.transfer, self._nccl
        self.device.follow(stream)
        channel.ask(nccl, self._communicators[channel.ranks], stream.ptr)
        event = self.device.mark(stream)
        self._under_way.append(NCCLMessage(self, event, channel))
        return event

    def failed(self) -> None:
        """Raise RuntimeError if NCCL has found that a peer or a link is gone."""
        for communicator in self._communicators.values():
            communicator.check_async_error()

    def settle(self) -> None:
        """Wait for the messages that were started, in their order, so that the first one that does not end is named when the
        watchdog's time is over."""
        under_way, self._under_way = self._under_way, []
        for message in under_way:
            self.inner.wait(message, "NCCL")

    def duplicate(self) -> NCCLTransport:
        return NCCLTransport(self.inner.duplicate(), self.device, self.choice)

    def close(self) -> None:
        for communicator in self._communicators.values():
            communicator.destroy()
        super().close()


class NCCLMessage(Channel):
    """Message under way, for waiting on the host."""

    __slots__ = ("_channel", "_event", "_transport")

    def __init__(self, transport: NCCLTransport, event: Any, channel: OnStream) -> None:
        self.peer, self.nbytes = channel.peer, channel.nbytes
        self._transport, self._event, self._channel = transport, event, channel

    def start(self) -> None:
        raise RuntimeError(f"{self}: is under way; start its channel")

    def done(self) -> bool:
        if self._event.done:
            return True
        self._transport.failed()
        return False

    @property
    def peers(self) -> tuple[int, ...]:
        return self._channel.peers

    def __str__(self) -> str:
        return str(self._channel)


class OnStream(Channel):
    """A message or collective on the stream. ``done`` is always true: it makes the GPU wait, not the program."""

    __slots__ = ()
    ranks: tuple[int, ...]
    """Those of its communicator."""
    _transport: NCCLTransport
    _event: Any  # of the end of what was started; None: the GPU waits for it already

    @abstractmethod
    def ask(self, nccl: Any, communicator: Any, stream: int) -> None:
        """Call NCCL (CuPy's module) for it."""

    def start(self) -> None:
        self.done()
        self._event = self._transport.start(self)

    def done(self) -> bool:
        if self._event is not None:
            self._transport.device.compute_after(self._event)
            self._event = None
        return True


class NCCLChannel(OnStream):
    """One message in each step."""

    __slots__ = ("_event", "_transport", "array", "ranks", "sends", "tag")

    def __init__(self, transport: NCCLTransport, array: Any, peer: int, tag: int, sends: bool) -> None:
        self.peer, self.nbytes, self.tag = peer, array.nbytes, tag
        self._transport, self.array, self.sends = transport, array, sends
        self.ranks = tuple(range(transport.size))
        self._event = None

    def ask(self, nccl: Any, communicator: Any, stream: int) -> None:
        move = communicator.send if self.sends else communicator.recv
        move(self.array.data.ptr, self.nbytes, nccl.NCCL_UINT8, self.peer, stream)

    def __str__(self) -> str:
        verb, side = ("send", "to") if self.sends else ("receive", "from")
        return f"{verb} {self.nbytes} bytes {side} rank {self.peer} by NCCL (tag {self.tag})"


class NCCLCollective(OnStream, Collective, ABC):
    """One collective in each step, in place; NCCL's sums are of float32 or float64."""

    name = "collective"
    sums = True
    __slots__ = ("_event", "_transport", "array", "place")

    def __init__(self, transport: NCCLTransport, array: Any, ranks: tuple[int, ...]) -> None:
        if self.sums and (array.dtype.kind != "f" or array.dtype.itemsize not in (4, 8)):
            raise ValueError(f"{self.name} of ranks {list(ranks)}: needs float32 or float64, got {array.dtype}")
        super().__init__(ranks, transport.rank, array.nbytes)
        self._transport, self.array, self.place = transport, array, ranks.index(transport.rank)
        self._event = None

    def kind(self, nccl: Any) -> int:
        """NCCL's number for the array's type."""
        number: int = nccl.NCCL_FLOAT64 if self.array.dtype.itemsize == 8 else nccl.NCCL_FLOAT32
        return number


class NCCLAllReduce(NCCLCollective):
    """ncclAllReduce."""

    name, does = "all-reduce", "add up {} bytes of ranks {} by NCCL"
    __slots__ = ()

    def ask(self, nccl: Any, communicator: Any, stream: int) -> None:
        at = self.array.data.ptr
        communicator.allReduce(at, at, self.array.size, self.kind(nccl), nccl.NCCL_SUM, stream)


class NCCLShares(NCCLCollective):
    """Collective of which each rank has a share. NCCL's own collectives need shares of one size. Shares of other sizes go to,
    or from, their rank by one call each, in one group of calls, which NCCL runs together."""

    __slots__ = ("_cuts", "even")

    def __init__(self, transport: NCCLTransport, array: Any, counts: Sequence[int], ranks: tuple[int, ...]) -> None:
        super().__init__(transport, array, ranks)
        self._cuts = verify_shares(f"{self.name} of ranks {list(ranks)}", array, counts, ranks)
        self.even = len(set(counts)) == 1

    def at(self, place: int) -> tuple[int, int]:
        """Return the address of the share of a rank, given by its place among the ranks, and its number of elements."""
        first = self._cuts[place]
        return self.array.data.ptr + first * self.array.dtype.itemsize, self._cuts[place + 1] - first

    def some(self) -> Iterator[tuple[int, int, int]]:
        """Return the shares that are not empty: the rank's place, and what ``at`` returns."""
        return ((place, *self.at(place)) for place in range(len(self.ranks)) if self._cuts[place] < self._cuts[place + 1])


class NCCLReduceScatter(NCCLShares):
    """ncclReduceScatter, or an ncclReduce for each share."""

    name, does = "reduce-scatter", "add up {} bytes of ranks {}, a share for each, by NCCL"
    __slots__ = ()

    def ask(self, nccl: Any, communicator: Any, stream: int) -> None:
        kind, add = self.kind(nccl), nccl.NCCL_SUM
        if self.even:
            own, count = self.at(self.place)
            communicator.reduceScatter(self.array.data.ptr, own, count, kind, add, stream)
            return
        nccl.groupStart()
        for place, share, count in self.some():
            communicator.reduce(share, share, count, kind, add, place, stream)
        nccl.groupEnd()


class NCCLAllGather(NCCLShares):
    """ncclAllGather, or an ncclBroadcast of each share; both of bytes."""

    name, sums, does = "all-gather", False, "gather {} bytes from ranks {} by NCCL"
    __slots__ = ()

    def ask(self, nccl: Any, communicator: Any, stream: int) -> None:
        size, kind = self.array.dtype.itemsize, nccl.NCCL_UINT8
        if self.even:
            own, count = self.at(self.place)
            communicator.allGather(own, self.array.data.ptr, count * size, kind, stream)
            return
        nccl.groupStart()
        for place, share, count in self.some():
            communicator.broadcast(share, share, count * size, kind, place, stream)
        nccl.groupEnd()


class NCCLSixteenBitSum(NCCLShares):
    """Sum of 16-bit floats, which NCCL would round at each step of its ring: every rank gets all ranks' values of its own share,
    adds them up in float32 in the order of the ranks, and rounds once (as `MPISixteenBitSum`). ``spreads``: all get the sum.
    The additions are on the stream of the messages."""

    name, sums, does = "sum", False, "add up {} bytes of ranks {} by NCCL, in 16 bits"
    __slots__ = ("_got", "_spreads", "_wide")

    def __init__(
        self, transport: NCCLTransport, array: Any, counts: Sequence[int], ranks: tuple[int, ...], spreads: bool
    ) -> None:
        super().__init__(transport, array, counts, ranks)
        self._spreads = spreads
        xp, own = transport.device.xp, array[self._cuts[self.place] : self._cuts[self.place + 1]]
        self._got = [own if n == self.place else xp.empty(own.shape, own.dtype) for n in range(len(ranks))]
        self._wide = xp.empty(own.shape, np.float32)

    def ask(self, nccl: Any, communicator: Any, stream: int) -> None:
        shares = [(share, count * self.array.dtype.itemsize) for share, count in map(self.at, range(len(self.ranks)))]
        own, nbytes = shares[self.place]
        self._exchange(nccl, communicator, stream, shares, [(part.data.ptr, nbytes) for part in self._got])
        device = self._transport.device
        with device.among_messages():
            for number, part in enumerate(self._got):
                device.widen(part, self._wide, accumulate=number > 0)
            device.round_into(self._wide, self._got[self.place])
        if self._spreads:
            self._exchange(nccl, communicator, stream, [(own, nbytes)] * len(shares), shares)

    def _exchange(
        self, nccl: Any, communicator: Any, stream: int, gives: Sequence[tuple[int, int]], gets: Sequence[tuple[int, int]]
    ) -> None:
        """Send to each other rank and receive from it: an address and a number of bytes for each."""
        nccl.groupStart()
        for peer, ((given, out), (got, coming)) in enumerate(zip(gives, gets)):
            if peer != self.place and out:
                communicator.send(given, out, nccl.NCCL_UINT8, peer, stream)
            if peer != self.place and coming:
                communicator.recv(got, coming, nccl.NCCL_UINT8, peer, stream)
        nccl.groupEnd()


class NCCLAllToAll(NCCLCollective):
    """An ncclSend to each other rank and an ncclRecv from it, of bytes, all in one group of calls."""

    name, sums, does = "all-to-all", False, "exchange {} bytes among ranks {} by NCCL"
    __slots__ = ("_given", "_got")

    def __init__(self, transport: NCCLTransport, array: Any, counts: Sequence[Sequence[int]], ranks: tuple[int, ...]) -> None:
        super().__init__(transport, array, ranks)
        verify_exchange(f"{self.name} of ranks {list(ranks)}", array, counts, ranks, transport.rank)
        row, column = counts[self.place], [row[self.place] for row in counts]
        starts = [start * array.dtype.itemsize for start in accumulate((*row, *column), initial=0)]
        blocks = [(start, end - start) for start, end in zip(starts, starts[1:])]  # first byte and bytes
        self._given, self._got = blocks[: len(ranks)], blocks[len(ranks) :]

    def ask(self, nccl: Any, communicator: Any, stream: int) -> None:
        at, kind = self.array.data.ptr, nccl.NCCL_UINT8
        nccl.groupStart()
        for peer, ((given, out), (got, coming)) in enumerate(zip(self._given, self._got)):
            if out:
                communicator.send(at + given, out, kind, peer, stream)
            if coming:
                communicator.recv(at + got, coming, kind, peer, stream)
        nccl.groupEnd()
