"""Foresight: whether there is time for an evaluation, which cannot be stopped once it has begun.

Where the first strategy takes long, each evaluation is estimated from the pieces that are new to it (`Pace`) and, on many
processors, from the messages that it would need (`Messages`); elsewhere the clock is asked now and then.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite

from taskflow.mapper import OpConfig, Strategy, Sync
from taskflow.optimizer.clock import Clock, Pace
from taskflow.optimizer.evaluate import NO_SYNCS, Evaluator
from taskflow.optimizer.traffic import Messages

CAREFUL = 0.02  # seconds that the first strategy takes to evaluate, from which on each evaluation must fit the time left
MANY_PROCESSORS = 64  # from which on plans may need very many messages
MOST_MESSAGES = 3_000_000  # around the operators that a proposal changes: about a gigabyte
MESSAGE_SECONDS = 2e-6  # to lower and simulate one
UNWATCHED = 0.005  # seconds of a walk in C++ without a look at the clock, if so much is left and MARGIN proposals more
MARGIN = 20
AHEAD = 16  # proposals without a look at the clock, if each takes less than
QUICK = 0.005  # seconds


class Foresight:
    """Of one run, by its clock."""

    def __init__(self, clock: Clock, evaluator: Evaluator) -> None:
        self._clock, self._evaluator = clock, evaluator
        self._pace: Pace | None = None  # of evaluations, if they take long
        self._messages: Messages | None = None
        self._longest = 0.0  # seconds of an evaluation

    @property
    def careful(self) -> bool:
        """Whether each evaluation is estimated."""
        return self._pace is not None

    @property
    def ahead(self) -> int:
        """How many proposals may be made before the next look at the clock: some, if they are quick and there is time for as
        many of the longest evaluation so far."""
        quick = self._messages is None and self._each() < QUICK and self._clock.left > AHEAD * self._longest + UNWATCHED
        return AHEAD if quick else 0

    @property
    def unwatched(self) -> float:
        """For how many seconds proposals may go on in C++ without a look at the clock; 0: each has to be asked for."""
        return 0.0 if self._messages is not None or self._clock.left < UNWATCHED + MARGIN * self._each() else UNWATCHED

    def allows(self, changes: Mapping[str, OpConfig], syncs: Mapping[str, Sync] = NO_SYNCS) -> bool:
        """Whether there is time to evaluate changes to the current strategy."""
        if self._pace is None:
            return not self._clock.over
        return self._few(self._evaluator.strategy.configs, changes, syncs) and self._fits(changes, self._evaluator.pieces)

    def allows_whole(self, strategy: Strategy) -> bool:
        """Whether there is time to evaluate a strategy of which nothing is the same as now."""
        if self._pace is None:
            return not self._clock.over
        return self._few({}, strategy.configs, NO_SYNCS) and self._fits(strategy.configs, _pieces(strategy))

    def learn(self, changes: Mapping[str, OpConfig], seconds: float) -> None:
        """To evaluate changes, or to work out their geometry, took so long."""
        if self._pace is not None:
            self._longest = max(self._longest, seconds)
            self._pace.learn(changes, self._evaluator.pieces, seconds)

    def learn_whole(self, strategy: Strategy, seconds: float) -> None:
        """To evaluate a strategy took so long. The first that takes long makes it careful, if the time is limited."""
        if self._pace is None and seconds > CAREFUL and isfinite(self._clock.seconds):
            self._pace = Pace()
            if len(self._evaluator.machine.processors) >= MANY_PROCESSORS:
                self._messages = Messages(self._evaluator.graph)
        self._longest = max(self._longest, seconds)
        if self._pace is not None:
            self._pace.learn(strategy.configs, _pieces(strategy), seconds)

    def learn_many(self, proposals: int, seconds: float) -> None:
        """So many proposals, all of known geometry, took so long together."""
        if self._pace is not None and proposals:
            self._pace.learn({}, self._evaluator.pieces, seconds / proposals)

    def _each(self) -> float:
        """Seconds of a proposal of known geometry; 0 where these are quick."""
        return self._pace.expected({}, self._evaluator.pieces) if self._pace is not None else 0.0

    def _few(self, configs: Mapping[str, OpConfig], changes: Mapping[str, OpConfig], syncs: Mapping[str, Sync]) -> bool:
        """Whether changes need no more messages than there is memory and time for, where they are counted."""
        if self._messages is None:
            return True
        messages = self._messages.around(configs, changes)
        messages += self._messages.synchronising({**configs, **changes}, syncs)
        return messages <= MOST_MESSAGES and self._clock.allows(messages * MESSAGE_SECONDS)

    def _fits(self, changes: Mapping[str, OpConfig], pieces: int) -> bool:
        assert self._pace is not None
        return self._clock.allows(self._pace.expected(changes, pieces))


def _pieces(strategy: Strategy) -> int:
    return sum(len(config.processors) for config in strategy.configs.values())
