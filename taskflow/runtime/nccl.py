"""NCCLTransport: messages between GPUs by NCCL, one rank a GPU.

All messages go on one stream. Every rank starts its messages in the order in which the step's tasks stand, which is the same for
all; so the first message of that order that is not over is at the head of the stream on both of its ranks, and goes on: no two
ranks can wait for each other. That holds for collectives too, each set of ranks having a communicator of its own. The program
itself waits for nothing but the end of a step, and names what does not end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from taskflow.runtime.staged import WrappedTransport
from taskflow.runtime.transport import Channel, Collective, Transport


class NCCLTransport(WrappedTransport):
    """Making one is collective."""

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
        key = tuple(ranks)
        if key not in self._communicators:
            identity = self._nccl.get_unique_id() if self.rank == key[0] else None
            identity = self.inner.groups.of(key).bcast(identity)  # type: ignore[attr-defined]
            self._communicators[key] = self._communicator(len(key), identity, key.index(self.rank))
        return NCCLAllReduce(self, array, key)

    def _communicator(self, size: int, identity: Any, rank: int) -> Any:
        try:
            return self._nccl.NcclCommunicator(size, identity, rank)
        except Exception as error:  # CuPy's own type, which cannot be named without it
            raise RuntimeError(
                f"rank {self.rank}: NCCL does not start ({' '.join(str(error).split())}); NCCL_DEBUG=WARN says more, "
                "TASKFLOW_TRANSFERS=mpi-host goes without it"
            ) from error

    def start(self, channel: NCCLChannel | NCCLAllReduce) -> Any:
        """Put a message or collective on the stream, behind what the GPU was asked for so far; returns the event of its end."""
        array, stream, nccl = channel.array, self.device.transfer, self._nccl
        self.device.follow(stream)
        if isinstance(channel, NCCLAllReduce):
            kind = nccl.NCCL_FLOAT64 if array.dtype.itemsize == 8 else nccl.NCCL_FLOAT32
            around = self._communicators[channel.ranks]
            around.allReduce(array.data.ptr, array.data.ptr, array.size, kind, nccl.NCCL_SUM, stream.ptr)
        else:
            move = self.communicator.send if channel.sends else self.communicator.recv
            move(array.data.ptr, array.nbytes, nccl.NCCL_UINT8, channel.peer, stream.ptr)
        event = self.device.mark(stream)
        self._under_way.append(NCCLMessage(self, event, channel))
        return event

    def failed(self) -> None:
        """RuntimeError if NCCL has found that a peer or a link is gone."""
        for communicator in self._communicators.values():
            communicator.check_async_error()

    def settle(self) -> None:
        """Wait for the messages that were started, in their order: so that the first that does not end is the one that is named
        when the watchdog's time is over."""
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
    """A message under way, to wait for on the host."""

    __slots__ = ("_channel", "_event", "_transport")

    def __init__(self, transport: NCCLTransport, event: Any, channel: NCCLChannel | NCCLAllReduce) -> None:
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


class NCCLChannel(Channel):
    """One message a step. ``done`` makes the GPU wait, not the program: it is always true."""

    __slots__ = ("_event", "_transport", "array", "sends", "tag")

    def __init__(self, transport: NCCLTransport, array: Any, peer: int, tag: int, sends: bool) -> None:
        self.peer, self.nbytes, self.tag = peer, array.nbytes, tag
        self._transport, self.array, self.sends = transport, array, sends
        self._event: Any = None

    def start(self) -> None:
        self.done()
        self._event = self._transport.start(self)

    def done(self) -> bool:
        if self._event is not None:
            self._transport.device.compute_after(self._event)
            self._event = None
        return True

    def __str__(self) -> str:
        verb, side = ("send", "to") if self.sends else ("receive", "from")
        return f"{verb} {self.nbytes} bytes {side} rank {self.peer} by NCCL (tag {self.tag})"


class NCCLAllReduce(Collective):
    """One all-reduce a step, in place, of float32 or float64. As of messages, ``done`` makes the GPU wait."""

    __slots__ = ("_event", "_transport", "array")

    def __init__(self, transport: NCCLTransport, array: Any, ranks: tuple[int, ...]) -> None:
        if array.dtype.kind != "f" or array.dtype.itemsize not in (4, 8):
            raise ValueError(f"all-reduce of ranks {list(ranks)}: needs float32 or float64, got {array.dtype}")
        super().__init__(ranks, transport.rank, array.nbytes)
        self._transport, self.array = transport, array
        self._event: Any = None

    def start(self) -> None:
        self.done()
        self._event = self._transport.start(self)

    def done(self) -> bool:
        if self._event is not None:
            self._transport.device.compute_after(self._event)
            self._event = None
        return True

    def __str__(self) -> str:
        return f"add up {self.nbytes} bytes of ranks {', '.join(map(str, self.ranks))} by NCCL"
