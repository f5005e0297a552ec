"""SearchSession: the state that all searches share: counts of proposals, the best plan and its history, memory checks and
progress."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from math import inf, isfinite
from time import perf_counter

from taskflow.mapper import OpConfig, Strategy, Sync, SyncAlgorithm
from taskflow.optimizer.budget import Admission, BudgetExhausted, BudgetPart, Deadline, End, Restart
from taskflow.optimizer.cost.measured import before_measuring
from taskflow.optimizer.evaluate import NO_SYNCS, Evaluator, TooManyTasksError
from taskflow.optimizer.memory_check import MOST_TASKS, MemoryCheck
from taskflow.optimizer.options import SearchOptions
from taskflow.optimizer.result import Improvement, Progress, SearchResult
from taskflow.optimizer.space import Weigher, even, repaired, repaired_strategy

OPERATORS_BOUND_SHARE = 0.1  # of the budget, at most, for the lower bound


class NothingFits(ValueError):
    """Error: no plan was found that fits the memory (there may be some). ``change``: what would fit (`change_that_fits`)."""

    def __init__(self, reason: str, change: str = "") -> None:
        super().__init__(f"{reason}; {change}" if change else reason)
        self.reason, self.change = reason, change


class SearchSession:
    """One search in progress. Its methods wrap the evaluator's, so that every proposal is counted and every new best is
    kept; only strategies that fit the memory count as best."""

    def __init__(self, algorithm: str, evaluator: Evaluator, options: SearchOptions) -> None:
        self.algorithm, self.evaluator, self.options = algorithm, evaluator, options
        count = len(evaluator.machine.processors)
        self.permitted = options.space.constraints.resolve(evaluator.graph, count)
        still = frozenset(node.name for node in evaluator.graph if node.of_weights)
        self.of_weights = still if len(still) < len(evaluator.graph) else frozenset()  # if all are, all may be changed
        self.syncs = options.space.constraints.syncs(evaluator.graph)  # of layers whose synchronisation is pinned
        self.row = count if options.space.placements == "contiguous" else 0  # as `repaired` has it
        self.deadline = options.deadline or Deadline(options.budget.seconds)
        self.admission = Admission(evaluator, isfinite(self.deadline.seconds))
        self.phase = "start"
        self.left_out: list[str] = []
        self.lower_bound = 0.0
        self.best: Strategy | None = None
        self.best_seconds = inf
        self.seconds = inf  # of the current strategy
        self.weigher: Weigher | None = None  # gives proposals the sizes of their devices' shares, where devices are unequal
        self._restart: Restart | None = None
        self.proposals = self.accepted = self.refused = 0
        self.starts: dict[str, float] = {}
        self.lacking: list[str] = []  # of these
        self.local = self.optimal = False
        self.unpolished = 0  # operators whose every change has still to be tried against the best plan
        self._history: list[Improvement] = []
        self._bests: list[Strategy] = []  # one for each improvement
        self._shortfall = ""  # why the current strategy does not fit
        self._refused: Strategy | None = None  # the last one that does not fit,
        self._refusal = ""  # and why
        self._told = perf_counter()

    @property
    def elapsed(self) -> float:
        """Seconds since the search began."""
        return self.deadline.elapsed

    @property
    def expired(self) -> bool:
        """True if there is no time left. Long-running code must read it regularly, since it also shows progress."""
        self._tell()
        return self.deadline.expired

    def go_on(self) -> bool:
        """Return False while there is time; raise `BudgetExhausted` when there is none. A deadline callback for code that
        cannot end by itself."""
        if self.expired:
            raise BudgetExhausted
        return False

    def checkpoint(self) -> None:
        """Raise `BudgetExhausted` when there is no time left, but only once this search or another one
        (`SearchOptions.answered`) has a plan. Called in the middle of whatever may take long: evaluations, memory checks,
        measurements. Earlier measurements are kept."""
        if self.best is not None or self.options.answered:
            self.go_on()
        else:
            self._tell()

    @property
    def spent(self) -> bool:
        """True if the budget allows no more proposals."""
        return self.expired or self.proposals >= self.options.budget.proposals

    def enter(self, phase: str) -> None:
        """Set the phase of the search, for progress."""
        self.phase = phase
        self._tell()

    def leave_out(self, what: str) -> None:
        """Record in the result what was not done, and why."""
        if what not in self.left_out:
            self.left_out.append(what)

    @property
    def strategy(self) -> Strategy:
        """Current strategy."""
        return self.evaluator.strategy

    def set(self, strategy: Strategy, *, start: bool = False) -> float:
        """Go to a strategy, repaired first if the constraints do not permit it. ``start``: the result must not be slower than
        it."""
        if self.permitted or self.syncs or self.row:
            strategy = repaired_strategy(self.permitted, self.syncs, strategy, self.row)
        self.seconds = self.evaluator.seconds if self.evaluator.at(strategy) else self.evaluator.set(strategy)
        self._shortfall = self._check(strategy) if self.seconds < self.best_seconds else ""
        if not self._shortfall:
            self._keep(strategy)
        if start:  # not before: the time may end while the memory is checked
            name = strategy.name
            while name in self.starts:
                name += "'"
            self.starts[name] = self.seconds
            self.lacking += [name] if self._shortfall else []
        self._tell()
        return self.seconds

    def try_set(self, strategy: Strategy, *, start: bool = False) -> bool:
        """Go to a strategy as `set` does. Returns False if the strategy is too large, and raises `BudgetExhausted` if there is
        no time or it ends meanwhile; either way the result says that it was left out. The first strategy of all is always set."""
        if self.starts and not self.admission.allows_whole(strategy):
            self.leave_out(f"{strategy.name} (too many messages)")
            return False
        try:
            if self.starts and self.expired:
                raise BudgetExhausted
            self.set(strategy, start=start)
        except BudgetExhausted:
            self.leave_out(f"{strategy.name} (no time to evaluate it)")
            raise
        except TooManyTasksError:
            if not self.starts:
                raise
            self.leave_out(f"{strategy.name} (too many tasks)")
            return False
        if self.weigher is not None and even(strategy) is strategy:
            weighed = self.weigher.strategy(strategy)
            if weighed.configs != strategy.configs:
                self.try_set(replace(weighed, name=f"{strategy.name} by speed"))
        return True

    def propose(
        self, changes: Mapping[str, OpConfig], limit: float = inf, syncs: Mapping[str, Sync] = NO_SYNCS,
        sums: SyncAlgorithm | None = None, *, even: bool = False,
    ) -> bool:
        """Try changes to the current strategy, and accept them if the step then takes at most ``limit`` seconds. Operators that are
        computed from weights alone stay as they are. Changes that the constraints do not permit are repaired first. On unequal
        devices pieces get the sizes of the shares in force, unless they are to be ``even``. Raises `BudgetExhausted` if there is no
        budget left."""
        if self.spent:
            raise BudgetExhausted
        self.proposals += 1
        if self.of_weights and not self.of_weights.isdisjoint(changes):
            changes = {name: config for name, config in changes.items() if name not in self.of_weights}
        if self.permitted or self.row:
            changes = repaired(self.permitted, changes, self.row)
        if self.weigher is not None and not even:
            changes = self.weigher(changes)
        if self.syncs:
            syncs = {layer: self.syncs.get(layer, sync) for layer, sync in syncs.items()}
        if not self.admission.allows(changes, syncs):
            return False
        seconds = self.evaluator.propose(changes, limit, syncs, sums)
        return seconds <= limit and self.decide(changes, syncs, seconds, sums)

    def decide(
        self, changes: Mapping[str, OpConfig], syncs: Mapping[str, Sync], seconds: float, sums: SyncAlgorithm | None = None
    ) -> bool:
        """Accept the evaluator's last proposal, whose seconds are within the limit, unless it does not fit the memory."""
        shortfall = ""
        if seconds < self.best_seconds and self.options.lacks is not None:
            shortfall = self._check(self.evaluator.changed(changes, syncs, sums))
            if shortfall and not self._shortfall:  # never from a plan that fits to one that does not
                return False
        self.evaluator.accept()
        self.accepted += 1
        self.seconds, self._shortfall = seconds, shortfall
        if not shortfall and (seconds < self.best_seconds or (self._restart is not None and seconds < self._restart.seconds)):
            self._keep(replace(self.evaluator.strategy, name=self.algorithm))
        return True

    def restart(self, strategy: Strategy, seconds: float = inf, proposals: float = inf) -> bool:
        """Go to a strategy and search from it as if no better one were known, for this many seconds and proposals. Until
        `end_restart`, `back_to_best` then goes to the best plan found since. Returns False, without beginning, if the strategy
        is too large; raises `BudgetExhausted` if there is no time for it."""
        self._restart = Restart(strategy, self._budget.within(self.elapsed + seconds, self.proposals + proposals))
        begun = False
        try:
            begun = self.try_set(strategy)
        finally:
            if not begun:
                self.end_restart()
        return begun

    @property
    def restarted(self) -> bool:
        """True if a restart is in progress."""
        return self._restart is not None

    def end_restart(self) -> None:
        """End the restart: search from the best plan of all again."""
        self._restart = None

    @property
    def end(self) -> End:
        """End of the current restart, else of the budget."""
        return self._restart.end if self._restart is not None else self._budget

    @property
    def _budget(self) -> End:
        return End(self.options.budget.seconds, self.options.budget.proposals)

    def conduct(self, body: Callable[[], str]) -> SearchResult:
        """Run the search. ``body`` returns why it ended, if neither the budget nor the user ends it. The first rival is always
        evaluated; the others, and the lower bound, if there is time."""
        try:
            with self.evaluator.interruptible(self.checkpoint), before_measuring(self.checkpoint):
                for rival in self.options.rivals:
                    with suppress(BudgetExhausted):  # all others are named as left out, too
                        self.try_set(rival, start=True)
                self._bound()
                self.checkpoint()
                stopped = body()
        except BudgetExhausted:
            stopped = "budget"
        except KeyboardInterrupt:
            if self.best is None:
                raise
            stopped = "interrupted"
        self._fall_back()
        if self.best is None:
            found = f"search: found no plan for {self.evaluator.graph.name} that fits the memory of {self.evaluator.machine.name}"
            if self._refused is None:
                raise NothingFits(f"{found} in time: none was looked at")
            raise NothingFits(
                f"{found} ({self.refused} refused; the last: {self._why_refused()}); use more processors, a smaller batch or a "
                "larger budget"
            )
        self._tell(final=True)
        return SearchResult(
            self.best, self.best_seconds, self.starts, tuple(self._history), self.proposals, self.accepted,
            self.elapsed, self.options.seed, self.algorithm, stopped, optimal=self.optimal, local=self.local,
            refused=self.refused, lower_bound=self.lower_bound, left_out=tuple(self.left_out), lacking=tuple(self.lacking),
        )

    def _fall_back(self) -> None:
        """Go back to the last best plan that fits for certain, since a search judges plans by estimates of their memory, too."""
        check = self.options.lacks
        while isinstance(check, MemoryCheck) and self._bests and (shortfall := check.surely(self._bests[-1])):
            plan = self._bests.pop()
            name = plan.name
            self.lacking += [name] if name in self.starts and name not in self.lacking else []
            self._history.pop()
            self.refused += 1
            self._refused, self._refusal = plan, shortfall
            self.best = self._bests[-1] if self._bests else None
            self.best_seconds = self._history[-1].seconds if self._history else inf

    def _why_refused(self) -> str:
        """Why the last plan that was refused does not fit; as the runtime plans its memory, if that takes little time."""
        check, plan = self.options.lacks, self._refused
        assert plan is not None
        soon = not self.options.answered and sum(len(config.processors) for config in plan.configs.values()) <= MOST_TASKS
        return (check.surely(plan) if soon and isinstance(check, MemoryCheck) else "") or self._refusal

    def _bound(self) -> None:
        """The lower bound, as good as it gets in its share of the time."""
        if self.options.bound is not None and self.deadline.expired:
            self.leave_out("lower bound (no time)")
        elif self.options.bound is not None:
            self.enter("lower bound")
            part = BudgetPart(self, OPERATORS_BOUND_SHARE if isfinite(self.deadline.seconds) else 1.0)
            self.lower_bound = self.options.bound(lambda: part.expired)

    def _check(self, strategy: Strategy) -> str:
        if self.options.lacks is None:
            return ""
        shortfall = self.options.lacks(strategy)
        self.refused += bool(shortfall)
        if shortfall:
            self._refused, self._refusal = strategy, shortfall
        return shortfall

    def _keep(self, strategy: Strategy) -> None:
        """The current one, which fits the memory: as the restart's best, and as the best of all, if it is better."""
        if self._restart is not None:
            self._restart = self._restart.after(strategy, self.seconds)
        if self.seconds >= self.best_seconds:
            return
        self.best, self.best_seconds = strategy, self.seconds
        self.local = False
        self._history.append(Improvement(self.proposals, self.elapsed, self.seconds))
        self._bests.append(strategy)
        if self.options.incumbent is not None:
            self.options.incumbent.publish(strategy, self.seconds)

    def back_to_best(self) -> None:
        """Go to the best known plan, including those of searches that share it; in a restart, to the restart's own best."""
        if self._restart is not None:
            if self.seconds != self._restart.seconds:
                self._go(self._restart.strategy)
            return
        shared = self.options.incumbent
        if shared is not None and shared.best is not None and shared.best_seconds < self.best_seconds:
            self._go(shared.best)
        elif self.best is not None and self.seconds != self.best_seconds:
            self._go(self.best)

    def _go(self, strategy: Strategy) -> None:
        self.checkpoint()
        self.set(strategy)

    def _tell(self, final: bool = False) -> None:
        now = perf_counter()
        if self.options.progress is None or (now - self._told < self.options.progress_every and not final):
            return
        self._told = now
        self.options.progress(
            Progress(self.algorithm, self.phase, self.best_seconds, self.elapsed, self.proposals, self.accepted)
        )
