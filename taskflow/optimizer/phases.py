"""Phases of a search, one after the other. Each begins with what the ones before have found, and may make it better.

1. *starts*: strategies of the caller that have an order of passes are simulated.
2. *plans in notation*: the grid of known plans is priced in closed form, and the best are simulated; then single choices of
   the best are changed (`plan_search`). What these plans take at least is computed beside it.
3. *operators*: an algorithm chooses cuts and devices operator by operator, without an order of passes. Known strategies
   and the caller's starts come first. For a framework, the nearest plans that it can express follow.
4. *a plan that fits*: where none was found, a plan that fits in closed form is simulated once, beyond the budget if need be.
   Of those that are priced it is the one that takes least, else the one with the fewest changes.

A phase that does not run says why (`PhaseReport.barred`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import isfinite

from taskflow.mapper import HybridPlan, Strategy, plan_of
from taskflow.optimizer.budget import Budget, BudgetExhausted, Deadline
from taskflow.optimizer.evaluate import MOST_PROCESSORS, Evaluator, TooManyTasksError
from taskflow.optimizer.grid import (
    Allowed,
    AnyGrid,
    Begun,
    GridResult,
    PlanTrial,
    change_that_fits,
    held_bytes,
    joined,
    make_grid,
    may_be_whole,
    plan_search,
    spare_of,
)
from taskflow.optimizer.options import Searcher, SearchOptions
from taskflow.optimizer.result import Improvement, PhaseReport, SearchResult
from taskflow.optimizer.session import NothingFits
from taskflow.optimizer.space import Constraints
from taskflow.optimizer.target import PlanTarget

TIME_SHARE, LEAST_SHARE = 0.6, 0.1
"""Of a budget in seconds: for plans in notation, and for those without an order if data parallelism cannot fit."""
SEARCH_SHARE = 0.7  # of the time that operators have, for their search; the rest for plans that a framework can express
LATE_CHANGE = 0.5  # seconds beyond the budget to look for what would fit where nothing does
LATE_PLAN = 20.0  # seconds beyond the budget to simulate it, or a quarter of the budget if that is more
CHANGE_SHARE = 0.3  # of the time that is left where no plan in notation fits, for what would fit
LATE_BOUND = 0.2  # seconds beyond the budget for a bound
PIECE_SECONDS = 2e-6
"""That a piece of a plan without an order takes at least to be placed, lowered and simulated for the first time."""
UNORDERED = "plans that are neither pipelined nor sharded"


class HopelessError(NothingFits):
    """Error: no plan at all can fit the memory, so that no other phase needs to look."""


@dataclass(slots=True)
class SearchRun:
    """One search: what its phases are given, and what they have found.

    ``options``: of all phases, with a deadline. ``allowed``: decides on plans in notation. ``searcher``: the algorithm for
    operators. ``constraints``: the caller's. ``lacks``: says why a strategy cannot run (`refusal`). ``ordered``: starts with an
    order; ``unordered``: the caller's others. ``no_plans``: why plans in notation are not searched; empty if they are.
    ``may_repair``: whether the last phase may answer.
    """

    evaluator: Evaluator
    options: SearchOptions
    searcher: Searcher
    allowed: Allowed
    constraints: Constraints
    lacks: Callable[[Strategy], str]
    target: PlanTarget | None = None
    ordered: tuple[Strategy, ...] = ()
    unordered: tuple[Strategy, ...] = ()
    no_plans: str = ""
    may_repair: bool = True
    found: SearchResult | None = None
    least: float = 0.0
    """Seconds that no plan takes less than."""
    proposals: int = 0
    begun: list[Begun] = field(default_factory=list)
    """Plans of ``ordered``, to climb from."""
    starts: dict[str, float] = field(default_factory=dict)
    """Seconds of ``ordered``, by name."""
    lacking: list[str] = field(default_factory=list)
    """Those of them that do not fit."""
    left_out: list[str] = field(default_factory=list)
    whole: bool = True
    """Whether weights and state fit a device."""
    grid: AnyGrid | None = None
    """That of the plans in notation which are searched,"""
    best_of_grid: GridResult | None = None
    """and what was found of it before any plan was changed."""
    error: Exception | None = None
    """Why the last phase that failed found nothing."""

    @property
    def deadline(self) -> Deadline:
        """The end of the search."""
        assert self.options.deadline is not None
        return self.options.deadline

    @property
    def may_fit_unordered(self) -> bool:
        """False if it is known that no plan without an order fits."""
        return self.grid is None or self.grid.may_fit_unordered

    @property
    def plans_alone(self) -> bool:
        """True if only plans in notation are searched: the compiled evaluator does not number so many devices."""
        return not self.no_plans and not self.options.rivals


@dataclass(frozen=True, slots=True)
class SearchPhase:
    """A part of a search. ``bars``: returns why it does not run; empty if it does. ``run``: returns what it found, with all its
    proposals; raises NothingFits or TooManyTasksError if that is nothing."""

    name: str
    bars: Callable[[SearchRun], str]
    run: Callable[[SearchRun], SearchResult | None]


def in_phases(run: SearchRun) -> SearchResult:
    """Run all phases, and return the best of what they found. Raises NothingFits or TooManyTasksError if that is nothing."""
    reports: list[PhaseReport] = []
    for phase in PHASES:
        begin, before = run.deadline.elapsed, run.proposals
        barred = "interrupted" if run.found is not None and run.deadline.stopped else phase.bars(run)
        if not barred:
            try:
                _take(run, phase.run(run))
            except (NothingFits, TooManyTasksError) as error:
                run.error = error
                if run.found is not None and run.deadline.stopped:
                    run.found = replace(run.found, stopped="interrupted")
        seconds = run.found.seconds if run.found is not None else None
        reports.append(PhaseReport(phase.name, run.deadline.elapsed - begin, run.proposals - before, seconds, barred))
    if run.found is None:
        assert run.error is not None
        raise run.error
    found = run.found
    return replace(
        found, phases=tuple(reports), grid=run.grid, best_of_grid=run.best_of_grid, search_seconds=run.deadline.elapsed,
        starts={**run.starts, **found.starts}, lacking=(*run.lacking, *found.lacking),
        left_out=(*found.left_out, *run.left_out, *(() if run.target is None else run.target.left_out)),
    )


def _take(run: SearchRun, result: SearchResult | None) -> None:
    if result is not None:
        run.deadline.stopped = run.deadline.stopped or result.stopped == "interrupted"
        run.found = result if run.found is None else joined(run.found, result, run.proposals)
        run.proposals += result.proposals


# ---- starts ----------------------------------------------------------------------------------------------------------
def _no_starts(run: SearchRun) -> str:
    return "" if run.ordered else "no start has an order of passes"


def _starts(run: SearchRun) -> SearchResult | None:
    """Simulate the starts with an order. Those that are plans in notation are climbed from later."""
    evaluator = run.evaluator
    history: list[Improvement] = []
    best: tuple[Strategy, float] | None = None
    stopped = "finished"
    for start in run.ordered:
        strategy = run.constraints.repair(start, evaluator.graph)
        try:
            with evaluator.interruptible(run.deadline.check):
                seconds = evaluator.set(strategy)
                lacks = run.lacks(strategy)
        except (BudgetExhausted, TooManyTasksError) as error:
            late = isinstance(error, BudgetExhausted)
            run.left_out.append(f"{strategy.name} ({'no time to evaluate it' if late else 'too many tasks'})")
            continue
        except KeyboardInterrupt:
            if best is None:
                raise
            stopped = "interrupted"
            break
        run.starts[strategy.name] = seconds
        if lacks:
            run.lacking.append(strategy.name)
            continue
        if not run.no_plans and (plan := plan_of(evaluator.graph, strategy)) is not None:
            run.begun.append(Begun(plan, strategy, seconds, spare_of(run.lacks, strategy)))
        if best is None or seconds < best[1]:
            best = strategy, seconds
            evaluator.keep()
            history.append(Improvement(0, run.deadline.elapsed, seconds))
    if best is None:
        return None
    return SearchResult(*best, {}, tuple(history), 0, 0, run.deadline.elapsed, run.options.seed, "guided", stopped)


# ---- plans in notation -----------------------------------------------------------------------------------------------
def _no_plans(run: SearchRun) -> str:
    return run.no_plans


def _plans(run: SearchRun) -> SearchResult | None:
    """Search plans in notation within their share of the time, and compute what they take at least."""
    evaluator, options, deadline = run.evaluator, run.options, run.deadline
    graph, machine, target = evaluator.graph, evaluator.machine, run.target
    have, held = sum(processor.memory_bytes for processor in machine.processors), held_bytes(graph, evaluator.rule)
    if options.lacks is not None and held > have:
        raise HopelessError(
            f"search: found no plan for {graph.name}: weights and the update rule's state take {held / 1e9:,.0f} GB, and all "
            f"devices of {machine.name} together have {have / 1e9:,.0f} GB"
        )
    allowed = run.allowed
    run.grid = grid = make_grid(
        graph, machine, evaluator.rule, None if allowed.free else allowed.may_have, target.all_of_a_layer if target else "full"
    )
    run.whole = may_be_whole(grid)
    share = TIME_SHARE if run.whole and run.may_fit_unordered and not run.plans_alone else 1 - LEAST_SHARE
    searched = plan_search(
        evaluator, replace(options, lacks=run.lacks), grid, share, make=allowed.strategy, begun=run.begun
    )
    first, run.best_of_grid = searched.result, searched.grid
    late = Deadline(max(deadline.left, LATE_BOUND))  # a bound is known only if no other phase follows
    try:
        run.least = grid.least(lambda: late.expired or deadline.stopped)
    except KeyboardInterrupt:
        if first is None:
            raise
        deadline.stopped, first = True, replace(first, stopped="interrupted")
    if first is None:
        run.proposals += searched.proposals
        if run.plans_alone:
            raise HopelessError(f"search: no plan was found in time that fits the memory ({searched.grid})")
        in_time = " in time" if searched.grid.fitting and not searched.grid.simulated else ""
        why = [str(searched.grid), *[f"not allowed: {allowed.refused}"] * bool(allowed.refused)]
        if not grid.may_fit_unordered:
            why.append("plans that are neither pipelined nor sharded do not fit the memory")
        run.error = NothingFits(f"search: found no plan for {graph.name}{in_time} ({'; '.join(why)})")
    return first


# ---- operators -------------------------------------------------------------------------------------------------------
def _no_operators(run: SearchRun) -> str:
    if isinstance(run.error, HopelessError):
        return "no plan can fit"
    if run.allowed.products:
        return f"only plans in notation have products={run.allowed.products}"
    if not run.may_fit_unordered:
        run.lacking += [start.name for start in run.unordered]
        return "none fits the memory of all devices together"
    if not run.found:
        return ""
    why = ""
    # Data parallelism, which is the first, is evaluated to its end where it may fit.
    pieces = 0 if run.plans_alone else len(run.evaluator.graph) * len(run.evaluator.machine.processors)
    if not run.no_plans and run.deadline.left <= pieces * PIECE_SECONDS:
        why = "no budget left"
    elif run.plans_alone:
        why = f"more than {MOST_PROCESSORS} devices"
    elif run.target is not None and not run.whole:
        why = "weights and state do not fit a device"
    elif sharded := _sharded(run.constraints, run.evaluator):
        why = f"the constraints shard the weights of {sharded}"
    if why:
        run.left_out.append(f"{UNORDERED} ({why})")
    return why


def _sharded(constraints: Constraints, evaluator: Evaluator) -> str:
    """The first layer whose weights are pinned to be sharded; empty if there is none."""
    return next((layer for layer, sync in constraints.syncs(evaluator.graph).items() if sync.zero > 1), "")


def _operators(run: SearchRun) -> SearchResult | None:
    """Search cuts and devices operator by operator for what is left of the budget."""
    if sharded := _sharded(run.constraints, run.evaluator):
        raise NothingFits(
            f"search: constraints shard the weights of {sharded}; of the plans in notation, which may have that, none was found "
            f"({run.no_plans or run.error})"
        )
    options, deadline = run.options, run.deadline
    left = max(1, options.budget.proposals - run.proposals)  # what people write is looked at in any case
    answered = options.answered or run.found is not None or not run.whole  # for what has its weights whole nobody waits then
    options = replace(options, budget=replace(options.budget, proposals=left), answered=answered)
    if run.target is not None:
        seconds = max(SEARCH_SHARE * deadline.left, 1e-3)
        options = replace(options, budget=Budget(seconds, left), deadline=deadline.part(seconds))
    elif not run.no_plans and run.found is None and isfinite(options.budget.seconds):
        options = _ends_sooner(options, deadline)
    found = run.searcher(run.evaluator, options)
    return found if run.target is None else _for_target(run, run.target, found)


def _for_target(run: SearchRun, target: PlanTarget, found: SearchResult) -> SearchResult:
    """What was found if the framework can express it, else the faster of the nearest plan that it can and simple ones, which are
    tried until the end where no plan in notation was found: those have them. All respect the caller's constraints."""
    run.deadline.stopped = run.deadline.stopped or found.stopped == "interrupted"
    try:
        strategy, seconds = target.fastest(
            run.evaluator.machine, run.evaluator, found.strategy, run.options.lacks or (lambda strategy: ""),
            lambda: run.deadline.expired, run.constraints, run.found is None,
        )
    except ValueError as error:
        raise NothingFits(f"search: {error}") from None
    return replace(
        found, strategy=strategy, seconds=seconds, lower_bound=min(found.lower_bound, seconds), local=False, optimal=False,
        optimal_among="",
    )


def _ends_sooner(options: SearchOptions, deadline: Deadline) -> SearchOptions:
    """The options of a search that ends while there is time for a plan that fits, unless one has been found by then."""
    sooner, check = deadline.sooner(CHANGE_SHARE * deadline.left), options.lacks

    def lacks(strategy: Strategy) -> str:
        shortfall = check(strategy) if check is not None else ""
        if not shortfall:
            sooner.seconds = deadline.seconds
        return shortfall

    return replace(options, lacks=lacks, deadline=sooner)


# ---- a plan that fits ------------------------------------------------------------------------------------------------
def _no_repair(run: SearchRun) -> str:
    if run.found is not None:
        return "a plan was found"
    return "" if isinstance(run.error, NothingFits) else str(run.error)


def _repair(run: SearchRun) -> SearchResult | None:
    """Simulate what fits in closed form. Raises NothingFits that says what would, if that is nothing here."""
    evaluator, error = run.evaluator, run.error
    assert isinstance(error, NothingFits)
    end = Deadline(run.deadline.left + max(LATE_PLAN, run.options.budget.seconds / 4))
    if run.may_repair and (soonest := _soonest(run)) is not None:
        with suppress(BudgetExhausted, ValueError, TooManyTasksError):
            strategy, seconds, lacks = _simulated(run, soonest, end)
            if not lacks:
                return _repaired(run, strategy, seconds)
    late = Deadline(run.deadline.left + LATE_CHANGE)
    change = change_that_fits(
        evaluator.graph, evaluator.machine, evaluator.rule, over=lambda: late.expired, allowed=run.allowed.may_have,
        all_of_a_layer=run.target.all_of_a_layer if run.target else "full",
    )
    advice = change.advice
    for plan in change.plans if run.may_repair else ():
        try:
            strategy, seconds, lacks = _simulated(run, plan, end)
        except BudgetExhausted:
            advice += ", which there was no time to simulate"
            break
        except (ValueError, TooManyTasksError):
            continue
        if lacks:
            advice = f"plan '{plan}' needs less, and does not fit: {lacks}"
            continue
        return _repaired(run, strategy, seconds)
    raise NothingFits(error.reason, advice)


def _soonest(run: SearchRun) -> HybridPlan | None:
    """Of the grid's plans, none of which there was time to simulate, the one that is simulated soonest; None if some were."""
    if run.grid is None or run.best_of_grid is None or run.best_of_grid.simulated:
        return None
    found = PlanTrial(run.evaluator, run.lacks, lambda: False).quickest(run.grid.fitting, run.grid.memory_bytes)
    return found.plan if found is not None else None


def _simulated(run: SearchRun, plan: HybridPlan, end: Deadline) -> tuple[Strategy, float, str]:
    """A plan's strategy, its seconds and what memory it lacks. Raises BudgetExhausted at the ``end``."""
    with run.evaluator.interruptible(end.check):
        strategy = run.allowed.strategy(plan)
        return strategy, run.evaluator.set(strategy), run.lacks(strategy)


def _repaired(run: SearchRun, strategy: Strategy, seconds: float) -> SearchResult:
    run.evaluator.keep()
    return SearchResult(
        strategy, seconds, {}, (Improvement(1, run.deadline.elapsed, seconds),), 1, 0, run.deadline.elapsed, run.options.seed,
        "guided", "budget", left_out=("faster plans (no other that fits was found in time)",),
    )


PHASES = (
    SearchPhase("starts", _no_starts, _starts),
    SearchPhase("plans in notation", _no_plans, _plans),
    SearchPhase("operators", _no_operators, _operators),
    SearchPhase("a plan that fits", _no_repair, _repair),
)
