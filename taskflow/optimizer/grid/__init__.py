"""The grid: every plan of tensor, context, pipeline, data and expert parallelism that divides, as people lay it out by hand.

``plans`` lists them. ``tables`` says what one device does of each operator, ``stages`` adds that up by stages, ``memory`` and
``price`` put plans together from these sums in closed form, and ``grid`` simulates the best.
"""

from taskflow.optimizer.grid.grid import Grid, GridResult, PricedPlan, Trial, best_of_grid, kendall
from taskflow.optimizer.grid.layered import LayeredPlan, plan_strategy
from taskflow.optimizer.grid.memory import MARGIN, PlanMemory, plan_memory
from taskflow.optimizer.grid.passes import passes_seconds
from taskflow.optimizer.grid.plans import grid_plans, has_grid
from taskflow.optimizer.grid.price import PlanPrices, sharing
from taskflow.optimizer.grid.stages import PlanSums
from taskflow.optimizer.grid.tables import GraphTables

__all__ = [
    "MARGIN",
    "GraphTables",
    "Grid",
    "GridResult",
    "LayeredPlan",
    "PlanMemory",
    "PlanPrices",
    "PlanSums",
    "PricedPlan",
    "Trial",
    "best_of_grid",
    "grid_plans",
    "has_grid",
    "kendall",
    "passes_seconds",
    "plan_memory",
    "plan_strategy",
    "sharing",
]
