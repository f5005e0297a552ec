"""Budget of a command: what it takes to read the network, to search, and to predict the plans beside it, all count."""

from __future__ import annotations

import time
from dataclasses import replace
from math import inf

from taskflow.optimizer import Budget

LEAST_SECONDS = 10.0  # of a search, so that there is a good plan even if reading the network has taken all the time
KEPT = 0.15  # of a budget, for what is said about the plan
LEAST_BESIDE = 3.0  # seconds for all plans beside the one that was found, whatever is left of the budget
LEAST_PART = 1e-3  # seconds of one of several searches, if none are left
NEXT_SHARE = 0.2  # of a budget, for the plans next to it, where these are asked for


class CommandBudget:
    """A budget whose time runs from the creation of this object on. ``more``: a share that is kept for what follows a search,
    beside `KEPT`."""

    def __init__(self, text: str, more: float = 0.0) -> None:
        self.whole, self._more, self._began = Budget.parse(text), more, time.perf_counter()

    @property
    def left(self) -> float:
        """Seconds that are left, at least `LEAST_SECONDS`; no fewer than half of a budget that is smaller than those."""
        if self.whole.seconds == inf:
            return inf
        return max(min(LEAST_SECONDS, self.whole.seconds / 2), self.whole.seconds - (time.perf_counter() - self._began))

    @property
    def rest(self) -> float:
        """Seconds that are left, at least 0."""
        return max(0.0, self.whole.seconds - (time.perf_counter() - self._began))

    def part(self, share: float) -> Budget:
        """A share of the seconds that are left, for one of several searches; each may make all proposals."""
        return replace(self.whole, seconds=self.whole.seconds if self.whole.seconds == inf else max(LEAST_PART, share * self.rest))

    @property
    def beside(self) -> float:
        """Seconds that are left for the plans beside the one that was found, at least `LEAST_BESIDE`."""
        return inf if self.whole.seconds == inf else max(LEAST_BESIDE, self.rest - self._more * self.whole.seconds)

    @property
    def search(self) -> Budget:
        """What a search may take now: not what has been spent, nor what is kept for what follows."""
        if self.whole.seconds == inf:
            return self.whole
        return replace(self.whole, seconds=max(min(LEAST_SECONDS, self.left), self.left - (KEPT + self._more) * self.whole.seconds))
