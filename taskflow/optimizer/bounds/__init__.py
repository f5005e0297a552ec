"""Lower bounds on the time of a step.

``work_and_path.py`` bounds all strategies of a space, ``work.py`` all plans, also those with micro-batches, stages and
recomputation. ``partial_plan.py`` bounds strategies that agree on some operators, for exact search. Plans in notation
(``t8 d4 mb2``) have a stronger bound in ``optimizer/grid/plan_bound.py``.
"""

from taskflow.optimizer.bounds.work import unordered_bound, work_bound
from taskflow.optimizer.bounds.work_and_path import lower_bound

__all__ = ["lower_bound", "unordered_bound", "work_bound"]
