"""Interface of a grid to a search, for any machine: plans with their prices, memory and neighbours."""

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
    """Computes the seconds of a step, for one plan or for many."""

    def __call__(self, layered: LayeredPlan, micro_batches: int) -> float: ...

    def price(self, plans: Sequence[tuple[LayeredPlan, int]]) -> list[float]:
        """Return the seconds of a step for each plan with its number of micro-batches."""
        ...


class AnyGrid(Protocol):
    """A `PlanGrid` or, for unequal devices, a `MixedGrid`. ``refused``: the plans that do not fit in closed form."""

    graph: OperatorGraph
    machine: Cluster
    rule: UpdateRule | None
    sums: PlanSums
    memory_bytes: int
    refused: list[PricedPlan]

    @property
    def prices(self) -> PlanPricing: ...

    def plans(self, over: Callable[[], bool] = ...) -> tuple[list[PricedPlan], int]:
        """Return all plans that fit, the one with the best price first, and the number of all plans."""
        ...

    def memory(self, layered: LayeredPlan, count: int) -> PlanMemory:
        """Return the memory that a device needs, in closed form, scaled to ``memory_bytes``."""
        ...

    def neighbours(self, layered: LayeredPlan) -> Iterator[LayeredPlan]:
        """Yield the plans that differ in one choice."""
        ...


def unusual(plan: HybridPlan) -> int:
    """Return how many unusual features a plan has. If time is short, plans with more of them are left out."""
    return (plan.zero > 1) + (plan.context > 1) + (plan.virtual > 1) + (plan.recompute == "selective")
