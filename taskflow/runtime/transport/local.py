"""LocalTransport: a job of one rank, without MPI. All its processors live in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from taskflow.runtime.transport.base import Channel, Transport

if TYPE_CHECKING:
    import numpy as np


class LocalTransport(Transport):
    """Rank 0 of 1: instead of messages there are copies in memory, which the executor makes."""

    rank = 0
    size = 1

    def sender(self, array: np.ndarray[Any, Any], peer: int, tag: int) -> Channel:
        _no_peer("send to", peer, tag)

    def receiver(self, array: np.ndarray[Any, Any], peer: int, tag: int) -> Channel:
        _no_peer("receive from", peer, tag)

    def all_reduce(self, array: np.ndarray[Any, Any], ranks: Sequence[int]) -> Channel:
        _no_ranks("add up arrays", ranks)

    def reduce_scatter(self, array: np.ndarray[Any, Any], counts: Sequence[int], ranks: Sequence[int]) -> Channel:
        _no_ranks("add up arrays", ranks)

    def all_gather(self, array: np.ndarray[Any, Any], counts: Sequence[int], ranks: Sequence[int]) -> Channel:
        _no_ranks("gather shares", ranks)

    def all_to_all(self, array: np.ndarray[Any, Any], counts: Sequence[Sequence[int]], ranks: Sequence[int]) -> Channel:
        _no_ranks("exchange elements", ranks)

    def wait(self, channel: Channel, what: str | Callable[[], str]) -> None:
        raise RuntimeError("LocalTransport: has no channels to wait for; this one belongs to another transport")

    def broadcast(self, value: Any, root: int = 0) -> Any:
        _check_root(root)
        return value

    def gather(self, value: Any, root: int = 0) -> list[Any] | None:
        _check_root(root)
        return [value]

    def barrier(self) -> None:
        pass

    def duplicate(self) -> LocalTransport:
        return LocalTransport()

    def close(self) -> None:
        pass


def _no_peer(verb: str, peer: int, tag: int) -> NoReturn:
    raise ValueError(
        f"LocalTransport: asked to {verb} rank {peer} (tag {tag}), but this job has only rank 0, whose processors copy "
        "in memory; start the program with mpirun -n for more ranks"
    )


def _no_ranks(verb: str, ranks: Sequence[int]) -> NoReturn:
    raise ValueError(f"LocalTransport: asked to {verb} of ranks {list(ranks)}, but this job has only rank 0")


def _check_root(root: int) -> None:
    if root != 0:
        raise ValueError(f"LocalTransport: root must be 0, the only rank, got {root}")
