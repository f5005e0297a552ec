"""Plans for a small decoder in 16-bit floats, for the tests on ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any

from pipelines import decoder, fitting

import taskflow
from taskflow.loss_scaling import LossScaling
from taskflow.mapper import CollectiveSync, MessageSync, Strategy, Sync, SyncAlgorithm, UpdatePlacement, choose
from taskflow.rules import AdamW


@dataclass(frozen=True)
class Case:
    """``plan``: a mapper's name, or the seed of a random strategy."""

    dtype: str
    plan: str | int
    sync: Sync | None = None
    sums: SyncAlgorithm = SyncAlgorithm.OWNER
    scale: float = 1024.0


RING, COLLECTIVE = SyncAlgorithm.RING, SyncAlgorithm.COLLECTIVE
REPLICATED, SHARDED = UpdatePlacement.REPLICATED, UpdatePlacement.SHARDED
CASES = (
    Case("bfloat16", "data", CollectiveSync(REPLICATED)),
    Case("bfloat16", "data", CollectiveSync(SHARDED)),
    Case("float16", "data", MessageSync(RING, SHARDED, 3)),
    Case("float16", "data", CollectiveSync(SHARDED), scale=2.0**40),  # the first steps overflow
    Case("bfloat16", 7, sums=SyncAlgorithm.COLLECTIVE),  # partial values of 16 bits are all-reduced
    Case("float16", 9, sums=SyncAlgorithm.COLLECTIVE),
    *(Case(dtype, seed) for seed, dtype in enumerate(("bfloat16", "float16", "bfloat16", "float16"))),
)


def strategy_of(case: Case, graph: Any, processors: int) -> Strategy:
    if isinstance(case.plan, int):
        found = fitting(graph, processors, Random(case.plan))
    else:
        found = choose(case.plan, graph, taskflow.host(processors))[0]
    found = replace(found, sums=case.sums)
    return found if case.sync is None else replace(found, syncs={p.layer: case.sync for p in graph.parameters})


def executor(number: int, processors: int, transport: Any = None) -> taskflow.Executor:
    case = CASES[number]
    graph = decoder(case.dtype)
    return taskflow.Executor(
        graph, strategy_of(case, graph, processors), AdamW(1e-3), transport=transport, seed=3, loss_scaling=LossScaling(case.scale),
    )
