"""make_grid: the grid of a network for a machine of any devices."""

from __future__ import annotations

from collections.abc import Callable

from taskflow.graph import OperatorGraph
from taskflow.machine import Machine
from taskflow.mapper import HybridPlan
from taskflow.optimizer.grid.grid import PlanGrid
from taskflow.optimizer.grid.mixed import MixedGrid
from taskflow.optimizer.grid.priced import AnyGrid
from taskflow.optimizer.space import unequal
from taskflow.rules import UpdateRule


def make_grid(
    graph: OperatorGraph, machine: Machine, rule: UpdateRule | None, takes: Callable[[HybridPlan], bool] | None = None,
    all_of_a_layer: str = "full",
) -> AnyGrid:
    """Return a `PlanGrid`, or a `MixedGrid` if devices are of several kinds. ``takes``: which plans it has at all.
    ``all_of_a_layer``: how its plans compute all of a layer again, ``full``, or ``whole`` for a program that knows no early stop.
    Raises ValueError if the machine is not described."""
    if unequal(machine):
        return MixedGrid(graph, machine, rule, takes, all_of_a_layer)
    return PlanGrid(graph, machine, rule, takes, all_of_a_layer)
