"""Stamp kernels: each task writes its own number into all that it writes, and records whose numbers it finds in what it reads.

Tasks run once one after another in memory that is never reused, and once as compiled (reordered, memory reused, other ranks).
Equal records mean that every task reads exactly the values that program order prescribes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from taskflow.kernels import KernelSet
from taskflow.operators.operator import StepState
from taskflow.runtime.program import Action, Storage, bind
from taskflow.tasks import Task, TaskGraph, Transfer

STAMP = np.dtype(np.int64)
Record = dict[tuple[int, int], tuple[bytes, ...]]  # (step, task) -> the stamps in each part that it read


def stamped(graph: TaskGraph) -> TaskGraph:
    """Return the same graph with buffers of stamps."""
    return replace(graph, buffers=[replace(b, dtype=STAMP) for b in graph.buffers])


def stamp_binder(record: Record) -> Callable[[Task, Storage, KernelSet, StepState], Action]:
    """Return a binder for Program that stamps instead of computing."""

    def binder(task: Task, storage: Storage, kernels: KernelSet, state: StepState) -> Action:
        if isinstance(task.work, Transfer) and not task.work.add:
            return bind(task, storage, kernels, state)
        reads: list[Any] = [storage.part(p) for p in task.reads]
        writes: list[Any] = [storage.part(p) for p in task.writes]

        def act() -> None:
            record[state.step, task.number] = tuple(np.ascontiguousarray(array).tobytes() for array in reads)
            for array in writes:
                array[...] = state.step * 1_000_000 + task.number + 1

        return act

    return binder
