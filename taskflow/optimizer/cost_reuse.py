"""How much memory a processor goes through before it needs an array, or a task's code, again: what decides in which cache it finds
them."""

from __future__ import annotations

from collections import Counter
from math import log2

from taskflow.graph import OperatorGraph
from taskflow.machine import host
from taskflow.mapper import DataParallel
from taskflow.mapper.mapper import map_graph
from taskflow.optimizer.memory import memory_use
from taskflow.rules import UpdateRule
from taskflow.tasks.lower import lower

LEAST, MOST = 1 << 20, 64 << 20  # bytes: below, all is in the nearest caches; above, in memory
LEAST_CODE = 1 << 18  # bytes: below, code stays in the caches of its core


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


def code_bytes(graph: OperatorGraph, reuse: int) -> dict[str, int]:
    """By kind of operator, the bytes that one processor touches between two runs of its code, forward or backward, where
    it touches ``reuse`` between two uses of an array (`reuse_bytes`): zero or a power of four from 256 KiB, so that networks
    share measurements.

    A pass over the network goes through twice ``reuse`` bytes and meets each kind as often as the network has it, of which
    there are kinds with one operator (a loss) and with hundreds. A task whose code has left the core's caches takes tens of
    microseconds longer: of the interpreter's, the library's and the kernel's instructions and tables.
    """
    found = {}
    for kind, count in Counter(node.operator.kind for node in graph).items():
        between = 2 * reuse // count
        found[kind] = min(reuse, 4 ** int(log2(between) / 2)) if between >= LEAST_CODE else 0
    return found
