"""NCCLTransport: messages between GPUs by NCCL, one rank a GPU.

All messages go on one stream. Every rank starts its messages in the order in which the step's tasks stand, which is the same for
all; so the first message of that order that is not over is at the head of the stream on both of its ranks, and goes on: no two
ranks can wait for each other. The program itself waits for nothing but the end of a step, and names what does not end.
"""

from __future__ import annotations

from typing import Any

from taskflow.runtime.staged import WrappedTransport
from taskflow.runtime.transport import Channel, Transport


class NCCLTransport(WrappedTransport):
    """Making one is collective."""

    def __init__(self, inner: Transport, device: Any, choice: object) -> None:
        super().__init__(inner, device, choice)
        from cupy.cuda import nccl

        self._nccl: Any = nccl
        identity = inner.broadcast(nccl.get_unique_id() if inner.rank == 0 else None)
        try:
            self.communicator: Any = nccl.NcclCommunicator(inner.size, identity, inner.rank)
        except Exception as error:  # CuPy's own type, which cannot be named without it
            raise RuntimeError(
                f"rank {inner.rank}: NCCL does not start ({' '.join(str(error).split())}); NCCL_DEBUG=WARN says more, "
                "TASKFLOW_TRANSFERS=mpi-host goes without it"
            ) from error
        self._under_way: list[NCCLMessage] = []

    def sender(self, array: Any, peer: int, tag: int) -> Channel:
        return NCCLChannel(self, array, peer, tag, sends=True)

    def receiver(self, array: Any, peer: int, tag: int) -> Channel:
        return NCCLChannel(self, array, peer, tag, sends=False)

    def start(self, channel: NCCLChannel) -> Any:
        """Put a message on the stream, behind what the GPU has been asked for so far; returns the event of its end."""
        array, stream = channel.array, self.device.transfer
        self.device.follow(stream)
        move = self.communicator.send if channel.sends else self.communicator.recv
        move(array.data.ptr, array.nbytes, self._nccl.NCCL_UINT8, channel.peer, stream.ptr)
        event = self.device.mark(stream)
        self._under_way.append(NCCLMessage(self, event, channel))
        return event

    def failed(self) -> None:
        """RuntimeError if NCCL has found that a peer or a link is gone."""
        self.communicator.check_async_error()

    def settle(self) -> None:
        """Wait for the messages that were started, in their order: so that the first that does not end is the one that is named
        when the watchdog's time is over."""
        under_way, self._under_way = self._under_way, []
        for message in under_way:
            self.inner.wait(message, "NCCL")

    def duplicate(self) -> NCCLTransport:
        return NCCLTransport(self.inner.duplicate(), self.device, self.choice)

    def close(self) -> None:
        self.communicator.destroy()
        super().close()


class NCCLMessage(Channel):
    """A message under way, to wait for on the host."""

    __slots__ = ("_channel", "_event", "_transport")

    def __init__(self, transport: NCCLTransport, event: Any, channel: NCCLChannel) -> None:
        self.peer, self.nbytes = channel.peer, channel.nbytes
        self._transport, self._event, self._channel = transport, event, channel

    def start(self) -> None:
        raise RuntimeError(f"{self}: is under way; start its channel")

    def done(self) -> bool:
        if self._event.done:
            return True
        self._transport.failed()
        return False

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

