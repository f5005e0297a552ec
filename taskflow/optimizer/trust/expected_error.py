"""Trust: the measured plans nearest to a given one, and the error to expect of its prediction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log

from taskflow.graph import OperatorGraph
from taskflow.machine import Machine
from taskflow.mapper import Strategy
from taskflow.optimizer.trust.features import Features, features
from taskflow.optimizer.trust.measured import MEASURED, MeasuredPlan

NEAREST = 10
"""How many measured plans the error to expect is taken from: that of the third worst of them, so that a prediction is expected to
be within it nearly nine times of ten. benchmarks/measured_elsewhere.py counts how often it is."""

LEAST = 0.05
"""No prediction is expected to be nearer than the noise between two runs of one job on two clusters."""

FAR = 4.0
"""Doublings beyond which nothing measured is like a plan. The interval grows by a tenth for each doubling on the way."""


@dataclass(frozen=True, slots=True)
class Trust:
    """Expected error of a prediction. ``nearest``: measured plans and their distances, the nearest first; empty if nothing is
    measured on such devices. ``low`` and ``high``: the range of seconds to expect, given the predicted ones; None if nothing is
    known."""

    nearest: tuple[tuple[MeasuredPlan, float], ...]
    low: float | None
    high: float | None

    @property
    def far(self) -> bool:
        """True if no measured plan is similar to this one."""
        return not self.nearest or self.nearest[0][1] > FAR

    def __str__(self) -> str:
        if self.far or self.low is None or self.high is None:
            return "trust: far from any measured plan"
        one, _ = self.nearest[0]
        return (
            f"trust: {self.low * 1e3:.4g} to {self.high * 1e3:.4g} ms are likely; nearest measured: {one}, "
            f"{one.seconds * 1e3:.4g} ms, predicted {one.predicted * 1e3:.4g}"
        )

    def as_json(self) -> dict[str, object]:
        """Return it as a JSON value."""
        return {
            "said": str(self), "far": self.far, "low_seconds": self.low, "high_seconds": self.high,
            "nearest": [
                {"what": str(one), "source": one.source, "measured_seconds": one.seconds, "predicted_seconds": one.predicted,
                 "distance": distance} for one, distance in self.nearest[:3]
            ],
        }  # fmt: skip


def trust(graph: OperatorGraph, strategy: Strategy, machine: Machine, seconds: float) -> Trust | None:
    """Return what to expect of a step that is predicted to take ``seconds``; None for networks that do not read words, and for
    devices whose driving program is not known."""
    devices = {p.device.kind: p.device for p in machine.processors}
    if all(device.program is None for device in devices.values()) or (plan := features(graph, strategy, machine)) is None:
        return None
    known = [one for one in MEASURED if one.device in devices]
    return expected(plan, seconds, known) if known else Trust((), None, None)


def expected(plan: Features, seconds: float, known: Sequence[MeasuredPlan]) -> Trust:
    """Return the same from a plan's features and the measured plans to compare it with."""
    near = sorted(((one, plan.distance(one.features)) for one in known), key=lambda pair: pair[1])[:NEAREST]
    errors = sorted(abs(log(one.seconds / one.predicted)) for one, _ in near)
    wide = max(LEAST, errors[-3] if len(errors) > 2 else 1.0) * (1 + near[0][1] / 10)
    return Trust(tuple(near), seconds * exp(-wide), seconds * exp(wide))
