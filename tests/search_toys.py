"""Evaluators whose costs are known in closed form, so that searches can be checked against enumeration."""

from __future__ import annotations

import _thread
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import product
from math import inf
from threading import Timer
from time import process_time

import taskflow
from taskflow.graph import OperatorGraph
from taskflow.machine import host
from taskflow.mapper import OpConfig, Strategy, Sync, SyncAlgorithm
from taskflow.optimizer.cost.task_costs import Roofline
from taskflow.optimizer.evaluate.evaluator import NO_SYNCS, Evaluator, Usage
from taskflow.optimizer.result import Progress
from taskflow.optimizer.space.space import SearchSpace, SpaceOptions
from taskflow.tasks.simulate import Timeline


def tiny(operators: int = 2, samples: int = 2) -> OperatorGraph:
    """Inputs and element-wise operators with few configurations."""
    graph = OperatorGraph(name="tiny")
    x = taskflow.input(graph, (samples, 1), name="x")
    for i in range(operators - 1):
        x = taskflow.relu(x, name=f"relu{i}")
    return graph


class Table(Evaluator):
    """Seconds by a function of the configurations; counts how often each strategy was the current one at a proposal."""

    def __init__(self, graph: OperatorGraph, processors: int, seconds: Callable[[Mapping[str, OpConfig]], float]) -> None:
        machine = host(processors)
        super().__init__(graph, machine, Roofline(machine), None, None)
        self.visits: Counter[tuple[OpConfig, ...]] = Counter()
        self._function = seconds
        self._next: Strategy | None = None
        self.interrupt_at = inf

    @property
    def seconds(self) -> float:
        return self._function(self.strategy.configs)

    @property
    def tasks(self) -> int:
        return len(self.graph)

    def set(self, strategy: Strategy) -> float:
        strategy.verify(self.graph)
        self._strategy = strategy
        return self.seconds

    def propose(
        self, changes: Mapping[str, OpConfig], limit: float = inf, syncs: Mapping[str, Sync] = NO_SYNCS,
        sums: SyncAlgorithm | None = None,
    ) -> float:
        self.proposals += 1
        if self.proposals >= self.interrupt_at:
            raise KeyboardInterrupt
        self.visits[tuple(self.strategy[node.name] for node in self.graph)] += 1
        self._next = self.changed(changes, syncs, sums)
        seconds = self._function(self._next.configs)
        return seconds if seconds <= limit else inf

    def accept(self) -> None:
        assert self._next is not None
        self._strategy, self._next = self._next, None

    def timeline(self) -> Timeline:
        return Timeline((), ())

    def usage(self) -> Usage:
        return Usage(self.seconds, (0.0,), {}, 0, ())


class CtrlC:
    """A search's progress that presses Ctrl-C ``delay`` seconds after the search has a first plan: however busy the machine, not
    before there is one. Use it with the fixture ``nothing_else_collects``."""

    def __init__(self, delay: float) -> None:
        self._timer, self._pressed = Timer(delay, self._press), inf
        self._timer.daemon = True

    def __call__(self, progress: Progress) -> None:
        if progress.best < inf and self._timer.ident is None:
            self._timer.start()

    def _press(self) -> None:
        self._pressed = process_time()
        _thread.interrupt_main()

    @property
    def seconds(self) -> float:
        """Of the processor's time since then, which is this process's alone."""
        return process_time() - self._pressed


def every(graph: OperatorGraph, processors: int, options: SpaceOptions | None = None) -> list[dict[str, OpConfig]]:
    """All strategies of a small space."""
    space = SearchSpace(graph, processors, options)
    names = [node.name for node in graph]
    return [dict(zip(names, chosen)) for chosen in product(*(list(space[n]) for n in names))]


def rugged(configs: Mapping[str, OpConfig]) -> float:
    """A cost with many local minima, between 1 and 2 seconds, without ties in practice."""
    total = 0.0
    text = [f"{name} {config.degrees} {config.processors}" for name, config in sorted(configs.items())]
    for a, b in zip(text, text[1:] + text[:1]):
        total += _noise(a) + 2 * _noise(a + b)
    return 1 + total / (3 * len(text))


def _noise(text: str) -> float:
    value = 1469598103934665603
    for byte in text.encode():
        value = (value ^ byte) * 1099511628211 % 2**64
    return (value >> 11) / 2**53
