"""From an operator graph and a strategy to the tasks of one step.

``lower.py`` is the entry; ``forward``, ``backward`` and ``synchronise`` emit the three parts of a step.
"""

from taskflow.tasks.lower.backward import gradient_flow, gradients_given
from taskflow.tasks.lower.emit import Emitter, contiguous
from taskflow.tasks.lower.forward import LASTING
from taskflow.tasks.lower.lower import CutGraph, cut_graph, lower, needed_for
from taskflow.tasks.lower.parameters import lay_out, left_over
from taskflow.tasks.lower.synchronise import SMALLEST_CHUNK_BYTES

__all__ = [
    "LASTING",
    "SMALLEST_CHUNK_BYTES",
    "CutGraph",
    "Emitter",
    "contiguous",
    "cut_graph",
    "gradient_flow",
    "gradients_given",
    "lay_out",
    "left_over",
    "lower",
    "needed_for",
]
