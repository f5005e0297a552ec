"""Yardstick: tells whether a core computes as fast as it usually does while something is measured on it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from statistics import median_low
from time import thread_time

import numpy as np

LIMIT = 1.2  # times the usual
MEMORY = 64  # looks that say what is usual
SIZE, PRODUCTS, TIMES = 48, 48, 3


class SpeedProbe:
    """A fixed piece of work that stays in the first cache: a tenth of a millisecond of small matrix products.

    What a rented machine calls a core is one thread of a real one, and whoever owns the machine moves these threads
    about. While two of them share a real core each is slower, by a tenth to a half by what the other one does, for
    tenths of seconds or minutes. No clock of the guest shows it: neither that of other programs nor the processor time
    of this one (docs/benchmarks.md). What is usual may be shared, too: then measurements are to be as steps are.
    ``clock``: what times the work.
    """

    def __init__(self, clock: Callable[[], float] = thread_time) -> None:
        self._clock = clock
        self._one = np.full((SIZE, SIZE), 0.5, np.float32)
        self._product = np.empty_like(self._one)
        self._seen: deque[float] = deque(maxlen=MEMORY)
        self._seconds()

    def slow(self) -> bool:
        """True if the core takes longer for it now than usually, by more than a fifth."""
        now = min(self._seconds() for _ in range(TIMES))
        self._seen.append(now)
        return now > LIMIT * median_low(self._seen)

    def _seconds(self) -> float:
        began = self._clock()
        for _ in range(PRODUCTS):
            np.dot(self._one, self._one, out=self._product)
        return self._clock() - began
