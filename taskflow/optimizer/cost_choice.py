"""Which costs a plan is judged by, by name: those of the machine's rates, or measured ones."""

from __future__ import annotations

import os
from collections import Counter

from taskflow.graph import OperatorGraph
from taskflow.machine import Cluster, Machine
from taskflow.optimizer.cost import CostModel
from taskflow.optimizer.cost_age import FRESH, aged
from taskflow.optimizer.cost_analytic import AnalyticCosts
from taskflow.optimizer.cost_measured import MeasuredCosts, kernels_for
from taskflow.optimizer.cost_reuse import code_bytes, reuse_bytes
from taskflow.rules import UpdateRule

COSTS = ("analytic", "measured")
ANALYTIC, MEASURED = COSTS


def choose_costs(
    name: str, graph: OperatorGraph, machine: Machine, rule: UpdateRule | None, *, ranks: int | None = None
) -> CostModel:
    """The costs of ``graph``'s tasks on ``machine`` when it is trained with ``rule``: ``analytic`` (`AnalyticCosts`) or
    ``measured`` (`MeasuredCosts`, in the cache folder, in the state in which a step of this graph leaves the caches).

    ``ranks``: how many this job has, on one of which the tasks are measured, with the threads that it has, while as many processes
    as there are other ranks do the same work. None: this process plans for a machine each of whose processors will be a rank; then
    the processors that share a node keep each other company, and the cores are divided among them.
    Raises ValueError for another name, if the machine is not described (a `Cluster`), or if tasks are to be measured and its
    processors are not those at hand; DeviceMissing if these are GPUs and there is none.
    """
    if name not in COSTS:
        raise ValueError(f"costs must be {' or '.join(COSTS)}, got {name!r}")
    if not isinstance(machine, Cluster):
        raise ValueError(f"{name} costs: need a described machine (taskflow.machine.Cluster), got {type(machine).__name__}")
    if name == ANALYTIC:
        return AnalyticCosts(machine)
    neighbours = max(Counter(p.node for p in machine.processors if p.kind == "cpu").values(), default=0)
    threads = max(1, (os.cpu_count() or 1) // neighbours) if ranks is None and neighbours else None
    kernels = kernels_for(machine, threads=threads)  # says what is wrong before a step is lowered
    company = neighbours if ranks is None else ranks
    # Processors that share a rank go through the memory of all of them.
    reuse = reuse_bytes(graph, ranks or len(machine.processors), rule)
    return MeasuredCosts(
        machine, kernels, reuse_bytes=reuse, company=max(0, company - 1), code_bytes=code_bytes(graph, reuse), threads=threads,
        aged=aged(graph, machine, rule) if kernels.device.waits else FRESH,
    )
