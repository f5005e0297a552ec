"""Links: how long messages keep the links of a machine busy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from taskflow.machine import Machine
from taskflow.optimizer.cost import Costs
from taskflow.optimizer.traffic.edges import Vector

LARGE = 1 << 24  # bytes of the message that, beside an empty one, says how fast a route is


class Links:
    """Links of a machine. Messages are given as bytes by source x processors + target; what stays on a processor is free. The
    seconds of a message are assumed to be linear in its bytes, and equal for all routes of a class. ``count``: number of links
    that any route uses, numbered in the order of their first use. ``look_up`` is called now and then, and may raise."""

    def __init__(self, machine: Machine, costs: Costs, look_up: Callable[[], None] = lambda: None) -> None:
        n = len(machine.processors)
        self._start, self._each = np.zeros(n * n), np.zeros(n * n)
        rates: dict[object, tuple[float, float]] = {}
        numbers: dict[int, int] = {}
        pairs: list[int] = []
        links: list[int] = []
        for source in range(n):
            look_up()
            for target in range(n):
                if source == target:
                    continue
                pair, alike = source * n + target, costs.route_class(source, target)
                if alike not in rates:
                    start = costs.copy(source, target, 0)
                    rates[alike] = (start, (costs.copy(source, target, LARGE) - start) / LARGE)
                self._start[pair], self._each[pair] = rates[alike]
                for link in machine.route(source, target):
                    pairs.append(pair)
                    links.append(numbers.setdefault(link.number, len(numbers)))
        self.count = len(numbers)
        self._pairs, self._links = np.array(pairs, dtype=np.int64), np.array(links, dtype=np.int64)
        order = np.argsort(self._links, kind="stable")  # pairs of one link side by side
        self._grouped, self._first = self._pairs[order], np.flatnonzero(np.diff(self._links[order], prepend=-1))

    def busy(self, nbytes: Vector) -> Vector:
        """Return the busy seconds of every link."""
        if not self.count:
            return np.zeros(0)
        return np.asarray(np.bincount(self._links, self._seconds(nbytes)[self._pairs], self.count), np.float64)

    def busiest(self, nbytes: Vector) -> Vector:
        """Return the seconds of the busiest link for each row of messages."""
        if not self.count:
            return np.zeros(len(nbytes))
        found: Vector = np.add.reduceat(self._seconds(nbytes)[:, self._grouped], self._first, axis=1).max(axis=1)
        return found

    def _seconds(self, nbytes: Vector) -> Vector:
        return np.where(nbytes > 0, self._start + self._each * nbytes, 0.0)
