"""where_time_goes: an evaluator's usage, from the compiled core's arrays where there are any.

`Evaluator.usage` lowers the whole graph in Python, which takes seconds for a network on many devices; searches and
reports ask too often for that. The critical path here is followed through times alone: from the last task to one that ends
when it starts and shares a processor with it, or, failing that, to any that ends then.
"""

from __future__ import annotations

import numpy as np

from taskflow.optimizer.evaluator import Evaluator, Usage
from taskflow.tasks.task import Kind

try:
    from taskflow.optimizer.core import KINDS, CoreEvaluator
except ImportError:  # not built: no compiler
    CoreEvaluator = None  # type: ignore[assignment, misc]


def where_time_goes(evaluator: Evaluator) -> Usage:
    """As `Evaluator.usage`; all figures are the same but for ``critical``, which may follow another path of equal length."""
    if CoreEvaluator is None or not isinstance(evaluator, CoreEvaluator):
        return evaluator.usage()
    table = evaluator.task_table()
    processors = evaluator.machine.processors
    links: dict[int, float] = {}
    copies = table["kind"] == KINDS.index(Kind.COPY)
    busy = np.bincount(table["processor"][~copies], table["cost"][~copies], len(processors))
    pairs = table["source"][copies].astype(np.int64) * len(processors) + table["processor"][copies]
    which, inverse = np.unique(pairs, return_inverse=True)
    for pair, seconds in zip(which.tolist(), np.bincount(inverse, table["cost"][copies]).tolist()):
        for link in evaluator.machine.route(*divmod(pair, len(processors))):
            links[link.number] = links.get(link.number, 0.0) + seconds
    return Usage(
        evaluator.seconds, tuple(busy.tolist()), links, int(table["nbytes"][copies].sum()), _critical(evaluator, table)
    )


def _critical(evaluator: Evaluator, table: dict[str, np.ndarray]) -> tuple[str, ...]:  # type: ignore[type-arg]
    ready, start, end, *_ = evaluator._core.times()  # type: ignore[attr-defined]
    by_end = np.argsort(end, kind="stable")
    ends = end[by_end]
    names: dict[str, None] = {}
    task, seen = int(by_end[-1]) if len(by_end) else -1, 0
    while task >= 0 and seen <= len(end):
        seen += 1
        if table["node"][task] >= 0:
            names[evaluator.graph.nodes[table["node"][task]].name] = None
        low, high = np.searchsorted(ends, start[task], "left"), np.searchsorted(ends, start[task], "right")
        # A task of no duration ends when it starts: never go to one twice.
        found = [int(t) for t in by_end[low:high] if start[t] < start[task]]
        if not found and ready[task] < start[task]:  # it waited for a link that a copy left before it ended
            low, high = np.searchsorted(ends, ready[task], "left"), np.searchsorted(ends, ready[task], "right")
            found = [int(t) for t in by_end[low:high] if start[t] < ready[task]]
        here = {int(table["processor"][task]), int(table["source"][task])}
        close = [t for t in found if here & {int(table["processor"][t]), int(table["source"][t])}]
        task = (close or found or [-1])[0]
    return tuple(reversed(names))
