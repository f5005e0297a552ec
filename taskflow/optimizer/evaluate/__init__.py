"""Evaluators: predict the time of a training step under a strategy.

``evaluator.py`` defines it in Python; ``compiled.py`` and ``_core.pyx`` are its compiled twin, whose C++ is in ``lowering/``
(strategy to tasks) and ``simulation/`` (tasks to times). They also say where the time goes: the critical path, and the use of
devices and links.
"""

from taskflow.optimizer.evaluate.choose import DEFAULT_RULE, evaluator, make_evaluator, with_products
from taskflow.optimizer.evaluate.core_model import MOST_PROCESSORS
from taskflow.optimizer.evaluate.critical_path import PathSegment
from taskflow.optimizer.evaluate.evaluator import ALGORITHMS, NO_SYNCS, Evaluator, TooManyTasksError, timeline_json
from taskflow.optimizer.evaluate.ordered import is_small, too_many_to_show
from taskflow.optimizer.evaluate.repetition import Repetition, repeated, repetition
from taskflow.optimizer.evaluate.shown import Shown, ShownStep, everything, piece_color, shown_step
from taskflow.optimizer.evaluate.usage import where_time_goes
