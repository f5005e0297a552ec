"""How much memory a processor goes through before it needs an array again: what decides in which cache it finds the array."""

from __future__ import annotations

from math import log2

from taskflow.graph import OperatorGraph
from taskflow.machine import host
from taskflow.mapper import DataParallel
from taskflow.mapper.mapper import map_graph
from taskflow.optimizer.memory import memory_use
from taskflow.rules import UpdateRule
from taskflow.tasks.lower import lower

LEAST, MOST = 1 << 20, 64 << 20  # bytes: below, all is in the nearest caches; above, in memory


def reuse_bytes(graph: OperatorGraph, processors: int, rule: UpdateRule | None) -> int:
    """Bytes that one processor touches between two uses of an array, on the average, in a step of ``graph`` that is cut in
    the sample dimension: a power of two from 1 to 64 MiB, so that networks share measurements.

    A step goes through its memory forward, then back. What the first layer leaves is needed last, after all of the
    memory; what the last layer leaves at once; so, on the average, after a half. Lowers one step in Python (a moment).
    """
    strategy = map_graph(DataParallel(), graph, host(processors))
    tasks = lower(graph, strategy, rule)
    touched = max(use.nbytes for use in memory_use(tasks, range(len(tasks))))
    return int(min(MOST, max(LEAST, 2 ** round(log2(max(1, touched / 2))))))
