"""Costs behind the prediction in a training run's trace: those that were asked for, as far as they are known."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from taskflow.checkpoint import on_first_rank
from taskflow.machine import Cluster
from taskflow.optimizer.cost import ANALYTIC, CostModel, choose_costs
from taskflow.optimizer.cost.measured import NotMeasured, before_measuring, nothing_new
from taskflow.runtime import Executor
from taskflow.tasks import Cost, TaskGraph
from taskflow.training.program.plan import PATIENCE_SECONDS


@dataclass(frozen=True, slots=True)
class TraceCosts:
    """Costs for a trace. ``model`` predicts. It has the costs that were ``asked`` for, unless these are unknown for ``unknown``
    of ``tasks`` tasks."""

    asked: str
    model: CostModel
    tasks: int
    unknown: int = 0

    @property
    def about(self) -> dict[str, Any]:
        """Return what the trace says about its costs."""
        found: dict[str, Any] = {"costs": self.model.name}
        return found | ({"costs_asked_for": self.asked, "tasks_not_measured": self.unknown} if self.unknown else {})

    def __str__(self) -> str:
        why = f": of {self.unknown} of its {self.tasks} tasks no {self.asked} costs are kept (--mapper search makes them)"
        return f"predicted with {self.model.name} costs" + (why if self.unknown else "")


def trace_costs(name: str, executor: Executor, machine: Cluster) -> TraceCosts | None:
    """Return the costs that predict the executor's training steps, on rank 0 (None elsewhere). Measured costs are those on
    disk: nothing is measured during training. If they lack one task, analytic costs predict all of them, since the two are
    never mixed. Every rank calls it. Raises what `choose_costs` raises, on every rank."""

    def choose() -> TraceCosts:
        tasks, rule, ranks = executor.program("train").graph, executor.rule, executor.transport.size
        model = choose_costs(name, executor.graph, machine, rule, ranks=ranks, kernels=executor.kernels)
        if unknown := _unknown(tasks, model.seconds):
            return TraceCosts(name, choose_costs(ANALYTIC, executor.graph, machine, rule), len(tasks), unknown)
        return TraceCosts(name, model, len(tasks))

    with executor.transport.patient(PATIENCE_SECONDS) if name != ANALYTIC else nullcontext():
        found: TraceCosts | None = on_first_rank(executor.transport, choose, lambda _: None)
    return found


def _unknown(tasks: TaskGraph, cost: Cost) -> int:
    """Number of tasks whose cost would have to be measured."""
    unknown = 0
    with before_measuring(nothing_new):
        for task in tasks:
            try:
                cost(task)
            except NotMeasured:
                unknown += 1
    return unknown
