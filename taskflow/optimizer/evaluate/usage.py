"""where_time_goes: an evaluator's usage, from the compiled core's arrays where possible.

`Evaluator.usage` lowers the whole graph in Python, which takes seconds for a network on many devices; searches and reports ask
too often for that. Here only a task's predecessors are inferred from times; the rest of the critical path is
`critical_path.walk`.
"""

from __future__ import annotations

import numpy as np

from taskflow.optimizer.evaluate.critical_path import Needed, TimelineArrays, walk
from taskflow.optimizer.evaluate.evaluator import Evaluator, Usage
from taskflow.tasks import Kind, message_resources, together

try:
    from taskflow.optimizer.evaluate.compiled import KINDS, TRAVELLING, CompiledEvaluator
except ImportError:  # not built: no compiler
    CompiledEvaluator = None  # type: ignore[assignment, misc]


def where_time_goes(evaluator: Evaluator, *, path: bool = True) -> Usage:
    """Return the same as `Evaluator.usage`, except that ``critical`` may follow another path of equal length. ``path``: False
    leaves ``critical`` empty, which saves seconds for millions of tasks."""
    if CompiledEvaluator is None or not isinstance(evaluator, CompiledEvaluator) or evaluator.reference is not None:
        return evaluator.usage()
    if not path:
        return _totals(evaluator)
    table = evaluator.task_table()
    on, count = _course(evaluator, table), len(evaluator.machine.processors)
    copies = np.isin(table["kind"], TRAVELLING)
    busy = np.bincount(table["processor"][~copies], table["cost"][~copies], count)
    occupied = np.bincount(on.resource, np.repeat(table["cost"], np.diff(on.place)), count)
    links = {r - count: float(occupied[r]) for r in np.unique(on.resource).tolist() if r >= count}
    nodes = [int(table["node"][lap.task]) for lap in walk(on, _needed(on, table))]
    names = dict.fromkeys(evaluator.graph.nodes[node].name for node in nodes if node >= 0)
    return Usage(evaluator.seconds, tuple(busy.tolist()), links, int(table["nbytes"][copies].sum()), tuple(names))


def _totals(evaluator: CompiledEvaluator) -> Usage:
    """Use of time, summed up by the core: no array as long as the tasks is made."""
    count = len(evaluator.machine.processors)
    seconds, nbytes, busy = evaluator._core.totals([kind.travels for kind in KINDS], count)
    links = {r - count: float(busy[count + place]) for r, place in evaluator.link_places.items() if busy[count + place] > 0}
    return Usage(evaluator.seconds, tuple(seconds.tolist()), links, nbytes, ())


def _course(evaluator: Evaluator, table: dict[str, np.ndarray]) -> TimelineArrays:  # type: ignore[type-arg]
    ready, start, end, _, _, starts, place = evaluator._core.times()  # type: ignore[attr-defined]
    place = np.concatenate([place, [len(starts)]])
    machine, count = evaluator.machine, len(evaluator.machine.processors)
    copies = table["kind"] == KINDS.index(Kind.COPY)
    resource = np.repeat(table["processor"].astype(np.int64), np.diff(place))
    rows = np.flatnonzero(copies)
    pairs = table["source"][rows].astype(np.int64) * count + table["processor"][rows]
    order = np.argsort(pairs, kind="stable")
    for some in np.split(rows[order], np.flatnonzero(np.diff(pairs[order])) + 1) if len(rows) else ():
        occupied = message_resources(int(table["source"][some[0]]), int(table["processor"][some[0]]), machine)
        resource[place[some][:, None] + np.arange(len(occupied))] = occupied
    for row in np.flatnonzero(table["kind"] == KINDS.index(Kind.COLLECTIVE)):
        group = evaluator.groups[table["source"][row]]  # type: ignore[attr-defined]
        resource[place[row] : place[row + 1]] = evaluator.occupied(group)  # type: ignore[attr-defined]
    at_once = np.zeros(len(ready), np.bool_)
    for row in np.flatnonzero(table["kind"] == KINDS.index(Kind.COLLECTIVE)):
        at_once[row] = together(Kind.COLLECTIVE, resource[place[row] : place[row + 1]].tolist(), machine)
    return TimelineArrays(ready, start, end, place, starts, resource, at_once)


def _needed(on: TimelineArrays, table: dict[str, np.ndarray]) -> Needed:  # type: ignore[type-arg]
    """By times alone: a task that ends then and shares a processor with the one that waited, or, failing that, any."""
    by_end = np.argsort(on.end, kind="stable")
    ends = on.end[by_end]

    processor, source = table["processor"], table["source"]

    def needed(task: int, at: float) -> int:
        low, high = np.searchsorted(ends, at, "left"), np.searchsorted(ends, at, "right")
        # A task of no duration ends when it starts: never go to one twice.
        found = by_end[low:high]
        found = found[on.start[found] < at]
        if not len(found):
            return -1
        some, other, places, sources = processor[task], source[task], processor[found], source[found]
        shares = (places == some) | (places == other) | (sources == some) | (sources == other)
        return int(found[shares.argmax()])  # the first that shares one, or else the first

    return needed
