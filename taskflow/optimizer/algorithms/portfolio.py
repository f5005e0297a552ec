"""Portfolio: the default search on several cores at once, each with its own seed, sharing better plans.

An evaluation runs compiled code that releases the interpreter lock, so threads help if an evaluation takes longer than the
Python around it. What they exchange depends on timing, so a search that must be reproducible runs on one core.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf, isinf

from taskflow.machine import cores
from taskflow.mapper import Strategy
from taskflow.optimizer.budget import Deadline, SharedIncumbent
from taskflow.optimizer.evaluate import Evaluator
from taskflow.optimizer.evaluate import evaluator as new_evaluator
from taskflow.optimizer.memory_check import MemoryCheck
from taskflow.optimizer.options import Searcher, SearchOptions
from taskflow.optimizer.result import Improvement, Progress, SearchResult

LEAST_TASKS = 7_500  # of a step, whose evaluation takes 1 to 6 ms; below it the Python around it, one thread's turn, prevails
LEAST_FIRST = 20  # first evaluations that a budget must have room for
SEEDS = 1_000_003  # between the seeds of two workers


def in_threads(searcher: Searcher, workers: int | None) -> Searcher:
    """Return the search that runs ``searcher`` in so many threads. None: one for each core, if the budget is in seconds and an
    evaluation takes long enough (`worth`). With measured costs it is one, since others would disturb measurements."""

    def search(evaluator: Evaluator, options: SearchOptions) -> SearchResult:
        many = workers
        if many is None:
            may = not evaluator.costs.measures and isinf(options.budget.proposals) and options.rivals and cores() > 1
            many = cores() if may and worth(evaluator, options.rivals[0], options.budget.seconds) else 1
        return portfolio(evaluator, options, searcher, many) if many > 1 else searcher(evaluator, options)

    return search


def worth(evaluator: Evaluator, start: Strategy, seconds: float = inf) -> bool:
    """True if threads can share the work: an evaluation takes long enough, in compiled code. Judged by the number of tasks of
    ``start``, which is the same in every run, unlike a time. False if the ``seconds`` of the budget allow only few first
    evaluations, which are mostly Python. Afterwards the evaluator is at ``start``."""
    try:
        from taskflow.optimizer.evaluate.compiled import CompiledEvaluator
    except ImportError:  # not built: no compiler
        return False
    if not isinstance(evaluator, CompiledEvaluator):
        return False
    begin = time.perf_counter()
    evaluator.set(start)
    return evaluator.tasks >= LEAST_TASKS and (time.perf_counter() - begin) * LEAST_FIRST <= seconds


def portfolio(evaluator: Evaluator, options: SearchOptions, searcher: Searcher, workers: int) -> SearchResult:
    """Run ``searcher`` in ``workers`` threads until each has spent the budget in seconds. The result is the best plan, with the
    proposals of all. If none found a plan, raises the first worker's exception. Ctrl-C returns the best so far."""
    deadline = options.deadline or Deadline(options.budget.seconds)
    incumbent = SharedIncumbent()
    results: list[SearchResult | BaseException | None] = [None] * workers
    told = _Told(options, workers)

    def work(number: int) -> None:
        of, mine = evaluator, evaluator
        if number:
            mine = new_evaluator(of.graph, of.machine, of.costs, of.rule, of.clip_norm)
        own = replace(
            options, seed=options.seed + number * SEEDS, incumbent=incumbent, progress=told.by(number), deadline=deadline,
            bound=options.bound if number == 0 else None,
            lacks=MemoryCheck(mine, quick=True) if options.lacks is not None and number > 0 else options.lacks,
        )
        try:
            results[number] = searcher(mine, own)
        except BaseException as error:
            results[number] = error

    threads = [threading.Thread(target=work, args=(i,), name=f"search {i}", daemon=True) for i in range(workers)]
    for thread in threads:
        thread.start()
    interrupted = False
    while True:
        try:
            for thread in threads:
                while thread.is_alive():
                    thread.join(0.1)
            break
        except KeyboardInterrupt:
            interrupted = deadline.stopped = True
    found = [result for result in results if isinstance(result, SearchResult)]
    if not found:
        raise next(result for result in results if isinstance(result, BaseException))
    best = min(found, key=lambda one: one.seconds)
    return replace(
        best, history=_history(found), proposals=sum(f.proposals for f in found), accepted=sum(f.accepted for f in found),
        refused=sum(f.refused for f in found), search_seconds=deadline.elapsed, seed=options.seed,
        lower_bound=max(f.lower_bound for f in found), left_out=tuple(dict.fromkeys(w for f in found for w in f.left_out)),
        stopped="interrupted" if interrupted else best.stopped,
    )


def _history(found: Sequence[SearchResult]) -> tuple[Improvement, ...]:
    """Best plans over time, of all workers together; proposals are counted as if all were equally fast."""
    every = sorted((step for one in found for step in one.history), key=lambda step: step.elapsed)
    history: list[Improvement] = []
    for step in every:
        if not history or step.seconds < history[-1].seconds:
            history.append(replace(step, proposal=step.proposal * len(found)))
    return tuple(history)


class _Told:
    """Adds up the workers' progress for whoever watches."""

    def __init__(self, options: SearchOptions, workers: int) -> None:
        self.watcher, self.every = options.progress, options.progress_every
        self.last: list[Progress | None] = [None] * workers
        self._lock = threading.Lock()

    def by(self, number: int) -> Callable[[Progress], None] | None:
        if self.watcher is None:
            return None

        def tell(progress: Progress) -> None:
            with self._lock:
                self.last[number] = progress
                known = [p for p in self.last if p is not None]
                if number == 0 and self.watcher is not None:
                    self.watcher(replace(
                        progress, best=min(p.best for p in known), proposals=sum(p.proposals for p in known),
                        accepted=sum(p.accepted for p in known),
                    ))

        return tell
