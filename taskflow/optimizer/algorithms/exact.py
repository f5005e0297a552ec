"""Exact search: depth-first branch and bound over every strategy of a small space (paper, section 8.4, does the same with A*).

Operators are decided about one after another: those that share a layer together, and always those with the fewest choices left.
A partial plan is pruned when a lower bound on all its completions is not below the best plan so far (`optimizer.bounds`). Of
partial plans that differ only by a renumbering of equal processors, only one is looked at. Complete plans are simulated with
every renumbering that may make a difference. Their times differ a little, since ties go by task number and the processors that
sum depend on their numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isinf, nextafter

from taskflow.kernels import REBUILD
from taskflow.mapper import OpConfig, Strategy, Sync, SyncAlgorithm
from taskflow.optimizer.algorithms.guided import guided
from taskflow.optimizer.algorithms.moves import SYNCS
from taskflow.optimizer.budget import Budget, BudgetExhausted
from taskflow.optimizer.cost.measured import before_measuring
from taskflow.optimizer.evaluate import Evaluator
from taskflow.optimizer.options import SearchOptions
from taskflow.optimizer.result import Proof, SearchResult
from taskflow.optimizer.session import SearchSession
from taskflow.optimizer.space import (
    Decision,
    SearchSpace,
    Symmetry,
    decisions,
    joined,
    renumbered,
    strategies,
    uneven_applies,
)

MOST_CONFIGS = 20_000  # of one operator
MOST_JOINED = 20_000  # choices of the operators of one layer together
REASONS = ("path", "processor", "processors together")  # as bounds/partial_plan.h numbers them
PARTIAL_PER_PROPOSAL = 100  # so many partial plans may be looked at for each proposal of the budget
FIRST_SECONDS = 2.0  # at most, for the default search, whose plan is the first to beat
FAR = 3  # operators that a plan differs in, from which on it becomes the evaluator's current one
EVEN = "even pieces"
ONCE = "plans without copies"
ROUNDING = 1e-9  # a bound adds in another order than the simulator


def exact(evaluator: Evaluator, options: SearchOptions | None = None, *, within: bool = False) -> SearchResult:
    """Find the fastest strategy of ``options.space``, with each layer synchronised in any of the ways that the default search
    tries (`moves.SYNCS`), and partial values summed as in the first plan to beat. That is the plan of the default search, which
    gets a fifth of the budget.

    That plan need not be in the space, if operators follow others or placements are restricted. Then the result need not be
    either, but nothing in the space is faster. ``within``: the first plan to beat is the nearest one in the space, so that the
    space's own fastest strategy is found.

    ``SearchResult.optimal``: no strategy of the space is faster. ``SearchResult.lower_bound``: no strategy takes fewer seconds;
    this holds even if the budget ended first or ``options.tolerance`` permits less. On devices of unequal speed the space has
    even pieces only, while the default search also cuts unevenly (`uneven_applies`). What is made of weights alone the space has
    on one processor each, other plans in copies. Then ``SearchResult.optimal_among`` says what was proved, and the bound is the
    one for all plans. ``SearchResult.proof``: how it was proved.
    Raises ValueError if an operator has more than MOST_CONFIGS configurations, or if the bound has not been compiled.
    """
    options = options or SearchOptions()
    space = SearchSpace(evaluator.graph, len(evaluator.machine.processors), options.space)
    largest = max(evaluator.graph, key=lambda node: space[node].size)
    if space[largest].size > MOST_CONFIGS:
        raise ValueError(
            f"exact: {largest.name} has {space[largest].size:,} configurations, at most {MOST_CONFIGS:,} can be enumerated; "
            f"use fewer devices, even degrees or structured placements"
        )
    budget = options.budget
    # A budget of proposals alone promises the same plan on any machine, also a busy one: no seconds may end this part of it.
    seconds = inf if isinf(budget.seconds) and budget.finite else min(FIRST_SECONDS, budget.seconds / 5)
    part = Budget(seconds, max(1.0, budget.proposals / 5))
    first = guided(evaluator, replace(options, budget=part, deadline=None))
    if first.stopped == "interrupted":
        return replace(first, algorithm="exact")
    decided = _decided(evaluator, space)
    among = EVEN if uneven_applies(evaluator.machine, options.space) else ""
    if len(evaluator.machine.processors) > 1 and any(node.of_weights for node in evaluator.graph):
        among = f"{ONCE} in {EVEN}" if among else ONCE
    plan = within_space(decided, first.strategy) if within else first.strategy
    rivals = (*options.rivals, replace(plan, name="guided"))
    run = SearchSession("exact", evaluator, replace(options, rivals=rivals, bound=None))
    run.proposals = first.proposals
    try:
        with before_measuring(run.go_on):  # the bound asks for the costs of all cuts
            branch = _Branch(run, decided, plan.sums)
    except BudgetExhausted:
        return replace(first, algorithm="exact", left_out=(*first.left_out, "proof (no time to measure all costs)"))

    def body() -> str:
        if within:  # what was the best outside may be a poor plan to beat
            run.enter("descent")
            branch.descend()
        run.enter("proof")
        branch.search()
        run.optimal = not (options.tolerance or among)
        return "finished"

    found = run.conduct(body)
    starts = {name: seconds for name, seconds in found.starts.items() if name != "guided"}
    return replace(
        found, starts={**({} if within else first.starts), **starts},
        lacking=tuple(dict.fromkeys((*(() if within else first.lacking), *found.lacking))),
        search_seconds=found.search_seconds + (0.0 if options.deadline else first.search_seconds),
        lower_bound=first.lower_bound if among else max(first.lower_bound, branch.lower_bound), proof=branch.proof,
        optimal_among=among if branch.complete and not options.tolerance else "",
    )


@dataclass(frozen=True, slots=True)
class _Looked:
    """One decision in a partial plan. ``choices``: those that may lead to a better plan, one of those that become each
    other. ``bounds`` and ``reasons``: the bound of each, and which argument gave it. ``alive``: all choices that are
    not given up."""

    choices: list[int]
    bounds: list[float]
    reasons: list[int]
    alive: list[int]

    @property
    def least(self) -> float:
        """No completion is faster."""
        return min(self.bounds, default=inf)


def _decided(evaluator: Evaluator, space: SearchSpace) -> list[Decision]:
    try:
        from taskflow.optimizer.bounds.partial_plan import fixing_order
    except ImportError:
        raise ValueError(f"exact: the compiled lower bound is missing; {REBUILD}") from None
    return joined(decisions(evaluator.graph, space, fixing_order(evaluator), space.options.follow), MOST_JOINED)


def within_space(decided: Sequence[Decision], plan: Strategy) -> Strategy:
    """Return for each decision the choice that agrees with most of the plan's configurations; layers are synchronised as in the
    plan."""
    configs: dict[str, OpConfig] = {}
    for decision in decided:
        names = [node.name for node in decision.nodes]
        wanted = [plan[name] for name in names]
        choice = max(decision.choices, key=lambda choice: sum(a == b for a, b in zip(choice, wanted)))
        configs.update(zip(names, choice))
    return Strategy(plan.processors, configs, plan.syncs, plan.name, plan.sums)


class _Branch:
    def __init__(self, run: SearchSession, decided: Sequence[Decision], sums: SyncAlgorithm) -> None:
        from taskflow.optimizer.bounds.partial_plan import Relaxation

        self.run, evaluator, self.decisions, self.sums = run, run.evaluator, decided, sums
        processors = len(evaluator.machine.processors)
        self.symmetry = Symmetry(evaluator.costs, processors, [decision.choices for decision in self.decisions])
        lists = {node.name: _distinct(decision, i) for decision in self.decisions for i, node in enumerate(decision.nodes)}
        self.relaxation = Relaxation(evaluator, lists, SYNCS, self.symmetry.group, run.syncs, sums)
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

    def descend(self) -> None:
        """Improve the best plan until no other choice of one decision and no other way to synchronise one layer is faster."""
        better = True
        while better:
            before = self.run.best_seconds
            for decision in self.decisions:
                for choice in decision.choices:
                    changes = {node.name: config for node, config in zip(decision.nodes, choice)}
                    self.run.propose(changes, nextafter(self.run.best_seconds, 0.0), sums=self.sums)
            for layer in self.relaxation.layers:
                for sync in SYNCS:
                    self.run.propose({}, nextafter(self.run.best_seconds, 0.0), {layer: sync}, self.sums)
            better = self.run.best_seconds < before

    def search(self) -> None:
        """Look at the whole space."""
        self._descend({}, [list(range(len(of))) for of in self.choices], list(range(len(self.symmetry.group))))
        self.complete = True

    def _descend(self, chosen: dict[int, int], alive: Sequence[list[int]], stabilizer: Sequence[int]) -> None:
        """Try all completions of a partial plan that may be faster than the best. ``chosen``: decision -> choice; ``alive``: the
        choices of each decision that have not been given up; ``stabilizer``: the renumberings that leave the plan as it is."""
        left = [d for d in range(len(self.decisions)) if d not in chosen]
        if not left:
            complete = [chosen[d] for d in range(len(self.decisions))]
            for image in self._images(complete):
                self._synchronise(complete, image, 0, {})
            return
        looked = [self._look(d, alive[d], stabilizer) for d in left]
        # The decision with fewest choices left comes next: what a plan must have shows how good the rest can be.
        at = min(range(len(left)), key=lambda i: (len(looked[i].choices), -looked[i].least, i))
        alive = list(alive)
        for d, one in zip(left, looked):
            alive[d] = one.alive
        decision, here = left[at], looked[at]
        bounds = [max(bound, *(one.least for one in looked)) for bound in here.bounds]
        for choice in self._promising(bounds, here.reasons, here.choices):
            self.relaxation.fix(self.ops[decision], self.choices[decision][choice])
            self._descend(
                {**chosen, decision: choice}, alive, self.symmetry.stabilizer(decision, choice, stabilizer),
            )
            self.relaxation.free(self.ops[decision])

    def _look(self, decision: int, alive: Sequence[int], stabilizer: Sequence[int]) -> _Looked:
        """Choices that a decision has left. A choice that is pruned in one partial plan is pruned in all its extensions, and so
        are its images under renumberings that leave the plan as it is."""
        living = set(alive)
        candidates = [c for c in self.symmetry.representatives(decision, stabilizer) if c in living]
        self._count(len(candidates))
        limit = self._limit()
        bounds, reasons = self.relaxation.children(
            self.ops[decision], [self.choices[decision][c] for c in candidates], limit
        )
        kept = [(bound, c, reason) for bound, c, reason in zip(bounds.tolist(), candidates, reasons.tolist()) if bound < limit]
        if len(kept) < len(candidates):
            for c, bound, reason in zip(candidates, bounds.tolist(), reasons.tolist()):
                if not bound < limit:
                    self.pruned[REASONS[reason]] += 1
                    living.difference_update(self.symmetry.image[k][decision][c] for k in stabilizer)
        return _Looked([c for _, c, _ in kept], [bound for bound, _, _ in kept], [r for _, _, r in kept], sorted(living))

    def _synchronise(self, chosen: Sequence[int], image: int, layer: int, syncs: dict[str, Sync]) -> None:
        """The same for a plan whose operators are all decided about, and some of its layers, on renumbered processors."""
        relaxation = self.relaxation
        if layer == len(relaxation.layers):
            self._simulate(chosen, image, syncs)
            return
        ways = relaxation.ways(layer)
        if not ways:
            self._synchronise(chosen, image, layer + 1, syncs)
            return
        self._count(len(ways))
        bounds, reasons = [], []
        for way in ways:
            relaxation.use(layer, way, image)
            bound, reason = relaxation.seconds(self._limit())
            bounds.append(bound)
            reasons.append(reason)
        for i in self._promising(bounds, reasons, range(len(ways))):
            relaxation.use(layer, ways[i], image)
            self._synchronise(chosen, image, layer + 1, {**syncs, relaxation.layers[layer]: ways[i]})
        relaxation.unuse(layer)

    def _promising(self, bounds: Sequence[float], reasons: Sequence[int], choices: Sequence[int]) -> Iterator[int]:
        """Choices whose bound is below the best when their turn comes, the smallest first."""
        ranked = sorted(zip(bounds, choices, reasons))
        self.open.append([bound for bound, _, _ in ranked])
        for bound, choice, reason in ranked:
            if bound < self._limit():
                yield choice
            else:
                self.pruned[REASONS[reason]] += 1
            self.open[-1].pop(0)
        self.open.pop()

    def _images(self, chosen: Sequence[int]) -> list[int]:
        """The renumberings that make different plans of a complete one."""
        different: dict[tuple[int, ...], int] = {}
        for image, of in enumerate(self.symmetry.image):
            different.setdefault(tuple(of[decision][choice] for decision, choice in enumerate(chosen)), image)
        return list(different.values())

    def _limit(self) -> float:
        """A bound from here on says that nothing (nothing by more than the tolerance) is faster than the best."""
        return self.run.best_seconds * (1 - self.run.options.tolerance) * (1 + ROUNDING)

    def _simulate(self, chosen: Sequence[int], image: int, syncs: Mapping[str, Sync]) -> None:
        """A complete plan."""
        now, changes = self.run.strategy, {}
        for decision, choice in zip(self.decisions, chosen):
            for node, config in zip(decision.nodes, decision.choices[choice]):
                there = renumbered(config, self.symmetry.group[image])
                if there != now[node.name]:
                    changes[node.name] = there
        # What is not shared is synchronised in any way.
        others = {layer: sync for layer, sync in syncs.items() if sync != now.sync(layer)}
        self.simulated += 1
        self.run.propose(changes, nextafter(self.run.best_seconds, 0.0), others, self.sums)
        if len(changes) > FAR:
            self.run.evaluator.propose(changes, inf, others, self.sums)
            self.run.evaluator.accept()

    def _count(self, partial: int) -> None:
        """Partial plans that are given up need budget too: time, or a share of a proposal."""
        self.visited += partial
        budget = self.run.options.budget
        if self.run.elapsed >= budget.seconds or self.visited > PARTIAL_PER_PROPOSAL * budget.proposals:
            raise BudgetExhausted

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
        """Return what was enumerated and pruned."""
        return Proof(
            strategies=strategies(self.decisions) * len(SYNCS) ** (len(self.relaxation.layers) - len(self.run.syncs)),
            renumberings=len(self.symmetry.group), partial_plans=self.visited,
            pruned=dict(self.pruned), simulated=self.simulated, tolerance=self.run.options.tolerance, complete=self.complete,
        )


def _distinct(decision: Decision, member: int) -> list[OpConfig]:
    return list(dict.fromkeys(configs[member] for configs in decision.choices))
