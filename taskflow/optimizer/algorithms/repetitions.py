"""Repetitions: plans of a few processors that all of a large machine carry out, searched for before plans of all processors.

Nearly all plans that people run are symmetric: what a node does, every node does. A plan of one node is evaluated many times as
fast as that plan on all nodes (`taskflow.optimizer.evaluate.Repetition`). So the default search first searches plans of a few
processors, by itself: all moves change all repetitions at once. Then it searches those of twice as many, from the best plan so far
on both halves, and so on: each time a little of the symmetry is given up. The best of each size are simulated on the whole
machine, whose seconds are those that count.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from taskflow.mapper import Strategy, copy_on_each, sample_dim
from taskflow.optimizer.algorithms.initial import known
from taskflow.optimizer.budget import Budget, BudgetPart
from taskflow.optimizer.evaluate import Evaluator, Repetition, repeated, repetition
from taskflow.optimizer.memory_check import MemoryCheck
from taskflow.optimizer.options import Searcher, SearchOptions
from taskflow.optimizer.result import Progress
from taskflow.optimizer.session import NothingFits, SearchSession
from taskflow.optimizer.space import SpaceOptions

try:
    from taskflow.optimizer.evaluate.compiled import CompiledEvaluator
except ImportError:  # not built: no compiler
    CompiledEvaluator = None  # type: ignore[assignment,misc]

LEAST = 256  # processors of a machine; on 64 plans of all are evaluated fast enough, and the budget is better spent on them
LARGEST = 32  # processors of a repetition
MOST_TRIED = 3  # plans that are simulated on the whole machine


def sizes(run: SearchSession) -> Iterator[Repetition]:
    """The repetitions that are searched, from few processors to many; none where plans of a part cannot stand for the whole, or the
    space is not the default one."""
    evaluator, count = run.evaluator, len(run.evaluator.machine.processors)
    if CompiledEvaluator is None or type(evaluator) is not CompiledEvaluator or evaluator.repetition is not None:
        return
    if count < LEAST or run.options.space != SpaceOptions() or evaluator.costs.measures or evaluator.rule is None:
        return
    size = 2
    while size <= LARGEST and size < count:
        found = repetition(evaluator.graph, evaluator.machine, size)
        if found is not None:
            yield found
        size *= 2


def try_repeated(run: SearchSession, search: Searcher, part: BudgetPart) -> None:
    """Try the best plans found within ``part`` of the budget on all processors, one after the other. Raises KeyboardInterrupt,
    after the best found until then, if the user ended the search for them."""
    plans, interrupted = repeated_plans(run, search, part)
    for plan in plans[: 1 if interrupted else MOST_TRIED]:
        run.try_set(plan)
    if interrupted:
        raise KeyboardInterrupt


def repeated_plans(run: SearchSession, search: Searcher, part: BudgetPart) -> tuple[list[Strategy], bool]:
    """The best plan of each size found within ``part`` of the budget, for all processors, the best first; and whether the user
    interrupted the search for them."""
    found: list[tuple[float, Strategy]] = []
    ladder, best, interrupted = list(sizes(run)), None, False
    for number, of in enumerate(ladder):
        if part.expired:
            break
        run.enter(f"plans of {of.size} for all")
        whole = run.evaluator
        own = CompiledEvaluator(whole.graph, of.machine, whole.costs, whole.rule, None, "full", of)
        try:
            result = search(own, _options(run, own, of, part.part(1 / (len(ladder) - number)), best))
        except NothingFits:
            continue
        run.proposals += result.proposals
        best = of.size, result.strategy
        found.append((result.seconds, replace(of.expand(result.strategy), name=f"{of.size} for all")))
        interrupted = result.stopped == "interrupted"
        if interrupted:
            break
    return [plan for _, plan in sorted(found, key=lambda one: one[0])], interrupted


def _options(
    run: SearchSession, evaluator: Evaluator, of: Repetition, budget: Budget, best: tuple[int, Strategy] | None
) -> SearchOptions:
    """Return the options of a search of one size, which begins at the ``best`` plan of a smaller one, too."""
    graph, phase = evaluator.graph, run.phase
    rivals = [*known(graph, of.machine)]
    if best is not None:
        size, plan = best
        configs = {}
        for node in graph:
            dim, config = sample_dim(node), plan[node.name]
            if config.is_local(node):
                configs[node.name] = copy_on_each(node, of.size)
            else:
                configs[node.name] = config if dim is None else repeated(config, dim, size, of.size // size)
        rivals.append(Strategy(of.size, configs, dict(plan.syncs), "of fewer", plan.sums))

    def told(progress: Progress) -> None:
        run.enter(phase)

    return SearchOptions(
        budget, run.options.seed, rivals=tuple(rivals),
        lacks=None if run.options.lacks is None else MemoryCheck(evaluator, quick=True),
        progress=told, progress_every=run.options.progress_every, deadline=run.deadline.part(budget.seconds),
    )
