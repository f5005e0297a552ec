"""A step of which only what differs is lowered: one of several replicas, and a few of many micro-batches.

``replicas`` finds processors that do the same, ``template`` repeats micro-batches, ``links`` says what is occupied, ``step``
puts them together; ``arrays`` simulates a step that is given as arrays.
"""

from taskflow.optimizer.evaluate.folded.memory import folded_use, live_bytes
from taskflow.optimizer.evaluate.folded.step import FoldedStep, folded_step

__all__ = ["FoldedStep", "folded_step", "folded_use", "live_bytes"]
