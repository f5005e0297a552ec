"""Exact search: depth-first branch and bound over every strategy of a small space (paper, section 8.4, does the same with A*).

Operators are decided about one after another. A partial plan is given up when a lower bound on all its completions is not
below the best plan so far (`taskflow.optimizer.relax`). Of partial plans that become each other when equal processors are
renumbered, one is looked at; what is left at the end is simulated, with every renumbering that may make a difference: ties
go by task number and sums are made on processors that depend on their numbers, so such plans differ a little in time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import inf, nextafter

from taskflow.mapper import OpConfig, Strategy
from taskflow.optimizer.evaluator import Evaluator
from taskflow.optimizer.following import Decision, decisions, strategies
from taskflow.optimizer.found import Budget, Found, Proof, SearchOptions
from taskflow.optimizer.guided import guided
from taskflow.optimizer.run import Run, Spent
from taskflow.optimizer.space import Space
from taskflow.optimizer.symmetry import Symmetry, renumbered

MOST_CONFIGS = 20_000  # of one operator
PARTIAL_PER_PROPOSAL = 100  # so many partial plans may be looked at for each proposal of the budget
FIRST_SECONDS = 2.0  # at most, for the default search, whose plan is the first to beat
FAR = 3  # operators that a plan differs in, from which on it becomes the evaluator's current one
ROUNDING = 1e-9  # a bound adds in another order than the simulator


def exact(evaluator: Evaluator, options: SearchOptions | None = None) -> Found:
    """The fastest strategy of ``options.space`` whose layers are synchronised as in the default search's plan, which gets a
    fifth of the budget and is the first to beat.

    ``Found.optimal`` says that no strategy of the space is faster; ``Found.lower_bound`` what none is faster than, also if the
    budget ended first or ``options.tolerance`` asked for less; ``Found.proof`` how it was proved. ValueError if an operator
    has more than MOST_CONFIGS configurations, or if the bound has not been compiled.
    """
    options = options or SearchOptions()
    space = Space(evaluator.graph, len(evaluator.machine.processors), options.space)
    largest = max(evaluator.graph, key=lambda node: space[node].size)
    if space[largest].size > MOST_CONFIGS:
        raise ValueError(
            f"exact: {largest.name} has {space[largest].size:,} configurations, at most {MOST_CONFIGS:,} can be enumerated; "
            f"use fewer devices, even degrees or structured placements"
        )
    budget = options.budget
    part = Budget(min(FIRST_SECONDS, budget.seconds / 5), max(1.0, budget.proposals / 5))
    first = guided(evaluator, replace(options, budget=part))
    run = Run("exact", evaluator, replace(options, rivals=(*options.rivals, replace(first.strategy, name="guided"))))
    run.proposals = first.proposals
    branch = _Branch(run, space, first.strategy)

    def body() -> str:
        run.phase = "proof"
        run.set(Strategy(first.strategy.processors, first.strategy.configs, first.strategy.syncs, "guided"))
        branch.descend(0, [], list(branch.everything))
        branch.complete = True
        run.optimal = not options.tolerance
        return "finished"

    found = run.conduct(body)
    starts = {name: seconds for name, seconds in found.starts.items() if name != "guided"}
    return replace(
        found, starts={**first.starts, **starts}, search_seconds=found.search_seconds + first.search_seconds,
        lower_bound=branch.lower_bound, proof=branch.proof,
    )


class _Branch:
    def __init__(self, run: Run, space: Space, first: Strategy) -> None:
        try:
            from taskflow.optimizer.relax import Relaxation, fixing_order
        except ImportError:
            raise ValueError(
                "exact: the compiled lower bound is missing; install a C++ compiler and run pip install --force-reinstall "
                "--no-binary :all: soap-taskflow"
            ) from None
        self.run, evaluator = run, run.evaluator
        order = fixing_order(evaluator)
        self.decisions = decisions(evaluator.graph, space, order, run.options.space.follow)
        self.symmetry = Symmetry(evaluator.costs, space.processors, [decision.choices for decision in self.decisions])
        self.everything = range(len(self.symmetry.group))
        lists = {node.name: _distinct(decision, i) for decision in self.decisions for i, node in enumerate(decision.nodes)}
        self.relaxation = Relaxation(evaluator, lists, first.syncs, self.symmetry.group)
        place = {node.number: i for i, node in enumerate(self.relaxation.order)}
        self.ops = [[place[node.number] for node in decision.nodes] for decision in self.decisions]
        number = {name: {config: i for i, config in enumerate(configs)} for name, configs in lists.items()}
        self.choices = [
            [tuple(number[node.name][config] for node, config in zip(decision.nodes, configs)) for configs in decision.choices]
            for decision in self.decisions
        ]
        self.visited = self.simulated = 0
        self.pruned: Counter[str] = Counter()
        self.open: list[list[float]] = []  # by depth: the bounds of what is not done yet
        self.complete = False

    def descend(self, depth: int, chosen: list[int], alive: list[int]) -> None:
        """Try all completions of a partial plan that may be faster than the best, on those renumbered processors (``alive``)
        on which they may be."""
        candidates = self._representatives(depth, chosen)
        self._count(len(candidates))
        ops, choices = self.ops[depth], self.choices[depth]
        bounds, reasons = self.relaxation.children(ops, [choices[i] for i in candidates], self._limit())
        ranked = sorted(zip(bounds.tolist(), candidates, reasons.tolist()))
        self.open.append([bound for bound, _, _ in ranked])
        last = depth + 1 == len(self.decisions)
        whole: list[tuple[int, int]] = []  # (renumbering, choice) of complete plans
        for bound, choice, reason in ranked:
            if bound >= self._limit():
                self._prune(reason)
            else:
                self.relaxation.fix(ops, choices[choice])
                left = self._alive(alive)
                if left and not last:
                    self.descend(depth + 1, [*chosen, choice], left)
                whole.extend((image, choice) for image in left if last)
                self.relaxation.free(ops)
            if not last:
                self.open[-1].pop(0)
        for image, choice in sorted(whole):  # those that differ in one operator after each other
            self._simulate([*chosen, choice], image)
        self.open.pop()

    def _representatives(self, depth: int, chosen: Sequence[int]) -> list[int]:
        stabilizer: list[int] = list(self.everything)
        for decision, choice in enumerate(chosen):
            stabilizer = self.symmetry.stabilizer(decision, choice, stabilizer)
        return self.symmetry.representatives(depth, stabilizer)

    def _alive(self, alive: Sequence[int]) -> list[int]:
        """The renumberings of a partial plan whose own bound is below the best."""
        if len(alive) == 1 == len(self.everything) or not self.relaxation.shares:
            return list(alive)  # what made the partial plan pass holds for each of them
        left = []
        for image in alive:
            bound, reason = self.relaxation.seconds_as(image, self._limit())
            if bound < self._limit():
                left.append(image)
            else:
                self._prune(reason)
        return left

    def _limit(self) -> float:
        """A bound from here on says that nothing (nothing by more than the tolerance) is faster than the best."""
        return self.run.best_seconds * (1 - self.run.options.tolerance) * (1 + ROUNDING)

    def _simulate(self, chosen: Sequence[int], image: int) -> None:
        """A complete plan."""
        now, changes = self.run.strategy, {}
        for decision, choice in zip(self.decisions, chosen):
            for node, config in zip(decision.nodes, decision.choices[choice]):
                there = renumbered(config, self.symmetry.group[image])
                if there != now[node.name]:
                    changes[node.name] = there
        self.simulated += 1
        self.run.propose(changes, nextafter(self.run.best_seconds, 0.0))
        if len(changes) > FAR:
            self.run.evaluator.propose(changes)
            self.run.evaluator.accept()

    def _prune(self, reason: int) -> None:
        self.pruned[("path", "processor", "processors together")[reason]] += 1

    def _count(self, partial: int) -> None:
        """Partial plans that are given up need budget too: time, or a share of a proposal."""
        self.visited += partial
        budget = self.run.options.budget
        if self.run.elapsed >= budget.seconds or self.visited > PARTIAL_PER_PROPOSAL * budget.proposals:
            raise Spent

    @property
    def lower_bound(self) -> float:
        """Seconds that no strategy of the space takes less than, as far as the search came."""
        best = self.run.best_seconds * (1 - self.run.options.tolerance)
        if self.complete:
            return best
        left = min((bounds[0] for bounds in self.open if bounds), default=-inf)
        if left == -inf:  # it never began
            left = self.relaxation.seconds(inf)[0]
        return min(best, left * (1 - ROUNDING))

    @property
    def proof(self) -> Proof:
        """What was done."""
        return Proof(
            strategies=strategies(self.decisions), renumberings=len(self.everything), partial_plans=self.visited,
            pruned=dict(self.pruned), simulated=self.simulated, tolerance=self.run.options.tolerance, complete=self.complete,
        )


def _distinct(decision: Decision, member: int) -> list[OpConfig]:
    return list(dict.fromkeys(configs[member] for configs in decision.choices))
