"""Grid: all plans of tensor, context, pipeline, data and expert parallelism that people lay out by hand, whose degrees divide
the network and the machine; and the search that continues from the best of them.

``plans`` lists them. ``tables`` has one device's part of each operator, and ``stages`` adds these up by stages. From the sums,
``memory`` and ``price`` compute a plan's memory and time in closed form, and ``grid`` simulates the best plans.
``allowed`` says which plans a search may return. ``fit`` chooses recomputation and stages that use the memory. ``plan_bound``,
with ``bound_*``, has the least time that any of these plans takes. ``plan_search`` changes single choices (``neighbours``)
of the best. ``changes`` finds what would fit if nothing does.
"""

from taskflow.optimizer.grid.allowed import Allowed, NotAllowedError
from taskflow.optimizer.grid.changes import FittingChange, change_that_fits
from taskflow.optimizer.grid.descent import descend
from taskflow.optimizer.grid.grid import SIMULATED, PlanGrid, PlanTrial, best_of_grid, spare_of
from taskflow.optimizer.grid.grid_result import GridResult, Pace, kendall
from taskflow.optimizer.grid.memory import MARGIN, PlanMemory, bytes_in_program, memory_of_plan, rank_memories
from taskflow.optimizer.grid.mixed import MixedGrid, make_grid
from taskflow.optimizer.grid.neighbours import layers_of_stages, neighbours, quick_neighbours
from taskflow.optimizer.grid.passes import passes_seconds
from taskflow.optimizer.grid.plan_search import Begun, joined, may_be_whole, plan_search
from taskflow.optimizer.grid.plans import (
    PlanAxes,
    expert_degrees,
    has_no_order,
    held_bytes,
    no_grid,
    takes_micro_batches,
)
from taskflow.optimizer.grid.price import PlanPrices
from taskflow.optimizer.grid.priced import AnyGrid, PricedPlan, soonest_first, varied
from taskflow.optimizer.grid.recompute_to_fit import fit, fitted
from taskflow.optimizer.grid.stages import PlanSums
from taskflow.optimizer.grid.tables import GraphTables
