"""Transport: how ranks exchange messages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any


class Channel(ABC):
    """One persistent message: the same buffer, peer and tag every step."""

    peer: int
    nbytes: int

    @abstractmethod
    def start(self) -> None:
        """Begin this step's transfer."""

    @abstractmethod
    def done(self) -> bool:
        """Test, never blocks; True if not started or complete."""


class Transport(ABC):
    rank: int
    size: int

    @abstractmethod
    def sender(self, array: Any, peer: int, tag: int) -> Channel: ...
    @abstractmethod
    def receiver(self, array: Any, peer: int, tag: int) -> Channel: ...
    @abstractmethod
    def wait(self, channel: Channel, what: str | Callable[[], str]) -> None: ...
    @abstractmethod
    def broadcast(self, value: Any, root: int = 0) -> Any: ...
    @abstractmethod
    def gather(self, value: Any, root: int = 0) -> list[Any] | None: ...
    @abstractmethod
    def barrier(self) -> None: ...
    @abstractmethod
    def close(self) -> None: ...
