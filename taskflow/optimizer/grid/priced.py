"""What a grid gives: its plans with their prices; and what a search asks of it, whatever the machine is like."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from taskflow.graph import OperatorGraph
from taskflow.machine import Cluster
from taskflow.mapper import HybridPlan
from taskflow.optimizer.grid.layered import LayeredPlan
from taskflow.optimizer.grid.memory import PlanMemory
from taskflow.optimizer.grid.stages import PlanSums
from taskflow.rules import UpdateRule


@dataclass(frozen=True, slots=True)
class PricedPlan:
    """A plan of the grid with its number of micro-batches, its price in seconds and the bytes that it needs in closed form."""

    layered: LayeredPlan
    micro_batches: int
    seconds: float
    memory: PlanMemory


class PlanPricing(Protocol):
    """Seconds of a step, of one plan or of many."""

    def __call__(self, layered: LayeredPlan, micro_batches: int) -> float: ...

    def price(self, plans: Sequence[tuple[LayeredPlan, int]]) -> list[float]:
        """Of each plan with so many micro-batches."""
        ...


class AnyGrid(Protocol):
    """`PlanGrid` and, of unequal devices, `MixedGrid`. ``refused``: the plans that do not fit by the closed form."""

    graph: OperatorGraph
    machine: Cluster
    rule: UpdateRule | None
    sums: PlanSums
    memory_bytes: int
    refused: list[PricedPlan]

    @property
    def prices(self) -> PlanPricing: ...

    def plans(self, over: Callable[[], bool] = ...) -> tuple[list[PricedPlan], int]:
        """All plans that fit, the fastest by its price first, and how many there are."""
        ...

    def memory(self, layered: LayeredPlan, count: int) -> PlanMemory:
        """What a device needs by the closed form, in parts of ``memory_bytes``."""
        ...

    def neighbours(self, layered: LayeredPlan) -> Iterator[LayeredPlan]:
        """The plans that differ in one choice."""
        ...


def unusual(plan: HybridPlan) -> int:
    """How much a plan has that few others have: what is left if there is no time for all."""
    return (plan.zero > 1) + (plan.context > 1) + (plan.virtual > 1) + (plan.recompute == "selective")
