"""Run: what all searches share while they run: the ledger of proposals, the best so far and its history, memory and progress."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf, isfinite
from time import perf_counter

from taskflow.mapper import OpConfig, Strategy, Sync, SyncAlgorithm
from taskflow.optimizer.attempt import Attempt, Ends, within
from taskflow.optimizer.clock import Clock
from taskflow.optimizer.cost.measured import before_measuring
from taskflow.optimizer.evaluate import NO_SYNCS, Evaluator
from taskflow.optimizer.foresight import Foresight
from taskflow.optimizer.result import Improvement, Progress, SearchOptions, SearchResult
from taskflow.optimizer.slice import Slice
from taskflow.optimizer.space import mended, mended_strategy

BOUND_SHARE = 0.1  # of the budget, at most, for the lower bound
MOST_PASSED = 200  # proposals one after another for which there was no time


class Spent(Exception):
    """The budget is spent; `Run.conduct` ends the search."""


class NothingFits(ValueError):
    """No plan was found that fits the memory. There may be some."""


class Run:
    """One search in progress. Its methods wrap the evaluator's, so that every proposal is counted and every new best is
    kept; only strategies that fit the memory count as best."""

    def __init__(self, algorithm: str, evaluator: Evaluator, options: SearchOptions) -> None:
        self.algorithm, self.evaluator, self.options = algorithm, evaluator, options
        count = len(evaluator.machine.processors)
        self.permitted = options.space.constraints.resolve(evaluator.graph, count)
        self.syncs = options.space.constraints.syncs(evaluator.graph)  # of layers whose synchronisation is pinned
        self.row = count if options.space.placements == "contiguous" else 0  # as `mended` has it
        self.clock = options.clock or Clock(options.budget.seconds)
        self.foresight = Foresight(self.clock, evaluator)
        self.phase = "start"
        self.left_out: list[str] = []
        self.lower_bound = 0.0
        self.best: Strategy | None = None
        self.best_seconds = inf
        self.seconds = inf  # of the current strategy
        self._attempt: Attempt | None = None
        self.proposals = self.accepted = self.refused = 0
        self.starts: dict[str, float] = {}
        self.local = self.optimal = False
        self.unpolished = 0  # operators whose every change has still to be tried against the best plan
        self._history: list[Improvement] = []
        self._lacks = ""  # why the current strategy does not fit
        self._told = perf_counter()
        self._passed = 0  # proposals since the last one for which there was time
        self._ahead = 0  # proposals that may be made before the next look at the clock

    @property
    def elapsed(self) -> float:
        return self.clock.elapsed

    @property
    def worked(self) -> float:
        """The same without what measuring took, which is done once and broken off when the time is over: so evaluations are
        estimated."""
        return self.clock.elapsed - self.evaluator.costs.measuring_seconds

    @property
    def over(self) -> bool:
        """Whether there is no time left. Whoever works for long asks, which also shows progress."""
        self._tell()
        return self.clock.over

    def go_on(self) -> bool:
        """False while there is time; raises `Spent` when there is none. For what cannot end by itself."""
        if self.over:
            raise Spent
        return False

    @property
    def spent(self) -> bool:
        """Whether the budget allows no more proposals."""
        return self.over or self.proposals >= self.options.budget.proposals

    def enter(self, phase: str) -> None:
        """Say what the search does now."""
        self.phase = phase
        self._tell()

    def leave_out(self, what: str) -> None:
        """Remember what was not done, and why, for the result."""
        if what not in self.left_out:
            self.left_out.append(what)

    @property
    def strategy(self) -> Strategy:
        """The current one."""
        return self.evaluator.strategy

    def set(self, strategy: Strategy, *, start: bool = False) -> float:
        """Go to a strategy; ``start``: remember its seconds as one that the result must not exceed.
        What the constraints do not permit is mended first."""
        if self.permitted or self.syncs or self.row:
            strategy = mended_strategy(self.permitted, self.syncs, strategy, self.row)
        begin = self.worked
        self.seconds = self.evaluator.seconds if self.evaluator.at(strategy) else self.evaluator.set(strategy)
        if start:
            name = strategy.name
            while name in self.starts:
                name += "'"
            self.starts[name] = self.seconds
        self._lacks = self._check(strategy) if self.seconds < self.best_seconds else ""
        if not self._lacks:
            self._keep(strategy)
        self.foresight.learn_whole(strategy, self.worked - begin)
        self._tell()
        return self.seconds

    def try_set(self, strategy: Strategy, *, start: bool = False) -> bool:
        """`set`, if there is time for it; else the result says that the strategy was left out. The first strategy of all is
        always set."""
        if self.starts and not self.foresight.allows_whole(strategy):
            self.leave_out(f"{strategy.name} (no time to evaluate it)")
            return False
        try:
            self.set(strategy, start=start)
        except Spent:
            self.leave_out(f"{strategy.name} (no time to measure its tasks)")
            raise
        return True

    def propose(
        self, changes: Mapping[str, OpConfig], limit: float = inf, syncs: Mapping[str, Sync] = NO_SYNCS,
        sums: SyncAlgorithm | None = None,
    ) -> bool:
        """Try changes to the current strategy and accept them if it then takes at most ``limit`` seconds; those that the
        constraints do not permit are mended first. Raises `Spent` instead if there is no budget left."""
        if self.proposals >= self.options.budget.proposals:
            raise Spent
        if self._ahead:
            self._ahead -= 1
        else:
            self._look()
        self.proposals += 1
        if self.permitted or self.row:
            changes = mended(self.permitted, changes, self.row)
        if self.syncs:
            syncs = {layer: self.syncs.get(layer, sync) for layer, sync in syncs.items()}
        seconds = self._evaluate(changes, limit, syncs, sums)
        return seconds <= limit and self.decide(changes, syncs, seconds, sums)

    def decide(
        self, changes: Mapping[str, OpConfig], syncs: Mapping[str, Sync], seconds: float, sums: SyncAlgorithm | None = None
    ) -> bool:
        """Accept the evaluator's last proposal, whose seconds are within the limit, unless it does not fit the memory."""
        lacks = ""
        if seconds < self.best_seconds and self.options.fits is not None:
            lacks = self._check(self.evaluator.changed(changes, syncs, sums))
            if lacks and not self._lacks:  # never from a plan that fits to one that does not
                return False
        self.evaluator.accept()
        self.accepted += 1
        self.seconds, self._lacks = seconds, lacks
        if not lacks and (seconds < self.best_seconds or (self._attempt is not None and seconds < self._attempt.seconds)):
            self._keep(replace(self.evaluator.strategy, name=self.algorithm))
        return True

    def attempt(self, strategy: Strategy, seconds: float = inf, proposals: float = inf) -> bool:
        """Go to a strategy and search from it as if nothing better were known, for so many seconds and proposals: until
        `end_attempt`, `back_to_best` goes back to the best plan found since. False, and nothing has begun, if there is no
        time for it."""
        self._attempt = Attempt(strategy, within(self._budget, (self.elapsed, self.proposals), seconds, proposals))
        begun = self.try_set(strategy)
        if not begun:
            self.end_attempt()
        return begun

    @property
    def in_attempt(self) -> bool:
        return self._attempt is not None

    def end_attempt(self) -> None:
        """Search from the best plan of all again."""
        self._attempt = None

    @property
    def ends(self) -> Ends:
        """When the attempt in progress is over; without one the budget."""
        return self._attempt.ends if self._attempt is not None else self._budget

    @property
    def _budget(self) -> Ends:
        return self.options.budget.seconds, self.options.budget.proposals

    def _look(self) -> None:
        """At the clock, and how many proposals may be made before the next look."""
        self._tell()
        if self.clock.over:
            raise Spent
        self._ahead = self.foresight.ahead

    def walked(self, proposals: int, accepted: int, now: float, took: float) -> None:
        """So many proposals were made and accepted in C++ (`walk`), none of them better than the best, and took so many seconds;
        the current plan is ``now``."""
        self.proposals += proposals
        self.accepted += accepted
        if accepted:
            self.seconds, self._lacks = now, ""
        self.foresight.learn_many(proposals, took)
        self._tell()

    def _evaluate(
        self, changes: Mapping[str, OpConfig], limit: float, syncs: Mapping[str, Sync], sums: SyncAlgorithm | None
    ) -> float:
        """The evaluator's answer; infinite if there is no time to ask it."""
        if self._ahead or not self.foresight.careful:
            return self.evaluator.propose(changes, limit, syncs, sums)
        if not self.foresight.allows(changes, syncs):
            self.proposals -= 1
            self._passed += 1
            if self._passed > MOST_PASSED or not self.foresight.allows({}):
                raise Spent
            return inf
        self._passed, begin = 0, self.worked
        seconds = self.evaluator.propose(changes, limit, syncs, sums)
        self.foresight.learn(changes, self.worked - begin)
        return seconds

    def conduct(self, body: Callable[[], str]) -> SearchResult:
        """Run the search; ``body`` returns why it ended, if neither the budget nor the user ends it. The first rival is always
        evaluated, the others if there is time, and so is the lower bound."""
        try:
            with before_measuring(self._may_measure):
                for rival in self.options.rivals:
                    self.try_set(rival, start=True)
                self._bound()
                stopped = body()
        except Spent:
            stopped = "budget"
        except KeyboardInterrupt:
            if self.best is None:
                raise
            stopped = "interrupted"
        if self.best is None:
            raise NothingFits(
                f"search: found no plan for {self.evaluator.graph.name} that fits the memory of {self.evaluator.machine.name} "
                f"({self.refused} refused; the last: {self._lacks or 'none was looked at'}); use more processors, a smaller "
                f"batch or a larger budget"
            )
        self._tell(final=True)
        return SearchResult(
            self.best, self.best_seconds, self.starts, tuple(self._history), self.proposals, self.accepted,
            self.elapsed, self.options.seed, self.algorithm, stopped, optimal=self.optimal, local=self.local,
            refused=self.refused, lower_bound=self.lower_bound, left_out=tuple(self.left_out),
        )

    def _may_measure(self) -> None:
        """Raises `Spent` if the time is over and there is a plan. What was measured for another one until then is kept."""
        if self.best is None:
            return
        self._tell()
        if self.clock.over:
            raise Spent

    def _bound(self) -> None:
        """The lower bound, as good as it gets in its share of the time."""
        if self.options.bound is not None and self.clock.over:
            self.leave_out("lower bound (no time)")
        elif self.options.bound is not None:
            self.enter("lower bound")
            part = Slice(self, BOUND_SHARE if isfinite(self.clock.seconds) else 1.0)
            self.lower_bound = self.options.bound(lambda: part.over)

    def _check(self, strategy: Strategy) -> str:
        if self.options.fits is None:
            return ""
        lacks = self.options.fits(strategy)
        self.refused += bool(lacks)
        return lacks

    def _keep(self, strategy: Strategy) -> None:
        """The current one, which fits the memory: as the attempt's best, and as the best of all, if it is better."""
        if self._attempt is not None:
            self._attempt = self._attempt.after(strategy, self.seconds)
        if self.seconds >= self.best_seconds:
            return
        self.best, self.best_seconds = strategy, self.seconds
        self.local = False
        self._history.append(Improvement(self.proposals, self.elapsed, self.seconds))
        if self.options.exchange is not None:
            self.options.exchange.publish(strategy, self.seconds)

    def back_to_best(self) -> None:
        """Go to the best plan that is known, also to others who search for it; in an attempt to its own best."""
        if self._attempt is not None:
            if self.seconds != self._attempt.seconds:
                self._go(self._attempt.strategy)
            return
        exchange = self.options.exchange
        if exchange is not None and exchange.best is not None and exchange.best_seconds < self.best_seconds:
            self._go(exchange.best)
        elif self.best is not None and self.seconds != self.best_seconds:
            self._go(self.best)

    def _go(self, strategy: Strategy) -> None:
        if not self.foresight.allows_whole(strategy):
            raise Spent
        self.set(strategy)

    def _tell(self, final: bool = False) -> None:
        now = perf_counter()
        if self.options.progress is None or (now - self._told < self.options.progress_every and not final):
            return
        self._told = now
        self.options.progress(
            Progress(self.algorithm, self.phase, self.best_seconds, self.elapsed, self.proposals, self.accepted)
        )
