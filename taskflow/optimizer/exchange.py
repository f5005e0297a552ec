"""Exchange: what several searches for the same plan tell each other."""

from __future__ import annotations

import threading
from math import inf

from taskflow.mapper import Strategy


class Exchange:
    """The best plan of all workers."""

    def __init__(self) -> None:
        self.best: Strategy | None = None
        self.best_seconds = inf
        self._lock = threading.Lock()

    def publish(self, strategy: Strategy, seconds: float) -> None:
        """Called for every new best plan of a worker that fits the memory."""
        with self._lock:
            if seconds < self.best_seconds:
                self.best, self.best_seconds = strategy, seconds
