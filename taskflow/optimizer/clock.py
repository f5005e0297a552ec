"""Clock: how much of a search's time is left, for all its phases and threads together."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from math import inf

from taskflow.mapper import OpConfig

SMALL = 0.4  # seconds that may be spent beyond any budget, and
SHARE = 0.04  # share of the budget: what has begun cannot be stopped, and its time is only estimated
FADE = 0.8  # of an estimate of seconds a piece, at each new measurement below it


class Clock:
    """Counts from its making. ``seconds``: of the whole search. ``stopped``: the user wants it to end now. ``now``: another timer
    (benchmarks beside other work count the processor's time)."""

    def __init__(self, seconds: float = inf, now: Callable[[], float] = time.perf_counter) -> None:
        self.seconds, self.stopped = seconds, False
        self._now, self._begin = now, now()

    @property
    def elapsed(self) -> float:
        """Seconds since it was made. Whatever is held against what is left is measured by this, not by another timer."""
        return self._now() - self._begin

    @property
    def left(self) -> float:
        """Seconds, at least 0; none once it is stopped."""
        return 0.0 if self.stopped else max(0.0, self.seconds - self.elapsed)

    @property
    def over(self) -> bool:
        return self.left <= 0.0

    def allows(self, seconds: float) -> bool:
        """Whether something that takes about so long, and cannot be stopped once it has begun, may begin."""
        left = self.left
        return left > 0.0 and seconds <= left + max(SMALL, SHARE * self.seconds)


class Pace:
    """How long a strategy takes to evaluate, estimated from how long others took. Most of it goes by pieces: those of cuts
    that have not been looked at yet, whose geometry and costs are worked out once, and those of all operators."""

    def __init__(self) -> None:
        self._known: set[tuple[str, tuple[int, ...]]] = set()
        self._new, self._every = 0.0, 0.0  # seconds a piece

    def expected(self, changes: Mapping[str, OpConfig], pieces: int) -> float:
        """Seconds for these configurations of some operators; all operators together have ``pieces`` pieces."""
        return self._new * self._fresh(changes) + self._every * pieces

    def learn(self, changes: Mapping[str, OpConfig], pieces: int, seconds: float) -> None:
        """They took ``seconds``."""
        fresh = self._fresh(changes)
        if fresh * 4 > pieces:
            self._new = max(self._new * FADE, (seconds - self._every * pieces) / fresh)
        else:
            self._every = max(self._every * FADE, seconds / max(1, pieces))
        self._known.update((name, config.degrees) for name, config in changes.items())

    def _fresh(self, changes: Mapping[str, OpConfig]) -> int:
        return sum(
            len(config.processors) for name, config in changes.items() if (name, config.degrees) not in self._known
        )
