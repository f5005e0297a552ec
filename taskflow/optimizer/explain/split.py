"""split_gain: what it gains, or would gain, that the parts of a micro-batch take turns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from taskflow.mapper import HybridParallel, map_graph, plan_of
from taskflow.optimizer.evaluate import Evaluator, TooManyTasksError
from taskflow.wording import milliseconds

WORTH = 1.01  # times as long: what gains less is not said of a plan that is not split


@dataclass(frozen=True, slots=True)
class SplitGain:
    """Seconds of a step whose micro-batches are split into ``parts``, and of one with whole micro-batches. ``now``: whether the
    plan is the first."""

    now: bool
    parts: int
    split_seconds: float
    whole_seconds: float

    @property
    def gain(self) -> float:
        """Factor by which whole micro-batches take longer."""
        return self.whole_seconds / self.split_seconds if self.split_seconds > 0 else 1.0

    def as_json(self) -> dict[str, Any]:
        """Return it as a JSON value, with units in the keys."""
        return {
            "now": self.now, "parts": self.parts, "split_iteration_seconds": self.split_seconds,
            "whole_iteration_seconds": self.whole_seconds, "gain": self.gain,
        }

    def __str__(self) -> str:
        if self.now:
            return f"Without split={self.parts} a step would take {milliseconds(self.whole_seconds)} ms ({self.gain - 1:+.1%})."
        return (
            f"With split={self.parts} a step would take {milliseconds(self.split_seconds)} ms ({1 / self.gain - 1:+.1%}): "
            "exchanges of one part of a micro-batch would go on while another is computed."
        )


def split_gain(evaluator: Evaluator) -> SplitGain | None:
    """Return the gain for the evaluator's current strategy, at which the evaluator is again afterwards. None if that is no plan in
    notation, if it cannot be split, or if it would gain nothing."""
    strategy, seconds = evaluator.strategy, evaluator.seconds
    plan = plan_of(evaluator.graph, strategy)
    if plan is None:
        return None
    other = replace(plan, split=1 if plan.split > 1 else 2)
    if not other.may_split:
        return None
    try:
        other_seconds = evaluator.seconds_of(map_graph(HybridParallel(other), evaluator.graph, evaluator.machine))
    except (ValueError, TooManyTasksError):  # it cannot be cut so
        return None
    if plan.split > 1:
        return SplitGain(True, plan.split, seconds, other_seconds)
    found = SplitGain(False, other.split, other_seconds, seconds)
    return found if found.gain > WORTH else None
