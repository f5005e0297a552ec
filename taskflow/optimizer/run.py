"""Run: what all searches share while they run: the budget, the best so far, its history, memory and progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf, isfinite

from taskflow.mapper import OpConfig, Strategy, Sync
from taskflow.optimizer.constraints import mended, mended_strategy
from taskflow.optimizer.evaluator import NO_SYNCS, Evaluator
from taskflow.optimizer.found import Found, Improvement, Progress, SearchOptions


class Spent(Exception):
    """The budget is spent; `Run.conduct` ends the search."""


class Slice:
    """A share of a run's budget."""

    def __init__(self, run: Run, share: float) -> None:
        self._run = run
        self._from = (run.elapsed, run.proposals)
        budget = run.options.budget
        self._to = (
            run.elapsed + share * max(0.0, budget.seconds - run.elapsed),
            run.proposals + share * max(0.0, budget.proposals - run.proposals),
        )

    @property
    def used(self) -> float:
        """How much of it is spent, 0 to 1."""
        now = (self._run.elapsed, self._run.proposals)
        parts = [
            (n - f) / (t - f) if t > f else 1.0 for n, f, t in zip(now, self._from, self._to) if isfinite(t)
        ]
        return min(1.0, max(parts, default=0.0))

    @property
    def over(self) -> bool:
        return self.used >= 1.0


class Run:
    """One search in progress. Its methods wrap the evaluator's, so that every proposal is counted and every new best is
    kept; only strategies that fit the memory count as best."""

    def __init__(self, algorithm: str, evaluator: Evaluator, options: SearchOptions) -> None:
        self.algorithm, self.evaluator, self.options = algorithm, evaluator, options
        count = len(evaluator.machine.processors)
        self.permitted = options.space.constraints.resolve(evaluator.graph, count)
        self.syncs = options.space.constraints.syncs(evaluator.graph)  # of layers whose synchronisation is pinned
        self.phase = "start"
        self.best: Strategy | None = None
        self.best_seconds = inf
        self.seconds = inf  # of the current strategy
        self.proposals = self.accepted = self.refused = 0
        self.starts: dict[str, float] = {}
        self.local = self.optimal = False
        self._history: list[Improvement] = []
        self._lacks = ""  # why the current strategy does not fit
        self._begin = self._told = time.perf_counter()

    @property
    def elapsed(self) -> float:
        return time.perf_counter() - self._begin

    @property
    def strategy(self) -> Strategy:
        """The current one."""
        return self.evaluator.strategy

    def set(self, strategy: Strategy, *, start: bool = False) -> float:
        """Go to a strategy; ``start``: remember its seconds as one that the result must not exceed.
        What the constraints do not permit is mended first."""
        if self.permitted or self.syncs:
            strategy = mended_strategy(self.permitted, self.syncs, strategy)
        self.seconds = self.evaluator.set(strategy)
        if start:
            name = strategy.name
            while name in self.starts:
                name += "'"
            self.starts[name] = self.seconds
        self._lacks = self._check(strategy) if self.seconds < self.best_seconds else ""
        if self.seconds < self.best_seconds and not self._lacks:
            self._keep(strategy)
        return self.seconds

    def propose(
        self, changes: Mapping[str, OpConfig], limit: float = inf, syncs: Mapping[str, Sync] = NO_SYNCS
    ) -> bool:
        """Try changes to the current strategy and accept them if it then takes at most ``limit`` seconds; those that the
        constraints do not permit are mended first. Raises `Spent` instead if there is no budget left."""
        budget = self.options.budget
        exchange = self.options.exchange
        if self.proposals >= budget.proposals or self.elapsed >= budget.seconds or (exchange and exchange.stopped):
            raise Spent
        self.proposals += 1
        if self.proposals % 16 == 0:
            self._tell()
        if self.permitted:
            changes = mended(self.permitted, changes)
        if self.syncs:
            syncs = {layer: self.syncs.get(layer, sync) for layer, sync in syncs.items()}
        seconds = self.evaluator.propose(changes, limit, syncs)
        if not seconds <= limit:
            return False
        lacks = ""
        if seconds < self.best_seconds and self.options.fits is not None:
            lacks = self._check(self.evaluator.changed(changes, syncs))
            if lacks and not self._lacks:  # never from a plan that fits to one that does not
                return False
        self.evaluator.accept()
        self.accepted += 1
        self.seconds, self._lacks = seconds, lacks
        if seconds < self.best_seconds and not lacks:
            self._keep(replace(self.evaluator.strategy, name=self.algorithm))
        return True

    def conduct(self, body: Callable[[], str]) -> Found:
        """Run the search; ``body`` returns why it ended, if neither the budget nor the user ends it."""
        try:
            for rival in self.options.rivals:
                self.set(rival, start=True)
            stopped = body()
        except Spent:
            stopped = "budget"
        except KeyboardInterrupt:
            if self.best is None:
                raise
            stopped = "interrupted"
        if self.best is None:
            raise ValueError(
                f"search: no plan for {self.evaluator.graph.name} fits the memory of {self.evaluator.machine.name}: "
                f"{self._lacks or 'none was found'}; use more processors or a smaller batch"
            )
        self._tell(final=True)
        return Found(
            self.best, self.best_seconds, self.starts, tuple(self._history), self.proposals, self.accepted,
            self.elapsed, self.options.seed, self.algorithm, stopped, optimal=self.optimal, local=self.local,
            refused=self.refused,
        )

    def _check(self, strategy: Strategy) -> str:
        if self.options.fits is None:
            return ""
        lacks = self.options.fits(strategy)
        self.refused += bool(lacks)
        return lacks

    def _keep(self, strategy: Strategy) -> None:
        self.best, self.best_seconds = strategy, self.seconds
        self.local = False
        self._history.append(Improvement(self.proposals, self.elapsed, self.seconds))
        if self.options.exchange is not None:
            self.options.exchange.publish(strategy, self.seconds)

    def back_to_best(self) -> None:
        """Go to the best plan that is known, also to others who search for it."""
        exchange = self.options.exchange
        if exchange is not None and exchange.best is not None and exchange.best_seconds < self.best_seconds:
            self.set(exchange.best)
        elif self.best is not None and self.seconds != self.best_seconds:
            self.set(self.best)

    def _tell(self, final: bool = False) -> None:
        now = time.perf_counter()
        if self.options.progress is None or (now - self._told < self.options.progress_every and not final):
            return
        self._told = now
        self.options.progress(
            Progress(self.algorithm, self.phase, self.best_seconds, self.elapsed, self.proposals, self.accepted)
        )
