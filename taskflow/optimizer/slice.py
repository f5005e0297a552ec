"""Slice: a share of a search's budget, for one of its phases."""

from __future__ import annotations

from math import inf, isfinite
from typing import Protocol

from taskflow.optimizer.attempt import Ends


class Spending(Protocol):
    """What has a budget: a `taskflow.optimizer.run.Run`."""

    proposals: int

    @property
    def elapsed(self) -> float:
        """Seconds of its clock."""

    @property
    def ends(self) -> Ends:
        """When the budget is over, or the attempt that it is at."""

    @property
    def over(self) -> bool:
        """Whether there is no time left."""


class Slice:
    """A share of what is left of a run's budget, or of the attempt that it is at."""

    def __init__(self, run: Spending, share: float) -> None:
        self._run = run
        self._from = (run.elapsed, run.proposals)
        seconds, proposals = run.ends
        self._to = (
            run.elapsed + share * max(0.0, seconds - run.elapsed),
            run.proposals + share * max(0.0, proposals - run.proposals),
        )

    @property
    def used(self) -> float:
        """How much of it is spent, 0 to 1."""
        (first, fewest), (last, most) = self._from, self._to
        used = 0.0
        if last < inf:
            used = (self._run.elapsed - first) / (last - first) if last > first else 1.0
        if most < inf:
            used = max(used, (self._run.proposals - fewest) / (most - fewest) if most > fewest else 1.0)
        return min(1.0, used)

    @property
    def time(self) -> float:
        """How much of its time is spent, 0 to 1; 0 if that is endless."""
        first, last = self._from[0], self._to[0]
        return min(1.0, (self._run.elapsed - first) / (last - first)) if last > first and isfinite(last) else float(last <= first)

    def left(self, seconds: float, proposals: float) -> bool:
        """Whether it has room for so many seconds and proposals."""
        return self._run.elapsed + seconds <= self._to[0] and self._run.proposals + proposals <= self._to[1]

    @property
    def width(self) -> float:
        """How many proposals it has."""
        return self._to[1] - self._from[1]

    @property
    def over(self) -> bool:
        """Whether it is spent, or the run is."""
        run, (seconds, proposals) = self._run, self._to
        return run.over or run.proposals >= proposals or run.elapsed >= seconds
