"""Choice of the costs by which a plan is judged, by name: from the machine's rates, or measured."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from taskflow.graph import OperatorGraph
from taskflow.kernels import KernelSet
from taskflow.machine import Cluster, Machine
from taskflow.optimizer.cost.analytic import AnalyticCosts
from taskflow.optimizer.cost.measured import SECONDS, MeasuredCosts, between, kernels_for, openblas
from taskflow.optimizer.cost.model import CostModel
from taskflow.rules import UpdateRule

COSTS = ("analytic", "measured")
ANALYTIC, MEASURED = COSTS


def choose_costs(
    name: str, graph: OperatorGraph, machine: Machine, rule: UpdateRule | None, *, ranks: int | None = None,
    kernels: KernelSet | None = None, folder: Path | None = None, seconds: float = SECONDS, company: int | None = None,
) -> CostModel:
    """Return the costs of ``graph``'s tasks on ``machine`` when it is trained with ``rule``: ``analytic`` (`AnalyticCosts`) or
    ``measured`` (`MeasuredCosts`, with caches in the state in which a step of this graph leaves them).

    ``ranks``: the number of ranks of this job. Tasks are measured on one of them, with its threads, while as many processes as
    there are other ranks on a node do the same work. With more threads than cores, the threads of one rank would wait for those
    of another, and a task take anything up to a hundred times as long; so a rank has at most its share of the cores. None: this
    process plans for a machine in which each processor will be a rank. Then as many contending processes run as other
    processors share its node, and the cores are divided among them. The other
    arguments are for comparing measurements: ``kernels``; ``folder`` (default: the cache folder), where measurements are kept;
    ``seconds`` for each; ``company``, the number of contending processes.

    Raises ValueError for another name, if the machine is not a `Cluster`, or if tasks are to be measured and its processors are
    not those at hand; DeviceMissing if these are GPUs and there is none.
    """
    if name not in COSTS:
        raise ValueError(f"costs must be {' or '.join(COSTS)}, got {name!r}")
    if not isinstance(machine, Cluster):
        raise ValueError(f"{name} costs: need a described machine (taskflow.machine.Cluster), got {type(machine).__name__}")
    if name == ANALYTIC:
        return AnalyticCosts(machine)
    neighbours = max(Counter(p.node for p in machine.processors if p.kind == "cpu").values(), default=0)
    here = neighbours if ranks is None else min(ranks, neighbours or ranks)  # ranks on a node
    share = max(1, (os.cpu_count() or 1) // max(1, here))
    # One rank alone has the threads of this process, whatever they are.
    many = here > 1 and _threads(kernels or kernels_for(machine)) > share
    threads = share if here and (ranks is None or many) else None
    kernels = kernels_for(machine, kernels, threads)  # says what is wrong before a step is lowered
    if company is None:
        company = max(0, here - 1)
    # Processors that share a rank do in turn, and with the memory of all, what so many processors as there are ranks would do.
    found = between(graph, machine if ranks is None else machine.prefix(min(ranks, len(machine.processors))), rule)
    return MeasuredCosts(machine, kernels, folder=folder, seconds=seconds, between=found, company=company, threads=threads)


def _threads(kernels: KernelSet) -> int:
    """Threads of this process's larger kernels and matrix products, whichever have more; 1 where the device does the work."""
    library = openblas() if kernels.device.waits else None
    return max(kernels.threads, int(library.get_threads()) if library is not None else 1)
