"""The lower bound that a search of strategies without an order of passes reports."""

from __future__ import annotations

from collections.abc import Callable

from taskflow.optimizer.bounds.work import work_bound
from taskflow.optimizer.bounds.work_and_path import lower_bound
from taskflow.optimizer.evaluate import Evaluator
from taskflow.optimizer.space import SpaceOptions, unequal


def unordered_bound(evaluator: Evaluator, options: SpaceOptions, over: Callable[[], bool], *, uneven: bool) -> float:
    """Return seconds that no strategy of a space takes less than, by both bounds where devices are unequal: only `work_bound`
    counts each as what it is. ``over`` says whether the time has ended; ``uneven``: whether pieces may be of uneven size."""
    found = lower_bound(evaluator, options, over, uneven=uneven)
    return max(found, work_bound(evaluator, over)) if unequal(evaluator.machine) else found
