"""Costs: how long a task takes on a device.

``analytic.py`` computes it from a device's rates; ``measured/`` times kernels on the device at hand; ``choose.py`` picks one by
name. ``task_costs.py`` is the interface that evaluators use.
"""

from taskflow.optimizer.cost.adapter import ModelCosts
from taskflow.optimizer.cost.analytic import AnalyticCosts
from taskflow.optimizer.cost.choose import ANALYTIC, COSTS, MEASURED, choose_costs
from taskflow.optimizer.cost.library import gradient_width, kept_bytes
from taskflow.optimizer.cost.model import CostModel
from taskflow.optimizer.cost.pace import of_weights, unit_message
from taskflow.optimizer.cost.phases import arrays, product_flops
from taskflow.optimizer.cost.pieces import Pieces, classes
from taskflow.optimizer.cost.task_costs import Costs, FromTasks, Roofline
from taskflow.optimizer.cost.timed import group_of, name_of, parts_of, size_of, untimed
from taskflow.optimizer.cost.tokens import TokenRoute, crossing_bytes, token_routes
