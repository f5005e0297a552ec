"""Lower bounds on the time of a step.

``work_and_path.py`` bounds all strategies of a space; ``partial_plan.py`` bounds those that agree on some operators, for exact
search.
"""

from taskflow.optimizer.bounds.work_and_path import lower_bound

__all__ = ["lower_bound"]
