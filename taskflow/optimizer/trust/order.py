"""PlanOrder: how often plans that were measured for the same task came in the order that was predicted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import mean, median

from taskflow.optimizer.grid import kendall

APART = 0.1
"""By how much of the faster one two measured times must differ for their order to count: repeated runs differ by half of that."""

Pairs = Sequence[tuple[float, float]]
"""Predicted and measured seconds of the plans of one task."""


@dataclass(frozen=True, slots=True)
class PlanOrder:
    """``pairs`` of plans of one task whose measured times differ by `APART`, and how many are ``in_order``. ``tau``: Kendall's, of
    all plans, the median over tasks of three or more. ``regret``: how much slower the plan that was predicted to be the fastest
    was than the fastest, the median and the mean over tasks. None where no task has so many plans."""

    tasks: int
    pairs: int
    in_order: int
    tau: float | None
    regret: tuple[float, float] | None


def order_of(tasks: Iterable[Pairs]) -> PlanOrder:
    """Return how often the order of plans was right within each task."""
    several = [task for task in tasks if len(task) > 1]
    pairs, right = pairs_in_order(several)
    regrets = [regret(task) for task in several]
    taus = [kendall(task) for task in several if len(task) > 2]
    return PlanOrder(
        len(several), pairs, right, median(taus) if taus else None, (median(regrets), mean(regrets)) if regrets else None
    )


def pairs_in_order(tasks: Iterable[Pairs], within: float | None = None) -> tuple[int, int]:
    """Return how many pairs of a task's plans have measured times that differ by `APART`, and how many of these are predicted in
    that order. ``within``: only plans that took at most so many times as long as the fastest."""
    pairs = right = 0
    for task in tasks:
        most = within * min(measured for _, measured in task) if within is not None and task else None
        near = [one for one in task if most is None or one[1] <= most]
        for (first, took), (second, other) in combinations(near, 2):
            if abs(took - other) >= APART * min(took, other):
                pairs += 1
                right += (first - second) * (took - other) > 0
    return pairs, right


def regret(task: Pairs) -> float:
    """Return how much slower the plan that is predicted to be the fastest was than the fastest, as a share."""
    return min(task)[1] / min(measured for _, measured in task) - 1
