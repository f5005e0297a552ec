"""search: a fast strategy for a graph on a machine, by any of the algorithms."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from math import inf, isfinite
from pathlib import Path
from typing import Any

from taskflow.graph import OperatorGraph
from taskflow.machine import Machine
from taskflow.mapper import Strategy
from taskflow.optimizer.algorithms import exact, guided, in_threads, known, mcmc, optcnn, placement, without_far
from taskflow.optimizer.bounds import lower_bound, unordered_bound, work_bound
from taskflow.optimizer.budget import Budget, Deadline
from taskflow.optimizer.cost import CostModel, Costs
from taskflow.optimizer.evaluate import DEFAULT_RULE, MOST_PROCESSORS, Evaluator, make_evaluator, with_products
from taskflow.optimizer.grid import Allowed, no_grid
from taskflow.optimizer.memory_check import MemoryCheck
from taskflow.optimizer.options import Searcher, SearchOptions
from taskflow.optimizer.phases import LATE_BOUND, SearchRun, in_phases
from taskflow.optimizer.result import Progress, SearchResult
from taskflow.optimizer.space import Constraints, SpaceOptions, uneven_applies
from taskflow.optimizer.target import PlanTarget, refusal, target_named
from taskflow.rules import UpdateRule

MOST_WORKERS = 256  # threads of a search
ALGORITHMS: dict[str, Searcher] = {
    "guided": partial(guided, dynamic_programming=True),
    "mcmc": mcmc,
    "optcnn": optcnn,
    "placement": placement,
    "exact": exact,
}


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
    target: PlanTarget | str | None = None,
    products: str = "",
    answered: bool = False,
) -> SearchResult:
    """Search for a strategy with which training ``graph`` on ``machine`` is fast. The result is never predicted to be slower
    than data parallelism, the expert strategy, model parallelism, or ``starts``.

    - ``budget``: seconds, or text such as ``30s`` and ``20000p`` (proposals; the result then depends only on the seed). Seconds
      are of the whole call, the lower bound included. Data parallelism is always evaluated; ``SearchResult.left_out`` names
      everything else for which there was no time.
    - ``algorithm``: one of ALGORITHMS.
    - ``costs``: by default the analytic model of the machine. ``measured`` times tasks on the processor at hand when their
      costs are first needed (`choose_costs`), within the budget.
    - ``rule``: the update rule that training will use. Its arrays need memory, its tasks time.
    - ``memory``: refuse plans that do not fit; or a `MemoryCheck` of ``use``, which keeps its cache.
    - ``use``: an evaluator instead of machine, costs, rule and clip_norm.
    - ``alone``: return the algorithm's own plan even if a known strategy is faster, to compare algorithms.
    - ``constraints``: on operators and layers, as a table (`Constraints.parse`) or a file's name. Known strategies and
      ``starts`` are first repaired to respect them.
    - ``workers``: threads of the guided search. The default is one for each core if the budget is in seconds and the step large
      enough for threads to help, else one. With measured costs it is one, since others would disturb measurements.
    - ``target``: a framework that the plan is to run in, such as ``torch`` or ``megatron``. Only what it can express is
      returned, predicted as its training program runs it unless the machine names a program.
    - ``products``: ``fp8`` has the products of linear layers in 8 bits, in all plans (`HybridPlan.products`). Numbers differ
      a little, so a search does not choose this by itself. Only plans in notation are searched then.
    - ``answered``: another search already has a plan, so that this one ends on time even if it has found none.

    Ctrl-C returns the best plan so far. The phases of a search are in `taskflow.optimizer.phases`. For a large network of layers
    (`no_grid`), the guided search begins with plans with micro-batches, stages, recomputation and sharded state, of those that
    ``space`` and ``constraints`` allow (`Allowed`). Its result is never slower than the best simulated plan of that grid.

    Raises ValueError if an argument is wrong, constraints contradict each other, or no plan was found that fits the memory.
    """
    if workers is not None and not 1 <= workers <= MOST_WORKERS:
        raise ValueError(f"search: workers must be 1 to {MOST_WORKERS}, got {workers}")
    if algorithm not in ALGORITHMS:
        raise ValueError(f"search: no algorithm {algorithm!r}; use {', '.join(ALGORITHMS)}")
    starts = tuple(starts)
    ordered = tuple(start for start in starts if start.ordered)
    if ordered and alone:
        raise ValueError(
            f"search: strategy {ordered[0].name} is pipelined or sharded, and no algorithm starts from such a one by itself; leave "
            "it out, or leave out alone"
        )
    if isinstance(target, str):
        target = target_named(target, graph)
    if target is not None and use is None:
        machine = target.driven(machine)
    limit = Budget.parse(budget)
    deadline = Deadline(limit.seconds)
    evaluator = use or make_evaluator(graph, machine, costs=costs, rule=rule, clip_norm=clip_norm)
    if products:
        evaluator = with_products(evaluator, products)
    asked = space or SpaceOptions()
    asked = replace(asked, constraints=asked.constraints + Constraints.of(constraints))
    asked.constraints.resolve(graph, len(machine.processors))  # contradictions are said before the work
    measures, unordered = evaluator.costs.measures, tuple(start for start in starts if not start.ordered)
    no_plans = _why_no_plans(evaluator, algorithm == "guided" and not alone, memory is not False)
    if products and no_plans:
        raise ValueError(f"search: only plans in notation have products={products}, and they are not searched: {no_plans}")
    grid_alone = not (no_plans or unordered) and len(machine.processors) > MOST_PROCESSORS
    operator_space = asked if target is None else target.space(asked)
    uneven = uneven_applies(machine, operator_space)
    check = _memory_check(evaluator, memory) if evaluator.rule is not None else None
    rivals = () if alone or grid_alone else (*known(graph, machine), *without_far(graph, machine), *unordered)
    options = SearchOptions(
        limit, seed, operator_space, rivals=rivals, starts=starts if alone else (),
        lacks=check, progress=progress, deadline=deadline, answered=answered,
        bound=None if measures or not no_plans else partial(unordered_bound, evaluator, operator_space, uneven=uneven),
    )

    threads = workers if workers is not None or algorithm == "guided" else 1
    allowed = Allowed(graph, machine, asked, target, lambda: deadline.expired, products)
    run = SearchRun(
        evaluator, options, in_threads(ALGORITHMS[algorithm], threads), allowed, asked.constraints, refusal(check, target),
        target, ordered, unordered, no_plans, may_repair=algorithm == "guided" and not (alone or measures),
    )
    try:
        found = in_phases(run)
    finally:
        if isinstance(costs, str):
            evaluator.costs.close()
    if not found.strategy.ordered:
        asked.constraints.verify(found.strategy, graph)  # holds by construction: a plan that violates them must not get out
    return _bounded(found, run, deadline, operator_space, uneven)


def _bounded(found: SearchResult, run: SearchRun, deadline: Deadline, space: SpaceOptions, uneven: bool) -> SearchResult:
    """What a search has found, with the lower bound that holds for all that it has looked at."""
    evaluator, least = run.evaluator, found.lower_bound
    if not run.no_plans:  # of plans with an order, too
        late = Deadline(deadline.left + LATE_BOUND)
        least = max(run.least, work_bound(evaluator, lambda: late.expired))
    if not found.strategy.ordered and evaluator.costs.measures:  # comes when all is known that the search has asked for
        late = Deadline(LATE_BOUND if isfinite(deadline.seconds) else inf)
        least = max(least, lower_bound(evaluator, space, lambda: late.expired, uneven=uneven))
        found = replace(found, search_seconds=deadline.elapsed)
    return replace(found, lower_bound=min(found.seconds, least))


def _why_no_plans(evaluator: Evaluator, all_of_guided: bool, memory: bool) -> str:
    """Why plans in notation are not searched; empty if they are. ``all_of_guided``: whether the search is the default one, with
    all that goes with it. ``memory``: whether it counts."""
    if not all_of_guided:
        return "the search is one algorithm's alone"
    if evaluator.costs.measures:
        return "costs are measured"
    if not memory:
        return "memory does not count"
    return no_grid(evaluator.graph, evaluator.machine, evaluator.rule)


def _memory_check(evaluator: Evaluator, memory: bool | MemoryCheck) -> MemoryCheck | None:
    if not memory:
        return None
    return (memory if isinstance(memory, MemoryCheck) else MemoryCheck(evaluator)).for_search()
