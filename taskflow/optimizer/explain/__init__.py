"""Explanations: why a step takes as long as it does, and what would change that.

The critical path in words, alternatives for single operators, differences between two plans, and the plan on other machines.
"""

from taskflow.optimizer.explain.alternatives import alternatives
from taskflow.optimizer.explain.beyond import beyond_grid
from taskflow.optimizer.explain.bubble import Bubble, bubble_of, closed_form
from taskflow.optimizer.explain.difference import LayerChange, difference
from taskflow.optimizer.explain.explain import Busy, Explanation, Stretch, explain
from taskflow.optimizer.explain.labels import TaskPurpose
from taskflow.optimizer.explain.machine_changes import Change
from taskflow.optimizer.explain.split import split_gain
from taskflow.optimizer.explain.uneven import UnevenGain, uneven_pieces
from taskflow.optimizer.explain.what_if import Outcome, Scenario, what_if
