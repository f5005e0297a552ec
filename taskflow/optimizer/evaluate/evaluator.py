"""Evaluator: predicts the step time of strategies that differ in a few operators from a current one.

`PythonEvaluator` is the definition, with `tasks.lower` and `tasks.simulate`. The compiled twin is optimizer/evaluate/_core.pyx;
tests/optimizer/evaluate/test_core_equal.py holds them equal. The headers that it includes name the functions that they implement.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from taskflow.graph import OperatorGraph
from taskflow.machine import Machine
from taskflow.mapper import OpConfig, Strategy, Sync, SyncAlgorithm
from taskflow.optimizer.cost import Costs
from taskflow.optimizer.evaluate.critical_path import critical_path
from taskflow.rules import UpdateRule
from taskflow.tasks import Compute, Task, TaskGraph, Timeline, link_names, resources, simulate
from taskflow.tasks.lower import lower

if TYPE_CHECKING:
    from taskflow.optimizer.evaluate.folded import FoldedStep
    from taskflow.optimizer.evaluate.repetition import Repetition

NO_SYNCS: Mapping[str, Sync] = MappingProxyType({})
ALGORITHMS = ("auto", "full", "delta")


@dataclass(frozen=True, slots=True)
class Usage:
    """Use of a step's time. ``processor_seconds[p]``: how long processor p runs tasks (without messages that it copies itself).
    ``link_seconds``: how long each link is busy, by link number, for links in use. ``critical``: the operators whose tasks lie
    on one critical path (tasks that each start when the one before ends), from the step's start to its end, each named once."""

    seconds: float
    processor_seconds: tuple[float, ...]
    link_seconds: Mapping[int, float]
    transfer_bytes: int
    critical: tuple[str, ...]


class TooManyTasksError(ValueError):
    """Error for a strategy with more tasks than an evaluator can number."""

    def __init__(self, strategy: Strategy) -> None:
        super().__init__(
            f"evaluator: strategy {strategy.name} has more tasks on {strategy.processors} processors than the compiled evaluator "
            "can number; cut its operators into fewer pieces, or take a plan such as 't8 p4 mb1', of which only what differs is "
            "evaluated"
        )


class Evaluator(ABC):
    """Predictor of step times. Call ``set`` first, then ``propose`` any number of times; each may be followed by ``accept``."""

    repetition: Repetition | None = None
    """If plans are those of the machine's first processors for all of them: how they are repeated."""

    def __init__(
        self, graph: OperatorGraph, machine: Machine, costs: Costs, rule: UpdateRule | None, clip_norm: float | None
    ) -> None:
        self.graph = graph
        self.machine = machine
        self.costs = costs
        self.rule = rule
        self.clip_norm = clip_norm
        self.proposals = 0
        self.checkpoint: Callable[[], object] = _go_on
        """Called now and then in the middle of whatever takes long; see `interruptible`."""
        self._strategy: Strategy | None = None

    @contextmanager
    def interruptible(self, checkpoint: Callable[[], object]) -> Iterator[None]:
        """Call ``checkpoint`` every few hundredths of a second, within the block, while a strategy is evaluated. An exception
        that it raises ends the evaluation: the current strategy stays, and there is no proposal to accept."""
        before, self.checkpoint = self.checkpoint, checkpoint
        try:
            yield
        finally:
            self.checkpoint = before

    @property
    def strategy(self) -> Strategy:
        """Current strategy. Raises ValueError before `set`."""
        if self._strategy is None:
            raise ValueError(f"{type(self).__name__}: set(strategy) must come before anything else")
        return self._strategy

    def at(self, strategy: Strategy) -> bool:
        """True if this very object is the current strategy, so that it need not be `set`."""
        return self._strategy is strategy

    @property
    @abstractmethod
    def seconds(self) -> float:
        """Predicted seconds of a step under the current strategy."""

    @property
    @abstractmethod
    def tasks(self) -> int:
        """Number of tasks of a step under the current strategy."""

    @property
    def pieces(self) -> int:
        """Number of pieces of all operators together under the current strategy."""
        return sum(len(config.processors) for config in self.strategy.configs.values())

    @abstractmethod
    def set(self, strategy: Strategy) -> float:
        """Make ``strategy`` the current one, and return its seconds. Raises ValueError if it does not fit the graph or the
        machine."""

    def keep(self) -> None:
        """Keep what `seconds`, `tasks` and `usage` say of the current strategy if that took long to find out, so that an equal one
        need not be evaluated again. A few are kept, the last ones."""

    @abstractmethod
    def propose(
        self, changes: Mapping[str, OpConfig], limit: float = inf, syncs: Mapping[str, Sync] = NO_SYNCS,
        sums: SyncAlgorithm | None = None,
    ) -> float:
        """Return the seconds if these operators (and these layers' synchronisation) change, and with ``sums`` how partial
        values are summed. They may be infinite as soon as it is certain that they exceed ``limit``. The current strategy stays."""

    @abstractmethod
    def accept(self) -> None:
        """Make the last proposal current. Raises ValueError if there is none or if it was cut short by its limit."""

    @abstractmethod
    def timeline(self) -> Timeline:
        """Return when each task of the current strategy is ready, starts and ends; tasks numbered as `lower` numbers them."""

    @abstractmethod
    def usage(self) -> Usage:
        """Return where the current strategy's time goes."""

    def changed(
        self, changes: Mapping[str, OpConfig], syncs: Mapping[str, Sync], sums: SyncAlgorithm | None = None
    ) -> Strategy:
        """Return the current strategy with changes, checked."""
        for name, config in changes.items():
            config.verify(self.graph.node(name), self.strategy.processors)
        return replace(
            self.strategy, configs={**self.strategy.configs, **changes}, syncs={**self.strategy.syncs, **syncs},
            sums=self.strategy.sums if sums is None else sums,
        )

    def folded(self, strategy: Strategy) -> FoldedStep | None:
        """Return a folded step for a strategy of which only distinct parts need to be lowered; None for all others."""
        return None

    def lowered(self, strategy: Strategy | None = None) -> TaskGraph:
        """Return the task graph of a strategy (by default of the current one)."""
        return lower(
            self.graph, strategy or self.strategy, self.rule, clip_norm=self.clip_norm,
            hides_sums=self.machine.processors[0].device.hides_sums, checkpoint=self.checkpoint,
        )

    def current(self) -> tuple[TaskGraph, Timeline]:
        """Return the tasks of the current strategy, and when each begins and ends."""
        return self.lowered(), self.timeline()

    def seconds_of(self, strategy: Strategy) -> float:
        """Return the seconds of another strategy. The current one stays. Raises ValueError as `set` does."""
        before = self.strategy
        try:
            return self.set(strategy)
        finally:
            if self.strategy is not before:
                self.set(before)

    def evaluated(self, strategy: Strategy) -> tuple[TaskGraph, Timeline]:
        """Return the tasks of a strategy, and when each begins and ends."""
        self.checkpoint()
        tasks, asked = self.lowered(strategy), 0
        seconds = self.costs.pace(tasks, strategy)

        def cost(task: Task) -> float:
            nonlocal asked
            asked += 1
            if not asked % 256:
                self.checkpoint()
            return seconds(task)

        return tasks, simulate(tasks, self.machine, cost)


class PythonEvaluator(Evaluator):
    """Definition of all evaluators: lowers and simulates the whole graph at every call."""

    _tasks: TaskGraph
    _timeline: Timeline
    _proposed: tuple[Strategy, TaskGraph, Timeline] | None = None

    @property
    def seconds(self) -> float:
        return self.timeline().makespan

    @property
    def tasks(self) -> int:
        return len(self.current()[0])

    def set(self, strategy: Strategy) -> float:
        same_processors(strategy, self.machine)
        self._tasks, self._timeline = Evaluator.evaluated(self, strategy)
        self._strategy, self._proposed = strategy, None
        return self._timeline.makespan

    def seconds_of(self, strategy: Strategy) -> float:
        same_processors(strategy, self.machine)
        return Evaluator.evaluated(self, strategy)[1].makespan

    def propose(
        self, changes: Mapping[str, OpConfig], limit: float = inf, syncs: Mapping[str, Sync] = NO_SYNCS,
        sums: SyncAlgorithm | None = None,
    ) -> float:
        strategy = self.changed(changes, syncs, sums)
        self.proposals += 1
        self._proposed = (strategy, *Evaluator.evaluated(self, strategy))
        return self._proposed[2].makespan

    def accept(self) -> None:
        if self._proposed is None:
            raise ValueError("accept: there is no proposal to accept")
        self._strategy, self._tasks, self._timeline = self._proposed
        self._proposed = None

    def timeline(self) -> Timeline:
        self.strategy  # noqa: B018 (raises before `set`)
        return self._timeline

    def usage(self) -> Usage:
        return usage(*self.current(), self.machine)

    def current(self) -> tuple[TaskGraph, Timeline]:
        timeline = self.timeline()  # which may have to make both
        return self._tasks, timeline

    def evaluated(self, strategy: Strategy) -> tuple[TaskGraph, Timeline]:
        return self.current() if self.at(strategy) else super().evaluated(strategy)


def _go_on() -> None:
    """Go on: what `Evaluator.checkpoint` does where nobody interrupts."""


def usage(tasks: TaskGraph, timeline: Timeline, machine: Machine) -> Usage:
    """Return where a timeline's time goes."""
    processors = [0.0] * len(machine.processors)
    links: dict[int, float] = {}
    for number in timeline.order:
        task, span = tasks.tasks[number], timeline.spans[number]
        for resource in resources(task, machine):
            if resource >= len(processors):
                link = resource - len(processors)
                links[link] = links.get(link, 0.0) + span.end - span.start
            elif not task.kind.travels:
                processors[resource] += span.end - span.start
    path = critical_path(tasks, timeline, machine)
    names = [work.node.name for lap in path if isinstance(work := tasks.tasks[lap.task].work, Compute)]
    return Usage(timeline.makespan, tuple(processors), links, tasks.transfer_bytes, tuple(dict.fromkeys(names)))


def timeline_json(tasks: TaskGraph, timeline: Timeline, machine: Machine) -> dict[str, Any]:
    """Return a timeline as a JSON value that others can check: every task with its resources, its times and what it waits for.
    ``resources`` are names: ``processor 3``, or those of the links of a copy's route or of a collective's ring (and of the
    processors that copy by themselves). A copy occupies each from its ``resource_start_seconds`` for the same time."""
    return {
        "format": "taskflow-timeline",
        "version": 1,
        "machine": machine.name,
        "iteration_seconds": timeline.makespan,
        "tasks": [_entry(tasks, timeline, machine, number) for number in range(len(tasks))],
    }


def _entry(tasks: TaskGraph, timeline: Timeline, machine: Machine, number: int) -> dict[str, Any]:
    task, span = tasks.tasks[number], timeline.spans[number]
    work = task.work if isinstance(task.work, Compute) else None
    names = link_names(task, machine)
    return {
        "id": number,
        "name": task.name,
        "operator": work.node.name if work else None,
        "piece": [list(work.piece.lo), list(work.piece.hi)] if work else None,
        "direction": task.kind.value,
        "resources": [names.get(r, f"processor {r}") for r in resources(task, machine)],
        "ready_seconds": span.ready,
        "start_seconds": span.start,
        "resource_start_seconds": list(span.starts or (span.start,)),
        "end_seconds": span.end,
        "bytes": task.nbytes,
        "flops": task.flops,
        "predecessors": list(task.after),
    }


def same_processors(strategy: Strategy, machine: Machine) -> None:
    """Raise ValueError unless the strategy is for as many processors as the machine has."""
    if strategy.processors != len(machine.processors):
        raise ValueError(
            f"evaluator: strategy {strategy.name} is for {strategy.processors} processors, {machine.name} has "
            f"{len(machine.processors)}"
        )
