"""Plans that deal the experts of a network whose experts have no places, searched beside plans of the network as it is."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from math import isfinite

from taskflow.cli.constraints import require_target
from taskflow.cli.experts import experts_row
from taskflow.cli.problem import Problem
from taskflow.mapper import HybridParallel, map_graph
from taskflow.models import is_dropless, with_places
from taskflow.optimizer import Budget, BudgetExhausted, Deadline, SearchResult, make_evaluator
from taskflow.optimizer.cost import ANALYTIC
from taskflow.optimizer.evaluate import TooManyTasksError

EVEN = 1.0  # the load that plans are made for unless somebody has said another one
AS_IT_IS = 0.2  # of a budget, for the network as it is: dealing pays on most clusters, and the other search has these plans, too
LEAST = 0.1  # of a budget, for plans that deal experts if the first search took too long
AGAIN = 0.05  # of a search's seconds, to predict a plan again for the network as it is
Searched = Callable[[Problem, Budget], SearchResult]


def dealing(problem: Problem, target: str | None) -> Problem | None:
    """Return the problem in which experts have places for an even load, so that plans can deal them (``eN``). None if experts have
    places or cannot get any, if ``target`` cannot express that, on one device, for costs that are measured, and on CPU cores, on
    which plans are trained: without places."""
    machine, made_from = problem.machine, problem.made_from
    on_gpus = any(kind.kind != "cpu" for kind in machine.kinds)
    if not is_dropless(problem.graph) or len(machine.processors) == 1 or not on_gpus or made_from["costs"] != ANALYTIC:
        return None
    try:
        graph = with_places(problem.graph, EVEN)
        if target is not None:
            require_target(graph, target)
    except ValueError:
        return None
    evaluator = make_evaluator(graph, machine, costs=ANALYTIC, rule=problem.evaluator.rule)
    return Problem(graph, machine, evaluator, {**made_from, "expert_imbalance": EVEN})


def faster_of_both(problem: Problem, dealt: Problem | None, searched: Searched, budget: Budget) -> tuple[Problem, SearchResult]:
    """Search for plans of the network as it is, with a fifth of the budget, and for plans that deal its experts (``dealt``). Return
    the faster one, after the problem that it is for. Raises ValueError if neither search has a plan that fits."""
    if dealt is None:
        return problem, searched(problem, budget)
    began = time.perf_counter()
    results: list[SearchResult] = []
    plans: list[tuple[Problem, SearchResult]] = []
    refusals: list[ValueError] = []
    for of in (problem, dealt):
        left = max(LEAST * budget.seconds, budget.seconds - (time.perf_counter() - began))
        part = _part(budget, AS_IT_IS) if of is problem else replace(_part(budget, 1 - AS_IT_IS), seconds=left)
        try:
            results.append(searched(of, part))
        except ValueError as error:
            refusals.append(error)
            continue
        plans += [(of, results[-1])] if of is problem or _deals(of, results[-1]) else _as_it_is(problem, results[-1], budget)
        if results[-1].stopped == "interrupted":
            break
    if not plans:
        raise refusals[0]
    best, found = min(plans, key=lambda plan: plan[1].seconds)
    return best, replace(
        found, proposals=sum(one.proposals for one in results), accepted=sum(one.accepted for one in results),
        search_seconds=sum(one.search_seconds for one in results), optimal=False, optimal_among="",
        lower_bound=min(one.lower_bound for one in results) if len(results) == 2 else 0.0,
    )


def _part(budget: Budget, share: float) -> Budget:
    proposals = max(1, round(budget.proposals * share)) if isfinite(budget.proposals) else budget.proposals
    return Budget(budget.seconds * share, proposals)


def _deals(problem: Problem, found: SearchResult) -> bool:
    plan = found.strategy.plan
    return plan.experts > 1 if plan is not None else experts_row(problem.graph, found.strategy)["experts"]["dealt"] > 1


def _as_it_is(problem: Problem, found: SearchResult, budget: Budget) -> list[tuple[Problem, SearchResult]]:
    """The same plan of the network as it is; nothing if it has no notation, does not fit, or takes long to predict."""
    if found.strategy.plan is None:
        return []
    try:
        strategy = map_graph(HybridParallel(str(found.strategy.plan)), problem.graph, problem.machine)
        with problem.evaluator.interruptible(Deadline(AGAIN * budget.seconds).check):
            seconds = problem.evaluator.set(strategy)
        return [] if problem.memory_check(strategy) else [(problem, replace(found, strategy=strategy, seconds=seconds, fit=()))]
    except (BudgetExhausted, TooManyTasksError, ValueError):
        return []
