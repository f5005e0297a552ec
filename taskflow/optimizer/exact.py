"""Exact search: depth-first branch and bound over every strategy of a small space (paper, section 8.4, does the same with A*).

Operators are fixed one after another. A partial plan is given up when a lower bound on all its completions is not below the
best plan so far: the busiest processor's forward and backward tasks so far; all processors' tasks so far and the least
that the other operators need, divided evenly; the longest chain of operators, each with its shortest task. Equal devices
are not taken as interchangeable: ties go by task number and losses are fetched to processor 0, so plans that differ in
names only may differ in time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import nextafter

from taskflow.graph import Node
from taskflow.mapper import OpConfig
from taskflow.optimizer.bounds import Paths, least_of, representatives
from taskflow.optimizer.evaluator import Evaluator
from taskflow.optimizer.found import Budget, Found, SearchOptions
from taskflow.optimizer.guided import guided
from taskflow.optimizer.pieces import Pieces
from taskflow.optimizer.run import Run, Spent
from taskflow.optimizer.space import Space

MOST_CONFIGS = 20_000  # of one operator
PARTIAL_PER_PROPOSAL = 100  # so many partial plans may be looked at for each proposal of the budget


def exact(evaluator: Evaluator, options: SearchOptions | None = None) -> Found:
    """The fastest strategy of ``options.space`` (with the default synchronisation). ``Found.optimal`` says that no strategy of
    the space is faster; without it the budget ended first. A fifth of the budget goes to the default search, whose plan is the
    first to beat. ValueError if an operator has more than MOST_CONFIGS configurations."""
    options = options or SearchOptions()
    space = Space(evaluator.graph, len(evaluator.machine.processors), options.space)
    largest = max(evaluator.graph, key=lambda node: space[node].size)
    if space[largest].size > MOST_CONFIGS:
        raise ValueError(
            f"exact: {largest.name} has {space[largest].size:,} configurations, at most {MOST_CONFIGS:,} can be enumerated; "
            f"use fewer devices, even degrees or structured placements"
        )
    budget = options.budget
    part = Budget(budget.seconds / 5, max(1.0, budget.proposals / 5)) if budget.finite else Budget(seconds=2.0)
    first = guided(evaluator, replace(options, budget=part))
    run = Run("exact", evaluator, replace(options, rivals=(*options.rivals, replace(first.strategy, name="guided"))))
    run.proposals = first.proposals
    branch = _Branch(run, space)

    def body() -> str:
        run.phase = "proof"
        branch.descend(0, {}, [0.0] * len(evaluator.machine.processors))
        run.optimal = True
        return "finished"

    found = run.conduct(body)
    starts = {name: seconds for name, seconds in found.starts.items() if name != "guided"}
    return replace(
        found, starts={**first.starts, **starts}, search_seconds=found.search_seconds + first.search_seconds,
        lower_bound=found.seconds if found.optimal else 0.0,
    )


@dataclass(frozen=True, slots=True)
class _Row:
    """A configuration, what it loads each processor with, and its shortest forward and backward task, in seconds."""

    config: OpConfig
    load: dict[int, float]
    forward: float
    backward: float


class _Branch:
    def __init__(self, run: Run, space: Space) -> None:
        self.run, self.visited = run, 0
        evaluator, graph = run.evaluator, run.evaluator.graph
        pieces = Pieces(graph, evaluator.costs, evaluator.rule is not None)
        kinds = representatives(evaluator)
        least = [least_of(pieces, node, space[node].tuples, kinds) for node in graph]
        self.paths = Paths(pieces, [item.always for item in least])
        self.forward, self.backward = [item.forward for item in least], [item.backward for item in least]
        # The operators with most work first: they decide whether a partial plan can still win.
        self.order = sorted(graph, key=lambda node: -least[node.number].total)
        self.tables = [_rows(pieces, node, list(space[node])) for node in self.order]
        self.rest = [0.0] * (len(self.order) + 1)
        for i in range(len(self.order) - 1, -1, -1):
            self.rest[i] = self.rest[i + 1] + least[self.order[i].number].total

    def descend(self, depth: int, chosen: dict[str, OpConfig], loads: list[float]) -> None:
        """Try all completions of a partial plan that may be faster than the best."""
        if depth == len(self.order):
            self.run.propose(chosen, nextafter(self.run.best_seconds, 0.0))
            return
        node = self.order[depth]
        kept = self.forward[node.number], self.backward[node.number]
        chains: dict[tuple[float, float], float] = {}
        for row in self.tables[depth]:
            self._count()
            after = list(loads)
            for processor, seconds in row.load.items():
                after[processor] += seconds
            # A little less, since sums in another order round differently.
            bound = max(max(after), (sum(after) + self.rest[depth + 1]) / len(after)) * (1 - 1e-9)
            if bound >= self.run.best_seconds:
                continue
            key = self.forward[node.number], self.backward[node.number] = row.forward, row.backward
            if key not in chains:
                chains[key] = self.paths.longest(self.forward, self.backward) * (1 - 1e-9)
            if chains[key] < self.run.best_seconds:
                self.descend(depth + 1, {**chosen, node.name: row.config}, after)
        self.forward[node.number], self.backward[node.number] = kept

    def _count(self) -> None:
        """Partial plans that are given up need budget too: time, or a share of a proposal."""
        self.visited += 1
        budget = self.run.options.budget
        late = self.visited % 256 == 0 and self.run.elapsed >= budget.seconds
        if late or self.visited > PARTIAL_PER_PROPOSAL * budget.proposals:
            raise Spent


def _rows(pieces: Pieces, node: Node, configs: list[OpConfig]) -> list[_Row]:
    rows = []
    for config in configs:
        load: dict[int, float] = {}
        times = [(pieces.seconds(node, rect, p), p) for rect, p in config.pieces(node)]
        for (ahead, back), processor in times:
            load[processor] = load.get(processor, 0.0) + ahead + back
        rows.append(_Row(config, load, min(t[0] for t, _ in times), min(t[1] for t, _ in times)))
    # Even loads first: good plans are found early.
    rows.sort(key=lambda row: (max(row.load.values()), sum(row.load.values())))
    return rows
