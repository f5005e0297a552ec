"""OrderedEvaluator: evaluates strategies with an order of passes or with recomputation, which the compiled core does not
support."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from taskflow.collector import paused_collector
from taskflow.graph import OperatorGraph
from taskflow.machine import Machine
from taskflow.mapper import OpConfig, Strategy, Sync, SyncAlgorithm
from taskflow.optimizer.cost import Costs
from taskflow.optimizer.evaluate.evaluator import (
    NO_SYNCS,
    Evaluator,
    PythonEvaluator,
    TooManyTasksError,
    Usage,
    same_processors,
)
from taskflow.optimizer.evaluate.folded import FoldedStep, folded_step
from taskflow.rules import UpdateRule
from taskflow.tasks import TaskGraph, Timeline
from taskflow.tasks.lower import NotAlikeError

MOST_WHOLE = 2_000
"""Pieces of a strategy that is lowered as a whole: about four tasks each, together half a second."""
MOST_LOWERED = 2_000_000
"""Pieces of a strategy that cannot be folded, at most: with more, lowering it would take tens of gigabytes."""
MOST_TIMELINE = 500_000
"""Pieces of a strategy of which there may be a timeline of all tasks: minutes, and six gigabytes."""
MOST_SHOWN = 100_000
"""Pieces of a strategy that can be folded of which all tasks are shown: some 50 s, and a gigabyte."""
MOST_KEPT = 8  # folded steps whose totals are kept: some megabytes each on ten thousand devices


@dataclass(frozen=True, slots=True)
class StepTotals:
    """What is kept of a strategy's folded step without the step itself, which may take a gigabyte."""

    strategy: Strategy
    usage: Usage
    tasks: int


class KnownTotals:
    """Totals of the step that was folded last without being set, and of those that are to be kept; and the small step that was last
    evaluated as a whole without being set."""

    def __init__(self) -> None:
        self.last: StepTotals | None = None
        self.whole: tuple[Strategy, TaskGraph, Timeline] | None = None
        self._kept: list[StepTotals] = []

    def of(self, strategy: Strategy) -> StepTotals | None:
        """Return the totals of a strategy, or of one that is equal; None if they are not known."""
        every = self._kept if self.last is None else [self.last, *self._kept]
        return next((one for one in every if one.strategy.same(strategy)), None)

    def keep(self, totals: StepTotals) -> None:
        """Keep the totals, and no more than the last `MOST_KEPT`."""
        self._kept = [*(one for one in self._kept if one.strategy is not totals.strategy), totals][-MOST_KEPT:]

    def evaluated(self, strategy: Strategy, tasks: TaskGraph, timeline: Timeline) -> None:
        """Keep a step that was evaluated as a whole, if it is small: one whose memory was planned is set next if it fits."""
        if is_small(_pieces(strategy)):
            self.whole = strategy, tasks, timeline


class OrderedEvaluator(PythonEvaluator):
    """Evaluator like `PythonEvaluator`. But of strategies with more than `MOST_WHOLE` pieces only distinct parts are lowered,
    if replicas and micro-batches are alike (`folded_step`). Their seconds equal those of the whole step, or differ a little
    where collectives wait for links (docs/decisions/55-folded-steps.md)."""

    step: FoldedStep | None = None
    """The current strategy's step, if it is folded and not only its totals are there."""
    totals: StepTotals | None = None
    """The current strategy's totals, if its step is folded."""
    _folded: tuple[Strategy, FoldedStep] | None = None  # the last proposal
    _timed: Strategy | None = None  # the folded strategy that has a timeline of all tasks

    def __init__(
        self, graph: OperatorGraph, machine: Machine, costs: Costs, rule: UpdateRule | None, clip_norm: float | None,
        known: KnownTotals | None = None,
    ) -> None:
        """``known``: totals that several evaluators of one problem share."""
        super().__init__(graph, machine, costs, rule, clip_norm)
        self._known = known or KnownTotals()

    @property
    def seconds(self) -> float:
        return super().seconds if self.totals is None else self.totals.usage.seconds

    @property
    def tasks(self) -> int:
        return super().tasks if self.totals is None else self.totals.tasks

    def set(self, strategy: Strategy) -> float:
        same_processors(strategy, self.machine)
        step, totals = None, self._known.of(strategy)
        if totals is None and (step := self._fold(strategy)) is not None:
            totals = self._totals(strategy, step)
        if totals is None:
            whole, self._known.whole = self._known.whole, None
            if whole is not None and whole[0].same(strategy):
                _, self._tasks, self._timeline = whole
            else:
                _admit(strategy)
                super().set(strategy)
            self._timed = None
        self.step, self.totals, self._strategy, self._folded, self._proposed = step, totals, strategy, None, None
        return self.seconds

    def keep(self) -> None:
        if self.totals is not None:
            self._known.keep(self.totals)

    def _totals(self, strategy: Strategy, step: FoldedStep) -> StepTotals:
        with paused_collector():  # a collection amid millions of tasks takes longer than the sums
            return StepTotals(strategy, step.usage(self.machine), step.tasks)

    def seconds_of(self, strategy: Strategy) -> float:
        same_processors(strategy, self.machine)
        step = self._fold(strategy)
        if step is not None:
            return step.makespan
        _admit(strategy)
        return super().seconds_of(strategy)

    def propose(
        self, changes: Mapping[str, OpConfig], limit: float = inf, syncs: Mapping[str, Sync] = NO_SYNCS,
        sums: SyncAlgorithm | None = None,
    ) -> float:
        strategy = self.changed(changes, syncs, sums)
        step = self._fold(strategy)
        self._folded = None if step is None else (strategy, step)
        if step is None:
            _admit(strategy)
            return super().propose(changes, limit, syncs, sums)
        self.proposals += 1
        self._proposed = None
        return step.makespan

    def accept(self) -> None:
        if self._folded is None:
            super().accept()
            self.step = self.totals = self._timed = None
            return
        (self._strategy, self.step), self._folded = self._folded, None
        self.totals = self._totals(self._strategy, self.step)

    def evaluated(self, strategy: Strategy) -> tuple[TaskGraph, Timeline]:
        found = super().evaluated(strategy)
        if not self.at(strategy):
            self._known.evaluated(strategy, *found)
        return found

    def timeline(self) -> Timeline:
        if self.totals is not None and self._timed is not self.strategy:
            self._tasks, self._timeline = Evaluator.evaluated(self, self.strategy)
            self._timed = self.strategy
        return super().timeline()

    def usage(self) -> Usage:
        return super().usage() if self.totals is None else self.totals.usage

    def lowered(self, strategy: Strategy | None = None) -> TaskGraph:
        strategy = strategy or self.strategy
        if (pieces := _pieces(strategy)) > MOST_TIMELINE:
            raise ValueError(
                f"evaluator: strategy {strategy.name} has {pieces:,} pieces, of which one replica and a few micro-batches are "
                "evaluated; what needs every task (a timeline of all, ONNX files) can be had of at most "
                f"{MOST_TIMELINE:,} pieces: take the plan with {-(-pieces // MOST_TIMELINE)} times fewer replicas (d, and the "
                "batch with it), micro-batches or layers; those that are left out look like the others"
            )
        return super().lowered(strategy)

    def folded(self, strategy: Strategy) -> FoldedStep | None:
        if not self.at(strategy):
            step = self._fold(strategy)
            if step is not None:
                self._known.last = self._totals(strategy, step)
            return step
        if self.totals is not None and self.step is None:
            self.step = self._fold(strategy)
        return self.step

    def _fold(self, strategy: Strategy) -> FoldedStep | None:
        if is_small(_pieces(strategy)) or self.rule is None:
            return None
        try:
            with paused_collector():
                return folded_step(self.graph, strategy, self.machine, self.costs, self.rule, self.clip_norm, self.checkpoint)
        except NotAlikeError:
            return None


def too_many_to_show(strategy: Strategy) -> bool:
    """True for a strategy of so many pieces that a timeline of all tasks would take minutes."""
    return _pieces(strategy) > MOST_SHOWN


def is_small(pieces: int) -> bool:
    """True if a strategy of so many pieces is lowered as a whole, whether or not it could be folded."""
    return pieces <= MOST_WHOLE


def _admit(strategy: Strategy) -> None:
    """TooManyTasksError for a strategy that is to be lowered as a whole and is too large for that."""
    if _pieces(strategy) > MOST_LOWERED:
        raise TooManyTasksError(strategy)


def _pieces(strategy: Strategy) -> int:
    return sum(len(config.processors) for config in strategy.configs.values())
