"""Speed probe: tells whether a core computes as fast as usual while something is measured on it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from statistics import median_low
from time import thread_time

import numpy as np

LIMIT = 1.2  # times the usual
MEMORY = 64  # looks that say what is usual
SIZE, PRODUCTS, TIMES = 48, 48, 3  # rows of a matrix, products of a look, looks of which the fastest counts


class SpeedProbe:
    """Fixed piece of work that stays in the first-level cache: a tenth of a millisecond of small matrix products.

    A core of a rented machine is one hardware thread of a real core, and the host moves these threads around. While two of them
    share a real core, each is slower by a tenth to a half, depending on the other's work, for tenths of seconds or minutes. No
    clock of the guest shows that, not even the processor time of this process (docs/benchmarks.md). If sharing is the usual
    state, measurements should include it, as steps do. ``clock``: times the work.
    """

    def __init__(self, clock: Callable[[], float] = thread_time) -> None:
        self._clock = clock
        self._one = np.full((SIZE, SIZE), 0.5, np.float32)
        self._product = np.empty_like(self._one)
        self._seen: deque[float] = deque(maxlen=MEMORY)
        self._seconds()

    def slow(self) -> bool:
        """True if the work now takes more than a fifth longer than usual."""
        now = min(self._seconds() for _ in range(TIMES))
        self._seen.append(now)
        return now > LIMIT * median_low(self._seen)

    def _seconds(self) -> float:
        began = self._clock()
        for _ in range(PRODUCTS):
            np.dot(self._one, self._one, out=self._product)
        return self._clock() - began
