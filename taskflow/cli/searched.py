"""A search as commands run it: with the problem's evaluator and memory check, and with progress on stderr."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from taskflow.cli.problem import Problem
from taskflow.cli.progress import working
from taskflow.mapper import Strategy
from taskflow.optimizer import Budget, SearchResult, search
from taskflow.optimizer.space import SpaceOptions


def run_search(
    problem: Problem, algorithm: str, budget: Budget, seed: int, quiet: bool, space: SpaceOptions, memory: bool,
    *, alone: bool = False, workers: int | None = None, target: str | None = None, starts: Sequence[Strategy] = (),
    products: str = "", answered: bool = False,
) -> SearchResult:
    """Search, with progress on stderr: the best time, proposals a second, and the share that is accepted."""
    show = not quiet and sys.stderr.isatty()
    with working(f"{algorithm}: starting", show) as display:
        return search(
            problem.graph, problem.machine, budget=budget, seed=seed, algorithm=algorithm, space=space,
            memory=problem.memory_check if memory else False, progress=display.say if show else None, use=problem.evaluator,
            alone=alone, workers=workers, target=target, starts=starts, products=products, answered=answered,
        )
