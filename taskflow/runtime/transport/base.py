"""Transport: how the ranks of a job exchange messages. One interface, with and without MPI."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


class Channel(ABC):
    """One persistent message (the same buffer, peer and tag in every step), or a collective. Made once, started once in each
    step."""

    __slots__ = ("nbytes", "peer")

    peer: int
    """Rank at the other end; of a collective, one of the others."""
    nbytes: int
    """Size of the message in bytes, the same at both ends."""

    @property
    def peers(self) -> tuple[int, ...]:
        """The other ranks that take part."""
        return (self.peer,)

    @abstractmethod
    def start(self) -> None:
        """Begin this step's transfer. The buffer of a send must be full, that of a receive free; neither may be touched before
        ``done``. Raises RuntimeError if the previous transfer has not ended."""

    @abstractmethod
    def done(self) -> bool:
        """True if the transfer has ended, or none was started. Never blocks."""


class Collective(Channel):
    """A channel among ``ranks``, seen from ``rank``. ``does``: what it does with how many bytes of which ranks."""

    does = "add up {} bytes of ranks {}"
    __slots__ = ("_others", "ranks")

    def __init__(self, ranks: Sequence[int], rank: int, nbytes: int) -> None:
        self.ranks, self.nbytes = tuple(ranks), nbytes
        self._others = tuple(other for other in ranks if other != rank)
        self.peer = self._others[0]

    def __str__(self) -> str:
        return self.does.format(self.nbytes, ", ".join(map(str, self.ranks)))

    @property
    def peers(self) -> tuple[int, ...]:
        return self._others


def verify_shares(who: str, array: Any, counts: Sequence[int], ranks: Sequence[int]) -> tuple[int, ...]:
    """Return where the shares of ``ranks`` in a one-dimensional array begin and end. Raises ValueError that begins with ``who``
    if the counts do not meet the requirements of `Transport.reduce_scatter`."""
    if len(counts) != len(ranks) or min(counts) < 0 or (sum(counts),) != array.shape:
        raise ValueError(
            f"{who}: needs a count of each rank's elements, 0 or more, which together are those of a one-dimensional array; got "
            f"{list(counts)} for an array of shape {array.shape}"
        )
    return tuple(accumulate(counts, initial=0))


def verify_exchange(who: str, array: Any, counts: Sequence[Sequence[int]], ranks: Sequence[int], rank: int) -> int:
    """Return how many elements ``rank`` gives in an all-to-all. Raises ValueError that begins with ``who`` if the counts do not
    meet the requirements of `Transport.all_to_all`."""
    count, place = len(ranks), list(ranks).index(rank)
    square = len(counts) == count and all(len(row) == count and min(row) >= 0 and row[n] == 0 for n, row in enumerate(counts))
    given, got = (sum(counts[place]), sum(row[place] for row in counts)) if square else (0, -1)
    if array.shape != (given + got,):
        raise ValueError(
            f"{who}: needs for each rank how many elements, 0 or more, it gives each other one, and a one-dimensional array of "
            f"what this one gives and gets; got {[list(row) for row in counts]} for an array of shape {array.shape}"
        )
    return given


class Transport(ABC):
    """The ranks of one job, seen from one of them. Every rank makes the calls that involve all (``broadcast``,
    ``gather``, ``barrier``) in the same order."""

    rank: int
    """This rank, from 0."""
    size: int
    """How many ranks the job has."""
    bytes_sent: int = 0
    """Bytes of all sends started on channels."""
    bytes_received: int = 0
    """Bytes of all receives ended on channels."""
    messages: int = 0
    """How many sends were started on channels."""
    _next_tag: int = 0
    device: Any = None
    """The device whose arrays it takes; None: the host."""

    @abstractmethod
    def sender(self, array: np.ndarray[Any, Any], peer: int, tag: int) -> Channel:
        """Return a channel that sends ``array`` (C-contiguous, any dtype) to rank ``peer``. Raises ValueError if it cannot."""

    @abstractmethod
    def receiver(self, array: np.ndarray[Any, Any], peer: int, tag: int) -> Channel:
        """Return a channel that fills ``array`` (C-contiguous, writable) from rank ``peer``. Raises ValueError if it cannot."""

    @abstractmethod
    def all_reduce(self, array: np.ndarray[Any, Any], ranks: Sequence[int]) -> Channel:
        """Return a channel that adds up the arrays of all ``ranks``, so that each has the sum, with the same bits everywhere.
        ``ranks``: two or more, ascending, including this one. Arrays: C-contiguous, writable, of one shape and floating type.
        All ranks of one set must make its channels in the same order and start them in the same order, whatever they do with
        other sets."""

    @abstractmethod
    def reduce_scatter(self, array: np.ndarray[Any, Any], counts: Sequence[int], ranks: Sequence[int]) -> Channel:
        """Return a channel like that of `all_reduce` for one-dimensional arrays, except that each rank gets only its share of
        the sum, at its place in ``array``. The share of the nth of ``ranks`` is ``counts[n]`` elements long and follows the
        previous one. Counts may be 0; together they are the whole array. The rest of ``array`` is overwritten."""

    @abstractmethod
    def all_gather(self, array: np.ndarray[Any, Any], counts: Sequence[int], ranks: Sequence[int]) -> Channel:
        """Return a channel that fills the one-dimensional ``array`` with the other ranks' shares, laid out as in
        `reduce_scatter`; this rank's share must be in place. Made and started like those of `all_reduce`."""

    @abstractmethod
    def all_to_all(self, array: np.ndarray[Any, Any], counts: Sequence[Sequence[int]], ranks: Sequence[int]) -> Channel:
        """Return a channel by which each of ``ranks`` gives every other one ``counts[giver][taker]`` elements (indexed by their
        places; none to itself). The one-dimensional ``array``, of any type, holds what this rank gives, by taker, followed by
        what it gets, by giver. Made and started like those of `all_reduce`."""

    def reserve_tags(self, count: int) -> int:
        """Return the first of ``count`` consecutive tags that nothing else on this transport uses. Every rank calls it with the
        same counts in the same order."""
        first, self._next_tag = self._next_tag, self._next_tag + count
        return first

    @abstractmethod
    def wait(self, channel: Channel, what: str | Callable[[], str]) -> None:
        """Wait until ``channel`` is done, leaving the core to others meanwhile. ``what`` names the task that needs it, for the
        message that ends the job if the peer has left or the watchdog's limit has passed."""

    @abstractmethod
    def broadcast(self, value: Any, root: int = 0) -> Any:
        """Return the ``value`` (picklable, small) of rank ``root``, on every rank."""

    @abstractmethod
    def gather(self, value: Any, root: int = 0) -> list[Any] | None:
        """Return the values (picklable, small) of all ranks by rank, on rank ``root``; None on the others."""

    @abstractmethod
    def barrier(self) -> None:
        """Wait until every rank has called it."""

    @contextmanager
    def patient(self, seconds: float) -> Iterator[None]:
        """Make this rank's watchdog wait at least this long within the block, because another rank is planning or measuring."""
        yield

    def settle(self) -> None:
        """Wait until all messages that were started are under way, whatever work the device has queued before them. Called at
        the end of a step."""

    def describe(self) -> str:
        """Describe how messages travel, where that is worth saying."""
        return ""

    @abstractmethod
    def duplicate(self) -> Transport:
        """Return a transport between the same ranks whose messages never mix with this one's, whatever their tags. Every rank
        calls it; the caller closes the new one."""

    @abstractmethod
    def close(self) -> None:
        """Free the resources of the channels. Safe to call twice."""
