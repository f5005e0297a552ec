"""Folded steps: only distinct parts of a step are lowered: one of several replicas, a few of many micro-batches, and a few of
the layers that are alike.

``replicas`` finds processors that do the same, ``layers`` finds layers that are alike, ``template`` repeats micro-batches,
``repeat`` repeats layers, ``links`` has the resources that tasks occupy, and ``step`` combines them. ``arrays`` simulates a
step that is given as arrays. ``replica`` has the timeline of the first replica, to explain it.
"""

from taskflow.optimizer.evaluate.folded.arrays import simulate_arrays
from taskflow.optimizer.evaluate.folded.layers import KEPT
from taskflow.optimizer.evaluate.folded.links import FoldedResources
from taskflow.optimizer.evaluate.folded.memory import folded_profile, folded_use
from taskflow.optimizer.evaluate.folded.replica import replica_course, replica_operators, replica_passes, replica_path
from taskflow.optimizer.evaluate.folded.step import FoldedStep, folded_step
