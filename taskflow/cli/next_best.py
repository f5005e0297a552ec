"""The plans next to the one that a search found, each of another kind: to be tried beside it (`taskflow try`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from taskflow.cli.problem import Problem
from taskflow.cli.progress import working
from taskflow.machine import Cluster
from taskflow.mapper import HybridParallel, HybridPlan, Strategy, choose, map_graph, plan_of, save
from taskflow.optimizer import BudgetExhausted, Deadline, SearchResult, refusal, target_named
from taskflow.optimizer.evaluate import MOST_PROCESSORS, TooManyTasksError
from taskflow.optimizer.grid import Allowed, AnyGrid, make_grid
from taskflow.optimizer.space import SpaceOptions

LEAST_SECONDS = 5.0  # to look for them, at least
SAME = 1e-9
TRIED = 4  # plans of the grid that are simulated for each plan wanted
BY_RULE = ("data", "model", "expert")
DISTINGUISHING = ("tensor", "context", "pipeline", "virtual", "data", "experts", "zero", "shard_group", "recompute")


def write_next_best(
    problem: Problem, found: SearchResult, rows: Sequence[dict[str, Any]], count: int, out: str, left: float, space: SpaceOptions,
    target: str | None, quiet: bool,
) -> list[dict[str, Any]]:
    """Write the ``count`` best plans after ``found`` beside ``out``, as PLAN-2.json, PLAN-3.json and so on; return a row for each.
    ``rows``: usual plans (`beside`). ``left``: seconds to look for them, if that is more than `LEAST_SECONDS`."""
    deadline = Deadline(max(LEAST_SECONDS, left))
    with working("the plans next to it", not quiet):
        plans = next_best(problem, found, rows, count, space, target, deadline)
    written = []
    for number, (strategy, seconds) in enumerate(plans, 2):
        file = str(Path(out).with_name(f"{Path(out).stem}-{number}.json"))
        save(strategy, problem.graph, problem.machine.name, file, problem.made_from)
        written.append({"file": file, "name": strategy.name, "iteration_seconds": seconds})
    return written


def next_best(
    problem: Problem, found: SearchResult, rows: Sequence[dict[str, Any]], count: int, space: SpaceOptions, target: str | None,
    deadline: Deadline,
) -> list[tuple[Strategy, float]]:
    """Return the ``count`` fastest plans after ``found`` with their seconds: of usual plans, known mappers and the best of the
    grid, those that fit and that a framework can express. Those that the search found to fit are not simulated again. No two have
    the same degrees, stage of ZeRO and recomputation."""

    def over() -> bool:
        return deadline.expired

    evaluator, framework = problem.evaluator, target_named(target, problem.graph) if target is not None else None
    lacks, seen = refusal(problem.memory_check, framework), {_kind(problem, found.strategy)}
    best: list[tuple[Strategy, float]] = []
    allowed = Allowed(problem.graph, problem.machine, space, framework)
    for plan, seconds in sorted(dict(found.fit).items(), key=lambda one: one[1]):
        strategy = allowed.strategy(plan)
        if seconds > found.seconds and (kind := _kind(problem, strategy)) not in seen:
            seen.add(kind)
            best.append((strategy, seconds))
    allowed = Allowed(problem.graph, problem.machine, space, framework, over)
    for make in _candidates(problem, found.grid, rows, TRIED * count, allowed, over):
        try:
            strategy = make()
            space.constraints.verify(strategy, problem.graph)
            if (kind := _kind(problem, strategy)) in seen:
                continue
            with evaluator.interruptible(deadline.check):
                if lacks(strategy):
                    continue
                seconds = evaluator.set(strategy)
        except BudgetExhausted:
            break
        except (ValueError, TooManyTasksError):
            continue
        seen.add(kind)
        if abs(seconds / found.seconds - 1) > SAME:  # the same time: almost certainly the found plan in another notation
            best.append((strategy, seconds))
    return sorted(best, key=lambda one: one[1])[:count]


def grid_barred(problem: Problem) -> str:
    """Return why there is no row for the grid; empty if there is one."""
    if problem.evaluator.costs.measures:
        return "none with measured costs, since its plans are priced for described machines"
    if problem.graph.carries:
        return f"none, since {problem.graph.name} carries states from step to step"
    return "" if isinstance(problem.machine, Cluster) else f"none, since {problem.machine.name} is not a described machine"


def _candidates(
    problem: Problem, grid: AnyGrid | None, rows: Sequence[dict[str, Any]], most: int, allowed: Allowed, over: Callable[[], bool]
) -> Iterator[Callable[[], Strategy]]:
    graph, machine = problem.graph, problem.machine
    for row in rows:
        if row.get("fits_memory"):
            yield lambda row=row: map_graph(HybridParallel(row["plan"]), graph, machine)  # type: ignore[misc]
    barred = grid_barred(problem)
    by_rule = BY_RULE if barred else BY_RULE[1:]  # replicas alone are in the grid
    for name in by_rule if barred or _may_be_unordered(problem, grid) else ():
        yield lambda name=name: choose(name, graph, machine)[0]  # type: ignore[misc]
    if barred:
        return
    kinds: set[tuple[Any, ...]] = set()
    if grid is None:  # the search looked at none
        takes, levels = None if allowed.free else allowed.may_have, allowed.target.all_of_a_layer if allowed.target else "full"
        grid = make_grid(graph, machine, problem.evaluator.rule, takes, levels)
    for priced in grid.usual(over):
        if over() or len(kinds) == most:
            return
        if (kind := _degrees(priced.plan)) not in kinds:
            kinds.add(kind)
            yield lambda plan=priced.plan: allowed.strategy(plan)  # type: ignore[misc]


def _may_be_unordered(problem: Problem, grid: AnyGrid | None) -> bool:
    """False if no plan of cuts alone fits, or there are so many devices that all of its step would be lowered."""
    return len(problem.machine.processors) <= MOST_PROCESSORS and (grid is None or grid.may_fit_unordered)


def _degrees(plan: HybridPlan) -> tuple[Any, ...]:
    return tuple(getattr(plan, name) for name in DISTINGUISHING)


def _kind(problem: Problem, strategy: Strategy) -> object:
    """What two plans that are worth trying beside each other differ in: by their notation, or by cuts and places."""
    plan = plan_of(problem.graph, strategy)
    return tuple((name, strategy[name]) for name in sorted(strategy.configs)) if plan is None else _degrees(plan)
