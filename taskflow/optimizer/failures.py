"""What failures cost: the best time between checkpoints, and the share of time that trains.

The model is J. T. Daly's, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future Generation
Computer Systems 22 (2006): failures come at random (exponentially) with a mean time between them, and may hit a checkpoint or a
restart too. Without his higher terms the interval is J. W. Young's (Communications of the ACM 17, 1974), sqrt(2 x write x MTBF).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, expm1, sqrt


@dataclass(frozen=True, slots=True)
class FailureCosts:
    """Prediction of what failures cost, in seconds: of training from one checkpoint to the next (``interval``, of ``steps``
    steps), and lost with each failure, in all (``lost``). ``useful``: share of the time in which steps are done that stay; where
    they are slower than without failures, the share of what would have been done."""

    interval: float
    steps: int
    lost: float
    useful: float


def failure_costs(
    step: float, mtbf: float, *, write: float, restart: float, held: float | None = None, interval: float | None = None,
    repair: float = 0.0, slower: float = 1.0,
) -> FailureCosts:
    """Return what failures cost a job whose steps take ``step`` seconds and that fails every ``mtbf`` seconds on average.

    ``write``: seconds until a checkpoint is complete. ``held``: of these, those in which no step is done (None: all; less if
    files are written beside training). ``restart``: seconds from a failure to the next step. ``interval``: seconds of training
    between checkpoints (None: the best). ``repair``: seconds until lost devices are back, in which the plan for what is left takes
    ``slower`` times as long a step. Raises ValueError for a number that cannot be.
    """
    held = write if held is None else held
    for name, value in (("step", step), ("mtbf", mtbf), ("interval", 1.0 if interval is None else interval)):
        if not value > 0:
            raise ValueError(f"failure_costs: {name} must be more than 0 seconds, got {value}")
    if not (0 <= held <= write and restart >= 0 and repair >= 0 and slower >= 1):
        raise ValueError(
            "failure_costs: needs 0 <= held <= write, restart >= 0, repair >= 0 and slower >= 1, got "
            f"{held}, {write}, {restart}, {repair}, {slower}"
        )
    interval = max(step, best_interval(held, mtbf)) if interval is None else interval
    again = restart + write - held  # what is done beside the writing is lost with a file that is not complete
    exponent = (again + interval + held) / mtbf
    useful = 0.0 if exponent > 700 else interval / mtbf / (exp(again / mtbf) * expm1((interval + held) / mtbf))
    pace = 1 - repair / (mtbf + repair) * (1 - 1 / slower)
    lost = again + (interval + held) / 2 + min(repair, mtbf) * (1 - 1 / slower)
    return FailureCosts(interval, max(1, round(interval / step)), lost, min(1.0, useful) * pace)


def best_interval(held: float, mtbf: float) -> float:
    """Return Daly's best time of training between checkpoints that hold it up for ``held`` seconds each, his equation 37; 0 if
    they cost nothing."""
    if held >= 2 * mtbf:
        return mtbf
    half = held / (2 * mtbf)
    return sqrt(2 * held * mtbf) * (1 + sqrt(half) / 3 + half / 9) - held
