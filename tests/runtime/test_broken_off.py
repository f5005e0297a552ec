"""A wait that is broken off leaves the message's memory to MPI, which may still read or write there."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any

import pytest

from taskflow.runtime.transport import mpi
from taskflow.runtime.transport.mpi import MPITransport


class Request:
    def Test(self) -> bool:
        return True


def transport(waits: Any) -> tuple[Any, list[weakref.ref[Any]]]:
    """What a transport's messages of values need, and their memory."""
    memory: list[weakref.ref[Any]] = []

    def begin(buffer: Any, peer: int, tag: int) -> Request:
        request = Request()
        memory.append(weakref.ref(request))
        return request

    ranks = SimpleNamespace(control=SimpleNamespace(Isend=begin, Irecv=begin), ring=lambda peer: None)
    made = SimpleNamespace(
        ranks=ranks, _wait=waits, _pieces=lambda data: [memoryview(data)[:1]], all_ended=lambda requests: True
    )
    return made, memory


def test_what_is_waited_for_in_vain_is_kept() -> None:
    def broken_off(*arguments: Any) -> None:
        raise KeyboardInterrupt

    before = set(mpi._UNDER_WAY)
    try:
        for act in (
            lambda it: MPITransport._receive_bytes(it, 1, "a value"),
            lambda it: MPITransport._send_bytes(it, b"value", 1)("a value"),
        ):
            it, memory = transport(broken_off)
            with pytest.raises(KeyboardInterrupt):
                act(it)
            gc.collect()
            assert memory and all(request() is not None for request in memory)
        kept = [mpi._UNDER_WAY[key] for key in mpi._UNDER_WAY if key not in before]
        assert len(kept) == 2 and all(any(isinstance(part, (bytes, bytearray)) for part in parts) for parts in kept)
    finally:
        for key in set(mpi._UNDER_WAY) - before:
            del mpi._UNDER_WAY[key]


def test_what_has_ended_is_not() -> None:
    before = dict(mpi._UNDER_WAY)
    it, _ = transport(lambda *arguments: None)
    assert len(MPITransport._receive_bytes(it, 1, "a value")) == 0
    MPITransport._send_bytes(it, b"value", 1)("a value")
    assert before == mpi._UNDER_WAY
