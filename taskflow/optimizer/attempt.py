"""Attempt: a part of a search that begins from a plan of its own, as if nothing better were known."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from taskflow.mapper import Strategy

Ends = tuple[float, float]
"""When something is over: at how many seconds of the search's clock, at how many of its proposals (infinite: never)."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """``strategy``: the best plan since it began, at first the one that it begins from. ``ends``: of its own share of the budget.
    ``seconds``: of that plan; infinite as long as none has been found that fits the memory."""

    strategy: Strategy
    ends: Ends
    seconds: float = inf

    def after(self, strategy: Strategy, seconds: float) -> Attempt:
        """The same when a plan that fits the memory has been found: with it, if it takes fewer seconds."""
        return Attempt(strategy, self.ends, seconds) if seconds < self.seconds else self


def within(budget: Ends, now: Ends, seconds: float, proposals: float) -> Ends:
    """When so many seconds and proposals from ``now`` on are over, and no later than the budget."""
    return min(budget[0], now[0] + seconds), min(budget[1], now[1] + proposals)
