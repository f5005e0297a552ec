"""Pending sends: a rank's sends that have begun and may not have ended, found by the memory that they still read."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes ``low`` to ``high`` of the arena (space -1) or of a persistent buffer (space: its number)."""

    space: int
    low: int
    high: int

    def meets(self, other: ByteRange) -> bool:
        """True if the ranges share a byte."""
        return self.space == other.space and self.low < other.high and other.low < self.high


class PendingSends:
    """Set of the sends that are under way. Send i reads ``spans[i]``.

    A tree over the sends, sorted by the beginning of their spans, stores at every node the farthest end of the pending sends
    below it. So the sends that a span meets are found without looking at the others.
    """

    def __init__(self, spans: Sequence[ByteRange]) -> None:
        self._order = sorted(range(len(spans)), key=lambda i: (spans[i].space, spans[i].low))
        self._begins = [(spans[i].space, spans[i].low) for i in self._order]
        self._ends = [(spans[i].space, spans[i].high) for i in self._order]
        self._places = {number: place for place, number in enumerate(self._order)}
        self._width = 1
        while self._width < len(spans):
            self._width *= 2
        self._farthest = [_NOWHERE] * (2 * self._width)
        self._begun: dict[int, int] = {}  # send -> when it began, by a counter
        self._clock = 0

    def __contains__(self, send: int) -> bool:
        return send in self._begun

    def begin(self, send: int) -> None:
        """Mark a send as under way."""
        self._clock += 1
        self._begun.setdefault(send, self._clock)
        place = self._places[send]
        self._put(place, self._ends[place])

    def meeting(self, span: ByteRange) -> list[int]:
        """Return the pending sends whose span meets this one, in the order in which they began, and mark them as over."""
        if not self._begun:
            return []
        below = bisect_left(self._begins, (span.space, span.high))  # those that begin before the span ends
        found: list[int] = []
        self._find(1, 0, self._width, below, (span.space, span.low), found)
        numbers = sorted((self._order[place] for place in found), key=self._begun.__getitem__)
        for place in found:
            self._put(place, _NOWHERE)
        for number in numbers:
            del self._begun[number]
        return numbers

    def _find(
        self, node: int, first: int, width: int, below: int, after: tuple[int, int], found: list[int]
    ) -> None:
        """Collect the places from ``first`` of ``width`` that are less than ``below`` and whose end lies ``after``."""
        if first >= below or self._farthest[node] <= after:
            return
        if width == 1:
            found.append(first)
            return
        half = width // 2
        self._find(2 * node, first, half, below, after, found)
        self._find(2 * node + 1, first + half, half, below, after, found)

    def _put(self, place: int, end: tuple[int, int]) -> None:
        farthest, node = self._farthest, self._width + place
        farthest[node] = end
        while node > 1:
            node //= 2
            best = max(farthest[2 * node], farthest[2 * node + 1])
            if farthest[node] == best:
                return
            farthest[node] = best


_NOWHERE = (-2, 0)
