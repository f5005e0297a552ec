"""Optimizer: searches for a fast strategy for a graph on a machine.

``search`` is the entry, and ``phases`` is what it does in which order. This folder also has time limits, the search's
state and its result; the rest is in packages:

- ``space``: the strategies that exist
- ``algorithms``: how they are searched
- ``evaluate``: simulated time of a step
- ``cost``: time of a task
- ``memory``: memory that a device needs
- ``bounds``: lower bounds of a step's time
- ``traffic``: bytes over each link
- ``explain``: where a step's time goes
- ``grid``: plans with micro-batches and stages, in closed form, and the search that continues from them
- ``sharing``: several jobs on one machine
- ``trust``: how far predictions of measured plans were off
"""

from taskflow.optimizer.beside import NO_TIME, UsualPlan, has_usual_plans, usual_plans
from taskflow.optimizer.budget import Budget, BudgetExhausted, Deadline
from taskflow.optimizer.evaluate import make_evaluator
from taskflow.optimizer.failures import FailureCosts, best_interval, failure_costs
from taskflow.optimizer.memory_check import RULE, MemoryCheck
from taskflow.optimizer.options import SearchOptions
from taskflow.optimizer.result import Improvement, PhaseReport, SearchResult
from taskflow.optimizer.search import ALGORITHMS, search
from taskflow.optimizer.session import NothingFits
from taskflow.optimizer.target import PlanTarget, refusal, target_named
from taskflow.optimizer.units import StepUnits, expert_imbalance, step_units
from taskflow.optimizer.ways_to_shard import WayToShard, ways_to_deal, ways_to_shard

__all__ = [
    "ALGORITHMS",
    "NO_TIME",
    "RULE",
    "Budget",
    "BudgetExhausted",
    "Deadline",
    "FailureCosts",
    "Improvement",
    "MemoryCheck",
    "NothingFits",
    "PhaseReport",
    "PlanTarget",
    "SearchOptions",
    "SearchResult",
    "StepUnits",
    "UsualPlan",
    "WayToShard",
    "best_interval",
    "expert_imbalance",
    "failure_costs",
    "has_usual_plans",
    "make_evaluator",
    "refusal",
    "search",
    "step_units",
    "target_named",
    "usual_plans",
    "ways_to_deal",
    "ways_to_shard",
]
