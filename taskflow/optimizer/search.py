"""search: a fast strategy for a graph on a machine, by any of the algorithms."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from math import inf, isfinite, isinf
from pathlib import Path
from typing import Any

from taskflow.graph import OperatorGraph
from taskflow.machine import Cluster, Machine, cores
from taskflow.mapper import Strategy
from taskflow.optimizer.algorithms import additive_plan, exact, guided, known, mcmc, optcnn, placement, portfolio, worth
from taskflow.optimizer.bounds import lower_bound, work_bound
from taskflow.optimizer.budget import Budget, Deadline
from taskflow.optimizer.cost import ANALYTIC, AnalyticCosts, CostModel, Costs, ModelCosts, Roofline, choose_costs
from taskflow.optimizer.evaluate import MOST_PROCESSORS, Evaluator, TooManyTasksError
from taskflow.optimizer.evaluate import evaluator as new_evaluator
from taskflow.optimizer.grid import (
    change_that_fits,
    has_grid,
    held_bytes,
    joined,
    layered_search,
    make_grid,
    may_be_whole,
)
from taskflow.optimizer.memory_check import MemoryCheck
from taskflow.optimizer.options import SearchOptions
from taskflow.optimizer.result import Progress, SearchResult
from taskflow.optimizer.session import NothingFits
from taskflow.optimizer.space import Constraints, SpaceOptions, unequal, uneven_applies
from taskflow.rules import SGD, UpdateRule


def _default(evaluator: Evaluator, options: SearchOptions) -> SearchResult:
    """The guided search, which also starts from dynamic programming's plan."""
    return guided(evaluator, options, also_from=(lambda over: additive_plan(evaluator, options.space, over),))


MOST_WORKERS = 256  # threads of a search
ALGORITHMS: dict[str, Callable[[Evaluator, SearchOptions], SearchResult]] = {
    "guided": _default,
    "mcmc": mcmc,
    "optcnn": optcnn,
    "placement": placement,
    "exact": exact,
}

TIME_SHARE, LEAST_SHARE = 0.6, 0.1
"""Of a budget in seconds: for plans with an order, and for those without one if data parallelism cannot fit."""
LATE_CHANGE = 0.5  # seconds beyond the budget for what would fit where nothing does
CHANGE_SHARE = 0.3  # of the time that is left where no plan with an order fits, for what would fit
LATE_BOUND = 0.2  # seconds beyond the budget for a bound from costs that the search has measured
BOUND_SHARE = 0.5  # of the time that is left after plans with an order, at most, for their bound
DEFAULT_RULE = SGD(lr=0.1, momentum=0.9)


def search(
    graph: OperatorGraph,
    machine: Machine,
    *,
    budget: Budget | str | float = 10.0,
    seed: int = 0,
    algorithm: str = "guided",
    costs: Costs | CostModel | str | None = None,
    rule: UpdateRule | None = DEFAULT_RULE,
    clip_norm: float | None = None,
    space: SpaceOptions | None = None,
    starts: Iterable[Strategy] = (),
    memory: bool | MemoryCheck = True,
    progress: Callable[[Progress], None] | None = None,
    use: Evaluator | None = None,
    alone: bool = False,
    constraints: Constraints | Mapping[str, Any] | str | Path | None = None,
    workers: int | None = None,
) -> SearchResult:
    """Search for a strategy with which training ``graph`` on ``machine`` is fast. The result is never predicted to be slower
    than data parallelism, the expert strategy, model parallelism, or ``starts``.

    ``budget``: seconds, or text such as ``30s`` and ``20000p`` (proposals; the result then depends only on the seed). Seconds
    are of the whole call, including the lower bound. Data parallelism is always evaluated. ``SearchResult.left_out`` names
    everything else for which there was no time, including other known strategies and ``starts``. ``algorithm``: one of
    ALGORITHMS. ``costs``: by default the analytic model of the machine; ``measured`` times tasks on the processor at hand when
    their costs are first needed (`choose_costs`), within the budget. ``rule``: the update rule that training will use (its
    arrays need memory and its tasks time). ``memory``: refuse plans that do not fit. A `MemoryCheck` of ``use`` may be given,
    which keeps its cache. ``use``: an evaluator instead of machine, costs, rule and clip_norm. ``alone``: return the
    algorithm's own plan even if a known strategy is faster (to compare algorithms). ``constraints``: on operators and layers,
    as a table (`Constraints.parse`) or a file's name; known strategies and ``starts`` are first repaired to respect them.
    ``workers``: threads of the guided search. By default one for each core, if the budget is in seconds and the step large
    enough for threads to help, else one. With measured costs it is one, since others would disturb measurements. Ctrl-C returns
    the best plan so far.

    For a large network of layers (`has_grid`) without constraints, the guided search first searches plans with micro-batches,
    stages, recomputation and sharded state (`layered_search`). Its result is never slower than the best simulated plan of the
    grid.

    Raises ValueError if an argument is wrong, constraints contradict each other, or no plan was found that fits the memory.
    """
    if workers is not None and not 1 <= workers <= MOST_WORKERS:
        raise ValueError(f"search: workers must be 1 to {MOST_WORKERS}, got {workers}")
    if algorithm not in ALGORITHMS:
        raise ValueError(f"search: no algorithm {algorithm!r}; use {', '.join(ALGORITHMS)}")
    starts = tuple(starts)
    if ordered := [start.name for start in starts if start.ordered]:
        raise ValueError(
            f"search: strategy {ordered[0]} takes micro-batches, stages, recomputation, collectives that cut tensors anew, or "
            "gradients or weights by shares (zero2, zero3); the default search finds such plans by itself, but none starts from "
            "one; leave it out, or simulate it"
        )
    limit = Budget.parse(budget)
    deadline = Deadline(limit.seconds)
    evaluator = use or make_evaluator(graph, machine, costs=costs, rule=rule, clip_norm=clip_norm)
    wanted = space or SpaceOptions()
    wanted = replace(wanted, constraints=wanted.constraints + Constraints.of(constraints))
    wanted.constraints.resolve(graph, len(machine.processors))  # contradictions are said before the work
    if sharded := [f"{layer} to {sync}" for layer, sync in wanted.constraints.syncs(graph).items() if sync.zero > 1]:
        raise ValueError(
            f"search: constraints pin the weights of {sharded[0]}, and the search does not take gradients or weights by shares "
            "yet; pin collective/spread (ZeRO's stage 1), or simulate a plan that has them"
        )
    measures, uneven = evaluator.costs.measures, uneven_applies(machine, wanted)
    plain = algorithm == "guided" and not (alone or measures) and wanted == SpaceOptions()
    layers = plain and memory is not False and has_grid(graph, machine, evaluator.rule)
    large = layers and not starts and len(machine.processors) > MOST_PROCESSORS  # the grid is searched alone
    options = SearchOptions(
        limit, seed, wanted, rivals=() if alone or large else (*known(graph, machine), *starts),
        starts=starts if alone else (),
        fits=_room(evaluator, memory) if evaluator.rule is not None else None, progress=progress, deadline=deadline,
        bound=None if measures else lambda over: _bound(evaluator, wanted, over, uneven),
    )

    def threads() -> int:
        if workers is not None:
            return workers
        alike = algorithm == "guided" and not measures and isinf(limit.proposals) and options.rivals
        return cores() if alike and cores() > 1 and worth(evaluator, options.rivals[0], limit.seconds) else 1

    try:
        searcher, least = ALGORITHMS[algorithm], 0.0
        if layers:
            found, least = _with_layers(evaluator, options, searcher, threads)
        else:
            found = _searched(evaluator, options, searcher, threads())
    except NothingFits as error:
        late = Deadline(max(0.0, deadline.left) + LATE_CHANGE)
        change = error.change or change_that_fits(graph, machine, evaluator.rule, over=lambda: late.expired)
        raise NothingFits(error.said, change) from None
    finally:
        if isinstance(costs, str):
            evaluator.costs.close()
    if layers:  # the bound holds for plans with an order, too
        late = Deadline(max(0.0, deadline.left) + LATE_BOUND if isfinite(limit.seconds) else inf)
        least = max(least, work_bound(evaluator, lambda: late.expired))
        found = replace(found, lower_bound=min(found.seconds, least))
    if found.strategy.ordered:
        return found
    wanted.constraints.verify(found.strategy, graph)  # holds by construction: a plan that violates them must not get out
    if measures:  # nothing is measured for a bound, so it comes when all is known that the search has asked for
        late = Deadline(LATE_BOUND if isfinite(limit.seconds) else inf)
        bound = lower_bound(evaluator, wanted, lambda: late.expired, uneven=uneven)
        found = replace(found, lower_bound=max(found.lower_bound, bound), search_seconds=deadline.elapsed)
    return replace(found, lower_bound=min(found.seconds, found.lower_bound))


def _bound(evaluator: Evaluator, wanted: SpaceOptions, over: Callable[[], bool], uneven: bool) -> float:
    """Bound of plans without an order; devices of unequal speed count as what they are."""
    found = lower_bound(evaluator, wanted, over, uneven=uneven)
    return max(found, work_bound(evaluator, over)) if unequal(evaluator.machine) else found


def _searched(
    evaluator: Evaluator, options: SearchOptions, searcher: Callable[[Evaluator, SearchOptions], SearchResult], workers: int
) -> SearchResult:
    return portfolio(evaluator, options, searcher, workers) if workers > 1 else searcher(evaluator, options)


def _with_layers(
    evaluator: Evaluator, options: SearchOptions, searcher: Callable[[Evaluator, SearchOptions], SearchResult],
    workers: Callable[[], int],
) -> tuple[SearchResult, float]:
    """Search plans with an order first, of a network that has a grid, then without one for what is left of the budget; not if there
    are no rivals: of more devices than the compiled evaluator numbers. ``workers``: says how many threads search the latter.
    Also returns seconds that no plan takes less than."""
    graph, machine = evaluator.graph, evaluator.machine
    large = not options.rivals
    have, held = sum(processor.memory_bytes for processor in machine.processors), held_bytes(graph, evaluator.rule)
    if options.fits is not None and held > have:
        raise NothingFits(
            f"search: found no plan for {graph.name}: weights and the update rule's state take {held / 1e9:,.0f} GB, and all "
            f"devices of {machine.name} together have {have / 1e9:,.0f} GB"
        )
    grid = make_grid(graph, machine, evaluator.rule)
    plan = layered_search(evaluator, options, grid, TIME_SHARE if may_be_whole(grid) and not large else 1 - LEAST_SHARE)
    first, deadline = plan.result, options.deadline or Deadline(options.budget.seconds)
    late = Deadline(max(BOUND_SHARE * deadline.left, LATE_BOUND) if isfinite(options.budget.seconds) else inf)
    try:
        least = grid.least(lambda: late.expired or deadline.stopped)
    except KeyboardInterrupt:
        if first is None:
            raise
        least, deadline.stopped = 0.0, True
        first = replace(first, stopped="interrupted")
    if first is not None and deadline.expired:
        return replace(first, left_out=(*first.left_out, "plans that are neither pipelined nor sharded (no budget left)")), least
    if large:
        if first is None:
            raise NothingFits(f"search: no plan was found in time that fits the memory ({plan.grid})")
        left_out = (*first.left_out, f"plans that are neither pipelined nor sharded (more than {MOST_PROCESSORS} devices)")
        return replace(first, left_out=left_out), least
    left = max(1, options.budget.proposals - plan.proposals)  # what people write is looked at in any case
    options = replace(options, budget=replace(options.budget, proposals=left), answered=first is not None)
    if first is None and isfinite(options.budget.seconds):
        options = _ends_sooner(options, deadline)
    try:
        second = _searched(evaluator, options, searcher, workers())
    except (NothingFits, TooManyTasksError):
        if first is None:
            raise
        stopped = "interrupted" if deadline.stopped else first.stopped
        return replace(first, search_seconds=deadline.elapsed, stopped=stopped), least
    return second if first is None else joined(first, second, plan.proposals), least


def _ends_sooner(options: SearchOptions, deadline: Deadline) -> SearchOptions:
    """The options of a search that ends while there is time to say what would fit (`change_that_fits`), unless a plan has been
    found by then that fits."""
    sooner, fits = deadline.sooner(CHANGE_SHARE * deadline.left), options.fits

    def lacks(strategy: Strategy) -> str:
        shortfall = fits(strategy) if fits is not None else ""
        if not shortfall:
            sooner.seconds = deadline.seconds
        return shortfall

    return replace(options, fits=lacks, deadline=sooner)


def _room(evaluator: Evaluator, memory: bool | MemoryCheck) -> MemoryCheck | None:
    if not memory:
        return None
    return (memory if isinstance(memory, MemoryCheck) else MemoryCheck(evaluator)).for_search()


def make_evaluator(
    graph: OperatorGraph,
    machine: Machine,
    *,
    costs: Costs | CostModel | str | None = None,
    rule: UpdateRule | None = DEFAULT_RULE,
    clip_norm: float | None = None,
    algorithm: str = "auto",
) -> Evaluator:
    """Return the evaluator that `search` uses, with the given or named costs (`choose_costs`). By default they are analytic for
    a described machine, and the machine's roofline for any other. Raises ValueError for arguments of other types."""
    if not isinstance(graph, OperatorGraph) or not len(graph):
        got = "one without operators" if isinstance(graph, OperatorGraph) else type(graph).__name__
        raise ValueError(f"search: graph must be an OperatorGraph, such as taskflow.models.build('mlp'), got {got}")
    if not hasattr(machine, "processors"):
        raise ValueError(f"search: machine must be a machine, such as taskflow.load_machine('p100'), got {machine!r}")
    if not isinstance(rule, (UpdateRule, type(None))):
        raise ValueError(f"search: rule must be an update rule, such as taskflow.Adam(), or None, got {rule!r}")
    if isinstance(costs, str) and costs != ANALYTIC:
        costs = choose_costs(costs, graph, machine, rule)
    if costs is None or isinstance(costs, str):
        costs = AnalyticCosts(machine) if isinstance(machine, Cluster) else Roofline(machine)
    if not isinstance(costs, Costs):
        if not isinstance(machine, Cluster):
            raise ValueError(f"search: {costs.name} needs a described machine (taskflow.machine.Cluster)")
        costs = ModelCosts(costs, graph, machine, rule)
    return new_evaluator(graph, machine, costs, rule, clip_norm, algorithm)
