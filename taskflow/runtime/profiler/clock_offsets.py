"""Clocks: offsets between the clocks of ranks, so that times of several ranks can be drawn on one axis.

Cristian's method ("Probabilistic clock synchronization", 1989): of several round trips the shortest one is the most exact,
since the other clock was read somewhere within it. It is measured before and after; the difference between the two is the
drift.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from taskflow.runtime.transport import Channel, Transport

Clock = Callable[[], float]
"""Seconds from any beginning, never going back."""
_ROUNDS = 50


@dataclass(frozen=True, slots=True)
class Offset:
    """Offset of a rank's clock: ``seconds`` ahead of rank 0's when it showed ``at``, wrong by at most ``error`` seconds."""

    at: float
    seconds: float
    error: float


class Clocks:
    """The clocks of a job's ranks. Every rank makes one and calls `measure` at the same places."""

    def __init__(self, transport: Transport, clock: Clock = perf_counter) -> None:
        self.clock = clock
        self._transport = transport
        self._ends: dict[int, tuple[Any, Channel, Any, Channel]] = {}
        first = transport.reserve_tags(2)
        peers = range(1, transport.size) if transport.rank == 0 else (0,)
        for peer in peers if transport.size > 1 else ():
            out, back = np.zeros(1), np.zeros(1)
            asks = first + (0 if transport.rank else 1)
            answers = first + (1 if transport.rank else 0)
            self._ends[peer] = out, transport.sender(out, peer, asks), back, transport.receiver(back, peer, answers)

    def measure(self, rounds: int = _ROUNDS) -> Offset:
        """Measure this rank's offset from the shortest of ``rounds`` round trips to rank 0. Every rank calls it."""
        if self._transport.rank == 0:
            for peer in self._ends:
                for _ in range(rounds):
                    self._answer(peer)
            return Offset(self.clock(), 0.0, 0.0)
        return min((self._ask() for _ in range(rounds)), key=lambda offset: offset.error)

    def _answer(self, peer: int) -> None:
        out, send, _, receive = self._ends[peer]
        receive.start()
        self._transport.wait(receive, f"clock of rank {peer}")
        self._transport.wait(send, f"clock for rank {peer}")  # the answer before
        out[0] = self.clock()
        send.start()

    def _ask(self) -> Offset:
        _, send, back, receive = self._ends[0]
        receive.start()
        self._transport.wait(send, "question for the clock of rank 0")
        before = self.clock()
        send.start()
        self._transport.wait(receive, "clock of rank 0")
        after = self.clock()
        return Offset((before + after) / 2, (before + after) / 2 - float(back[0]), (after - before) / 2)


def on_first_clock(times: Any, first: Offset, last: Offset) -> Any:
    """Convert times of a rank's clock (an array) to rank 0's clock. The offset at each time lies on the line through two
    measurements. If these differ by no more than their errors, the more exact one is used throughout."""
    span, change = last.at - first.at, last.seconds - first.seconds
    if span <= 0 or abs(change) <= first.error + last.error:
        return times - min(first, last, key=lambda offset: offset.error).seconds
    return times - (first.seconds + change / span * (times - first.at))
