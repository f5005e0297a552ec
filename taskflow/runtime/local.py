"""LocalTransport."""

from __future__ import annotations

from typing import Any

from taskflow.runtime.transport import Channel, Transport


class LocalTransport(Transport):
    rank, size = 0, 1

    def sender(self, array: Any, peer: int, tag: int) -> Channel:
        raise RuntimeError("local")

    receiver = sender

    def wait(self, channel: Channel, what: Any) -> None: ...

    def broadcast(self, value: Any, root: int = 0) -> Any:
        return value

    def gather(self, value: Any, root: int = 0) -> list[Any] | None:
        return [value]

    def barrier(self) -> None: ...

    def close(self) -> None: ...
