"""Lowering: from an operator graph and a strategy to the tasks of one step.

``lower.py`` is the entry; ``forward``, ``backward`` and ``synchronise`` emit the three parts of a step. ``gradient_sync`` states
how gradients are synchronised; everything that needs to know reads it.
"""

from taskflow.tasks.lower.again import AHEAD, runs_again
from taskflow.tasks.lower.contiguous import contiguous
from taskflow.tasks.lower.emit import Emitter
from taskflow.tasks.lower.forward import LASTING
from taskflow.tasks.lower.gradient_flow import gradient_flow, gradients_given
from taskflow.tasks.lower.gradient_sync import (
    ChunkPattern,
    SyncStep,
    SyncTask,
    chunk_count,
    first_root,
    make_sync_table,
    sync_tasks,
)
from taskflow.tasks.lower.lower import CutGraph, cut_graph, lower, needed_for
from taskflow.tasks.lower.parameters import lay_out, left_over
from taskflow.tasks.lower.part import LOWERED, NotAlikeError, StepPart
from taskflow.tasks.lower.sync_part import first_repetition
from taskflow.tasks.lower.synchronise import FACTOR
from taskflow.tasks.lower.weight_gathers import ADDED
