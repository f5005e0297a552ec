"""Guided search, the default: annealing of whole layers, annealing with learned moves, and local descent, in turn.

1. Starts: data, expert and model parallel, variants of the expert's plan, for Transformers Megatron's
   (`taskflow.mapper.megatron`), and the plan of dynamic programming. If one of the first three does not fit the memory, also
   plans that share weights in groups (`taskflow.optimizer.algorithms.layer_patterns`). If devices are unequal, also data
   parallelism with pieces in proportion to their speeds. From then on, pieces have these sizes, which are adjusted between
   rounds (`taskflow.optimizer.algorithms.uneven`).
   On 256 processors and more, also plans found for a few processors and repeated over the rest
   (`taskflow.optimizer.algorithms.repetitions`).
2. Layers: from the best start, patterns of similar layers (`layer_patterns`; not for deep networks), or on 8 processors and
   more a descent over all cuts and device groups (`layer_descent`). From the same start, independent runs of annealing with the
   moves of `layer_annealing`, repeated if they are quick. On 8 processors and more, hybrids of samples and weights
   (`layer_annealing.hybrids`) are tried beside the result. Then every layer and every group of similar operators takes the best
   of a list of configurations.
3. Annealing of layers again, and of single operators and groups with the moves of `taskflow.optimizer.algorithms.moves`.
4. Local descent: every operator tries every candidate configuration, until no change of one operator helps (or, if a step takes
   long to simulate, until a share of the budget is spent).

Phases 3 and 4 repeat, at changing temperatures, until the budget is spent. When they find nothing any more, every configuration
of every operator is tried (`taskflow.optimizer.algorithms.local_search`). The result is the best plan seen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf, isfinite, nextafter
from random import Random

from taskflow.mapper import (
    Expert,
    Megatron,
    OpConfig,
    Strategy,
    SyncAlgorithm,
    attends,
    cut_only,
    map_graph,
    node_size,
    suits,
)
from taskflow.operators.operator import Soap
from taskflow.optimizer.algorithms.initial import known, with_syncs
from taskflow.optimizer.algorithms.layer_annealing import MANY_TASKS, LayerAnnealing
from taskflow.optimizer.algorithms.layer_descent import LayerDescent
from taskflow.optimizer.algorithms.layer_patterns import LayerPatterns, groups
from taskflow.optimizer.algorithms.local_search import polish
from taskflow.optimizer.algorithms.moves import SYNCS, Moves
from taskflow.optimizer.algorithms.optcnn import additive_plan
from taskflow.optimizer.algorithms.repetitions import try_repeated
from taskflow.optimizer.algorithms.splitmix import acceptance_limit
from taskflow.optimizer.algorithms.uneven import UnevenPieces
from taskflow.optimizer.budget import BudgetExhausted, BudgetPart
from taskflow.optimizer.evaluate import Evaluator, where_time_goes
from taskflow.optimizer.options import SearchOptions
from taskflow.optimizer.result import SearchResult
from taskflow.optimizer.session import SearchSession
from taskflow.optimizer.space import SearchSpace, layers, place, shapes

TEMPERATURES = (0.02, 0.2, 0.005, 0.05)  # at the start of a round of annealing, as a share of the best time
HIERARCHY = 8  # from so many processors on, teams are few among all placements
HOT = (0.2, 0.1, 0.03)  # the same, of the first annealing of layers
MOST_CRITICAL = 200_000  # tasks of a step whose critical path is looked for
MOST_CANDIDATES = 3000  # of one operator in local descent
MOST_POLISHED = 300_000  # changes of single operators that are all tried before it gives up
REPEATED, LARGE_REPEATED = 0.3, 0.7  # of the budget, for plans that are repeated; of large steps
RESTART = 1.5  # times what a chain of annealing takes
RESTARTS = 0.85  # of the budget, at most
ROUNDS = 12  # or restarts without a better plan, after which it gives up


def guided(
    evaluator: Evaluator, options: SearchOptions | None = None, *, dynamic_programming: bool = False
) -> SearchResult:
    """Run the default search. ``dynamic_programming``: start from its plan, too, as `search` does; searches within another search
    do not. Raises ValueError if the budget is endless."""
    options = options or SearchOptions()
    if not options.budget.finite:
        raise ValueError("search: needs a budget in seconds or proposals")
    run = SearchSession("guided", evaluator, options)
    search = _Guided(run, Random(f"guided {options.seed}"), dynamic_programming)
    return run.conduct(search.body)


class _Guided:
    def __init__(self, run: SearchSession, random: Random, dynamic_programming: bool) -> None:
        self.run, self.random, self.dynamic_programming = run, random, dynamic_programming
        self.graph, self.machine = run.evaluator.graph, run.evaluator.machine
        self.space = SearchSpace(self.graph, len(self.machine.processors), run.options.space)
        self.moves = Moves(self.graph, self.space, random)
        parts, teams = layers(self.graph), shapes(self.machine, run.options.space.most_pieces)
        self.tied = LayerAnnealing(run, self.space, parts, teams, random)
        self.descent = LayerDescent(run, self.space, parts, teams)
        self.patterns = LayerPatterns(run, self.space, parts, teams)
        self.uneven = UnevenPieces(run)
        self.large = self.space.processors >= HIERARCHY
        self._candidates: dict[object, list[OpConfig]] = {}

    def body(self) -> str:
        self._starts()
        if len(self.machine.processors) == 1:
            self.run.local = self.run.optimal = True
            return "finished"
        if self.run.evaluator.tasks >= MANY_TASKS:  # of smaller steps annealing tries enough
            self._together(BudgetPart(self.run, 0.1))
        self.run.back_to_best()
        if self.large or self.run.evaluator.tasks < MANY_TASKS:
            self._restarts(self.run.strategy)
        else:
            self._chain(self._plan_of_dynamic_programming)
        self._settle()
        failed = number = 0
        while failed < ROUNDS:
            if self.run.spent:
                raise BudgetExhausted
            before = self.run.best_seconds
            self._round(number)
            number += 1
            failed = 0 if self.run.best_seconds < before else failed + 1
        neighbours = sum(self.space[name].size for name in self.moves.names)
        if self.run.best is not None and not self._structured() and neighbours <= MOST_POLISHED:
            polish(self.run, self.space, self.uneven.may_be_even)
        return "stalled"

    def _round(self, number: int) -> None:
        """Annealing of layers and of operators, and descent, from the best plan."""
        self.uneven.shift(BudgetPart(self.run, 0.1))
        temperature = TEMPERATURES[number % len(TEMPERATURES)]
        if self.large:
            self.run.back_to_best()
            self.tied.anneal(BudgetPart(self.run, 0.2), temperature)
        self._anneal(BudgetPart(self.run, 0.3), temperature)
        self.run.back_to_best()
        self._descend()

    def _structured(self) -> bool:
        """Return whether the descent has tried all that `polish` would."""
        return self.run.local and all(self.space[name].size <= MOST_CANDIDATES for name in self.moves.names)

    # ---- starts --------------------------------------------------------------------------------------------------
    def _starts(self) -> None:
        given = self.run.options.starts
        seen = {strategy.name for strategy in self.run.options.rivals}
        for strategy in given or known(self.graph, self.machine):
            if strategy.name not in seen:
                self.run.try_set(strategy, start=True)
        if given:
            return
        self.uneven.start(self.run.options.rivals or known(self.graph, self.machine))
        large = self.run.evaluator.tasks >= MOST_CRITICAL
        try_repeated(self.run, guided, BudgetPart(self.run, LARGE_REPEATED if large else REPEATED))
        if self.run.refused:  # memory is scarce: one of these does not fit
            self.run.enter("groups, to fit the memory")
            for strategy in groups(self.graph, self.machine):
                self.run.try_set(strategy)
        count = len(self.machine.processors)
        if suits(self.graph):  # experts' plans of Transformers, in groups of a node and of parts of it
            largest = node_size(self.machine)
            for size in (n for n in range(largest, 1, -1) if count % n == largest % n == 0):
                plan = map_graph(Megatron(size), self.graph, self.machine)
                self.run.try_set(replace(plan, name=f"megatron on {size}"))
        per_nodes = [n for n in (2, 8, 16) if n <= count and count % n == 0 and not attends(self.graph)]
        plans = [replace(map_graph(Expert(n), self.graph, self.machine), name=f"expert on {n}") for n in per_nodes]
        tried: list[Strategy] = []  # often all are one plan
        for plan in plans:
            if not any(_same(plan, other) for other in tried):
                tried.append(plan)
                self.run.try_set(plan)
        if plans and not _same(tried[-1], plans[-1]):  # what follows begins at the last, whatever it is equal to
            self.run.try_set(plans[-1])
        if count < HIERARCHY:  # on more, every piece of a layer needs messages from all others
            self.run.try_set(self._channels())

    def _channels(self) -> Strategy:
        """Weights cut wherever there are any, samples elsewhere."""
        n = len(self.machine.processors)
        configs = {}
        for node in self.graph:
            cut = cut_only(node, Soap.PARAMETER if node.parameters else Soap.SAMPLE, n)
            configs[node.name] = place(cut, n)
        return with_syncs(Strategy(n, configs, {}, "channels"), self.graph, self.machine)

    # ---- layers --------------------------------------------------------------------------------------------------
    def _chain(self, between: Callable[[], None] | None = None) -> None:
        """Anneal whole layers, colder each time, from the best plan; ``between``: after the first time."""
        for number, temperature in enumerate(HOT):
            if self.run.expired:
                raise BudgetExhausted
            self.run.back_to_best()
            self.tied.anneal(BudgetPart(self.run, 0.2 if self.large else 0.02), temperature)
            if number == 0 and between is not None:
                between()

    def _restarts(self, start: Strategy) -> None:
        """Patterns, or on 8 processors and more a descent over layers; then annealing once more from ``start``, as if
        these had found nothing. Where such a chain of annealing is short beside the budget, more of them follow, each
        for itself, from both plans in turn. Where annealing ends differs by a tenth and more from one time to the next,
        and does not get better by going on."""
        budget, every = self.run.options.budget, BudgetPart(self.run, RESTARTS)
        if self.large:
            self._descend_layers(BudgetPart(self.run, 0.15))
        else:
            self.run.enter("patterns")
            self.patterns.descend(BudgetPart(self.run, 0.1))
        descended, begin = self.run.strategy, (self.run.elapsed, self.run.proposals)
        self.run.restart(start)
        self._chain(self._plan_of_dynamic_programming)
        self.run.end_restart()
        # Of seconds and proposals one is endless; what comes out must not depend on it.
        seconds, proposals = (
            RESTART * (now - then) if isfinite(of) else inf
            for now, then, of in zip((self.run.elapsed, self.run.proposals), begin, (budget.seconds, budget.proposals))
        )
        failed = number = 0
        while failed < ROUNDS and every.has(seconds, proposals):
            before = self.run.best_seconds
            if not self.run.restart((descended, start)[number % 2], seconds, proposals):
                return
            if self.run.spent:  # a restart that may propose nothing would never spend what its share has left
                raise BudgetExhausted
            self._chain()
            self._settle()
            self._round(0)
            self.run.end_restart()
            number += 1
            failed = 0 if self.run.best_seconds < before else failed + 1

    def _settle(self) -> None:
        """Descend from where annealing of layers ends: over layers and over groups of operators."""
        if self.large and not self.run.restarted and not self.run.options.starts:
            # Not before: annealing that starts from them seldom leaves them, and may have found something better.
            self.tied.hybrids(BudgetPart(self.run, 0.2))
        self.run.back_to_best()
        if self.large:
            self._descend_layers(BudgetPart(self.run, 0.2))
        self._layers(BudgetPart(self.run, 0.1 if self.large else 0.3))
        self.uneven.flatten(self.moves.groups.distinct(self.moves.groups.layer), BudgetPart(self.run, 0.1))

    def _descend_layers(self, part: BudgetPart) -> None:
        self.run.enter("descent over layers")
        self.descent.descend(part)

    def _plan_of_dynamic_programming(self) -> None:
        if not self.dynamic_programming:
            return
        part = BudgetPart(self.run, 0.2)
        self.run.enter("dynamic programming")
        try:
            self.run.try_set(additive_plan(self.run.evaluator, self.run.options.space, lambda: part.expired))
        except TimeoutError as error:
            self.run.leave_out(str(error))

    def _together(self, part: BudgetPart) -> None:
        """Try changes of all layers together. Partial values are summed in the other way. Then all layers, then halves
        of them, and so on, are synchronised in each way. These are few plans, which need no new geometry; on networks
        with many layers they are much of what there is to gain."""
        self.run.enter("synchronisation")
        self.run.back_to_best()
        other = SyncAlgorithm.OWNER if self.run.strategy.sums is SyncAlgorithm.COLLECTIVE else SyncAlgorithm.COLLECTIVE
        self.run.propose({}, self._below(), sums=other)
        names = list(dict.fromkeys(p.layer for p in self.graph.parameters))
        size = len(names)
        while size:
            before = self.run.seconds
            for start in range(0, len(names), size):
                for sync in SYNCS:
                    if part.expired:
                        return
                    syncs = {name: sync for name in names[start : start + size] if self.run.strategy.sync(name) != sync}
                    if syncs:
                        self.run.propose({}, self._below(), syncs)
            size = size // 2 if size > 1 and self.run.seconds < before else 0

    # ---- descent over groups -------------------------------------------------------------------------------------
    def _layers(self, part: BudgetPart) -> None:
        """Each group of operators tries a short list of configurations, together."""
        self.run.enter("layers")
        self.run.back_to_best()
        groups = self.moves.groups
        lists = [*groups.distinct(groups.layer), *groups.distinct(groups.alike), *groups.distinct(groups.depth)]
        lists = [group for group in dict.fromkeys(lists) if len(group) > 1] or lists
        improved = True
        while improved and not part.expired:
            improved = False
            self.random.shuffle(lists)
            for group in lists:
                for config in self._short(group[0]):
                    if part.expired:
                        return
                    improved |= self._better(groups.spread(group[0], config, group))
            improved |= self._synchronise(part)

    def _short(self, name: str) -> list[OpConfig]:
        """A few dozen configurations: all cuts into powers of two, contiguous from 0 and with the widest stride."""
        space, n = self.space[name], self.space.processors
        found: dict[OpConfig, None] = {}
        for degrees in space.tuples:
            if any(d & (d - 1) for d in degrees):
                continue
            config = place(degrees, n)
            strides = space.strides(len(config.processors))
            for stride in {strides[0], strides[-1]}:
                found[place(degrees, n, 0, stride)] = None
        chosen = list(found)
        self.random.shuffle(chosen)
        return chosen[:96]

    def _synchronise(self, part: BudgetPart) -> bool:
        improved = False
        for layer in self.moves.layers:
            for sync in SYNCS:
                if part.expired:
                    return improved
                improved |= self.run.propose({}, self._below(), {layer: sync})
        return improved

    # ---- annealing -----------------------------------------------------------------------------------------------
    def _anneal(self, part: BudgetPart, temperature: float) -> None:
        self.run.enter("annealing")
        self.run.back_to_best()
        age = 0
        while not part.expired:
            if age % 200 == 0:
                self.moves.critical = self._critical()
            age += 1
            scale = self.run.best_seconds * temperature * (1 - part.used) ** 2
            limit = acceptance_limit(self.run.seconds, scale, self.random)
            current, before = self.run.strategy, self.run.seconds
            move = self.moves.draw(current)
            if not move.syncs and all(current.configs[k] == v for k, v in move.changes.items()):
                name = self.moves.names[self.random.randrange(len(self.moves.names))]
                move = replace(move, changes={name: self.space[name].draw(self.random)})  # rather than nothing
            accepted = self.run.propose(move.changes, limit, move.syncs, even=self.uneven.draw_even(move.changes, self.random))
            self.moves.learn(move, accepted and self.run.seconds < before)

    def _critical(self) -> tuple[str, ...]:
        """The operators on the critical path; none where finding it takes longer than it saves."""
        if self.run.evaluator.tasks > MOST_CRITICAL:
            return ()
        return tuple([name for name in where_time_goes(self.run.evaluator).critical if name in self.moves.groups.neighbours])

    # ---- local descent -------------------------------------------------------------------------------------------
    def _descend(self) -> None:
        """Until no candidate of a single operator helps. Operators on the critical path come first."""
        self.run.enter("descent")
        part = BudgetPart(self.run, 1.0 if self.run.evaluator.tasks < MANY_TASKS else 0.3)
        self._synchronise(part)
        names = list(self.moves.names)
        self.random.shuffle(names)
        critical = set(self._critical())
        names.sort(key=lambda name: name not in critical)
        unchanged = position = 0
        while unchanged < len(names):
            if part.expired:
                return
            name = names[position % len(names)]
            position += 1
            unchanged = 0 if self._try_all(name, part) else unchanged + 1
        if self.run.seconds <= self.run.best_seconds:
            self.run.local = True

    def _try_all(self, name: str, part: BudgetPart) -> bool:
        improved = False
        for config in self._all(name):
            if part.expired:
                return improved
            if config != self.run.strategy[name]:
                improved |= self._better({name: config})
        for other in self.moves.groups.neighbours[name]:
            nodes = self.moves.groups
            improved |= self._better(nodes.spread(other, self.run.strategy[other], (name,)))
        return improved

    def _all(self, name: str) -> list[OpConfig]:
        """The candidate list of an operator: all structured configurations, or the aligned ones if they are too many, or
        of these an even sample."""
        space = self.space[name]
        if id(space) not in self._candidates:
            self._candidates[id(space)] = space.candidates(space.size > MOST_CANDIDATES, MOST_CANDIDATES)
        return self._candidates[id(space)]

    def _better(self, changes: dict[str, OpConfig]) -> bool:
        better = self.run.propose(changes, self._below())
        if self.uneven.beside_even(changes):
            better |= self.run.propose(changes, self._below(), even=True)
        return better

    def _below(self) -> float:
        """The largest time that is better than the current one."""
        return nextafter(self.run.seconds, 0.0)


def _same(one: Strategy, other: Strategy) -> bool:
    """Return whether two strategies differ in nothing but their names."""
    return (one.configs, one.syncs, one.sums) == (other.configs, other.syncs, other.sums)
