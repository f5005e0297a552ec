"""Budgets: how long a search may take, and how its time is shared among phases.

A search has one `Deadline` for all its phases and threads. Everything that may take long calls `SearchSession.checkpoint` now
and then, even in the middle of an evaluation (`Evaluator.checkpoint`), and is aborted when the time is over. So no durations
have to be estimated in advance. A phase has a `BudgetPart`, and a `Restart` searches within one as if no better plan were
known.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import floor, inf, isfinite
from typing import Protocol

from taskflow.mapper import OpConfig, Strategy, Sync
from taskflow.optimizer.evaluate import NO_SYNCS, Evaluator
from taskflow.optimizer.traffic import Messages

MANY_PROCESSORS = 64  # from which on plans may need very many messages
MOST_MESSAGES = 3_000_000  # around the operators that a proposal changes: about a gigabyte
_UNITS = {"": 1.0, "s": 1.0, "ms": 1e-3, "m": 60.0, "min": 60.0, "h": 3600.0}


class BudgetExhausted(Exception):
    """Exception for a spent budget; `SearchSession.conduct` catches it and ends the search."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Seconds or proposals that a search may spend, or both (whichever ends first). A budget of proposals alone makes a search
    reproducible bit for bit."""

    seconds: float = inf
    proposals: float = inf

    def __post_init__(self) -> None:
        if not (self.seconds > 0 and self.proposals > 0):  # also refuses NaN
            raise ValueError(f"budget: must be more than 0, got {self.seconds} s, {self.proposals} proposals")

    @classmethod
    def parse(cls, text: str | float | Budget) -> Budget:
        """Parse ``30`` or ``30s``, ``500ms``, ``5m``, ``1h``, ``20000p`` (proposals), or two of them: ``30s,20000p``. Raises
        ValueError for anything else."""
        if isinstance(text, Budget):
            return text
        seconds = proposals = inf
        for part in str(text).split(","):
            match = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)(e\d+)?\s*([a-z]*)\s*", part.lower())
            unit = match.group(3) if match else None
            if match is None or (unit not in _UNITS and unit not in ("p", "proposals")):
                raise ValueError(f"budget: write seconds (30s, 5m, 1h) or proposals (20000p), got {text!r}")
            value = float(match.group(1) + (match.group(2) or "")) * _UNITS.get(unit, 1.0)
            if not 0 < value < inf or (unit not in _UNITS and value != int(value)):
                raise ValueError(f"budget: must be more than 0 seconds, or a whole number of proposals, got {text!r}")
            if unit in _UNITS:
                seconds = value
            else:
                proposals = int(value)
        return cls(seconds, proposals)

    @property
    def finite(self) -> bool:
        """True if it ever ends."""
        return isfinite(self.seconds) or isfinite(self.proposals)


TEN_SECONDS = Budget(seconds=10.0)


class Looks:
    """Plans that a search may look at in closed form, in all of its phases: ``most``. Where proposals are the budget these are
    counted, since a clock would not give everybody the same plan."""

    def __init__(self, most: float = inf) -> None:
        self.left = most

    def part(self, share: float = 1.0) -> Callable[[], bool]:
        """Return a function that counts a plan for each call, and returns true without once this ``share`` of what is left now has
        been counted."""
        until = self.left * (1 - share) if isfinite(self.left) else -inf

        def spent() -> bool:
            if self.left - 1 < until:
                return True
            self.left -= 1
            return False

        return spent


class Deadline:
    """Time at which a search must end, counted from the creation of this object. ``seconds``: of the whole search. ``stopped``:
    the user wants it to end now. ``now``: another timer (benchmarks that run beside other work use the processor's time).
    ``within``: the deadline of a larger search that this one is a part of; when it ends, the part ends too."""

    def __init__(
        self, seconds: float = inf, now: Callable[[], float] = time.perf_counter, within: Deadline | None = None
    ) -> None:
        self.seconds, self.stopped, self._within = seconds, False, within
        self._now, self._begin = now, now()

    def part(self, seconds: float) -> Deadline:
        """One that comes in so many seconds from now, by the same timer, but not later."""
        return Deadline(seconds, self._now, self)

    def sooner(self, seconds: float) -> Deadline:
        """One that comes so many seconds before this one, counted from the same beginning; it may be put off until then."""
        found = Deadline(self.seconds - seconds, self._now, self)
        found._begin = self._begin
        return found

    @property
    def elapsed(self) -> float:
        """Seconds since its creation. Anything that is compared with what is left must be measured by this, not by another
        timer."""
        return self._now() - self._begin

    @property
    def left(self) -> float:
        """Seconds left, at least 0; none once it is stopped."""
        left = 0.0 if self.stopped else max(0.0, self.seconds - self.elapsed)
        return left if self._within is None else min(left, self._within.left)

    @property
    def expired(self) -> bool:
        """True if there is no time left."""
        return self.left <= 0.0

    def check(self) -> None:
        """Raise `BudgetExhausted` if there is no time left."""
        if self.expired:
            raise BudgetExhausted


@dataclass(frozen=True, slots=True)
class End:
    """End of a part of a search: after this many seconds or proposals of its search, whichever comes first."""

    seconds: float = inf
    proposals: float = inf

    def within(self, seconds: float, proposals: float) -> End:
        """Return the earlier of this end and another one."""
        return End(min(self.seconds, seconds), min(self.proposals, proposals))


@dataclass(frozen=True, slots=True)
class Restart:
    """Part of a search that begins from a plan of its own, as if no better plan were known.

    ``strategy``: the best plan since it began; at first the one that it begins from. ``seconds``: of that plan; infinite until
    one has been found that fits the memory. ``end``: of its own share of the budget."""

    strategy: Strategy
    end: End
    seconds: float = inf

    def after(self, strategy: Strategy, seconds: float) -> Restart:
        """Return the restart after a plan that fits the memory has been found: with that plan, if it takes fewer seconds."""
        return Restart(strategy, self.end, seconds) if seconds < self.seconds else self


class Spending(Protocol):
    """Interface of anything that has a budget, such as a `taskflow.optimizer.session.SearchSession`."""

    proposals: int

    @property
    def elapsed(self) -> float:
        """Seconds since it began."""

    @property
    def end(self) -> End:
        """End of the budget, or of the current restart."""

    @property
    def expired(self) -> bool:
        """True if there is no time left."""


class BudgetPart:
    """Part, for one phase, of what is left of a search's budget or of its current restart."""

    def __init__(self, search: Spending, fraction: float) -> None:
        self._search, end = search, search.end
        self._from = End(search.elapsed, search.proposals)
        self._to = End(
            search.elapsed + fraction * max(0.0, end.seconds - search.elapsed),
            search.proposals + fraction * max(0.0, end.proposals - search.proposals),
        )

    @property
    def used(self) -> float:
        """Fraction that is spent, 0 to 1: of its seconds or its proposals, whichever is more."""
        first, last = self._from.proposals, self._to.proposals
        proposals = (self._search.proposals - first) / (last - first) if first < last < inf else last <= first
        return min(1.0, max(self.time, proposals))

    @property
    def time(self) -> float:
        """Fraction of its time that is spent, 0 to 1; 0 if its time is unlimited."""
        first, last = self._from.seconds, self._to.seconds
        return min(1.0, (self._search.elapsed - first) / (last - first)) if first < last < inf else float(last <= first)

    @property
    def proposals(self) -> float:
        """Number of its proposals."""
        return self._to.proposals - self._from.proposals

    def part(self, share: float) -> Budget:
        """A share of what is left of it, for a search of its own: at least a microsecond and one proposal."""
        proposals = share * (self._to.proposals - self._search.proposals)
        return Budget(
            max(1e-6, share * (self._to.seconds - self._search.elapsed)),
            max(1, floor(proposals)) if isfinite(proposals) else inf,
        )

    def has(self, seconds: float, proposals: float) -> bool:
        """True if this many seconds and proposals are left of it."""
        search, end = self._search, self._to
        return search.elapsed + seconds <= end.seconds and search.proposals + proposals <= end.proposals

    @property
    def expired(self) -> bool:
        """True if it is spent, or the search's time is over."""
        search, end = self._search, self._to
        return search.expired or search.proposals >= end.proposals or search.elapsed >= end.seconds


class Admission:
    """Filter that refuses plans with more messages than fit in this process's memory, before they are lowered. They would be
    far slower anyway: on a thousand processors, a layer whose pieces each read what all others write needs a million messages
    for each tensor.

    It acts only on many processors, and only if time is limited, so that a budget of proposals alone treats all plans alike."""

    def __init__(self, evaluator: Evaluator, timed: bool) -> None:
        self._evaluator = evaluator
        counts = timed and len(evaluator.machine.processors) >= MANY_PROCESSORS
        self._messages = Messages(evaluator.graph) if counts else None

    def allows(self, changes: Mapping[str, OpConfig], syncs: Mapping[str, Sync] = NO_SYNCS) -> bool:
        """True if changes to the current strategy may be evaluated."""
        return self._messages is None or self._few(self._messages, self._evaluator.strategy.configs, changes, syncs)

    def allows_whole(self, strategy: Strategy) -> bool:
        """True if a strategy that shares nothing with the current one may be evaluated."""
        return self._messages is None or self._few(self._messages, {}, strategy.configs, NO_SYNCS)

    @staticmethod
    def _few(
        messages: Messages, configs: Mapping[str, OpConfig], changes: Mapping[str, OpConfig], syncs: Mapping[str, Sync]
    ) -> bool:
        count = messages.around(configs, changes) + messages.synchronising({**configs, **changes}, syncs)
        return count <= MOST_MESSAGES


class SharedIncumbent:
    """Best plan of several searches that run in threads and share it."""

    def __init__(self) -> None:
        self.best: Strategy | None = None
        self.best_seconds = inf
        self._lock = threading.Lock()

    def publish(self, strategy: Strategy, seconds: float) -> None:
        """Offer a new best plan of a worker, which fits the memory."""
        with self._lock:
            if seconds < self.best_seconds:
                self.best, self.best_seconds = strategy, seconds
