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
from taskflow.optimizer.trust.product_seconds import product_seconds

NEAREST = 10
"""How many measured plans the errors to expect are taken from."""

LEFT_OUT = 1
"""How many of these, if there are so many, are left out at either end: a prediction is expected to be within the others' errors
eight times of ten. benchmarks/measured_elsewhere.py counts how often it is."""

LEAST = 0.1
"""No prediction is expected to be nearer, to either side: repeated runs of one job differ by 5 % and more, and with less not even
eight in ten measured steps were in the range that others of their kind gave."""

FEW, UNSURE = 3, 0.35
"""If fewer measured plans are known, each end is further away by so much (a factor of 1.4)."""

FAR = 4.0
"""Doublings beyond which nothing measured is like a plan. The interval grows by a tenth for each doubling on the way."""


@dataclass(frozen=True, slots=True)
class Trust:
    """Expected error of a prediction. ``nearest``: measured plans and their distances, the nearest first; empty if nothing is
    measured on such devices. ``low`` and ``high``: the range of seconds to expect, given the predicted ones; None if no measured
    plan is similar. ``floor``: seconds that no step takes less than (`product_seconds`)."""

    nearest: tuple[tuple[MeasuredPlan, float], ...]
    low: float | None
    high: float | None
    floor: float = 0.0

    @property
    def far(self) -> bool:
        """True if no measured plan is similar to this one."""
        return self.low is None or self.high is None

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return "trust: far from any measured plan"
        one, _ = self.nearest[0]
        return (
            f"trust: {self.low * 1e3:.4g} to {self.high * 1e3:.4g} ms are likely; nearest measured: {one}, "
            f"{one.seconds * 1e3:.4g} ms, predicted {one.predicted * 1e3:.4g}"
        )

    def as_json(self) -> dict[str, object]:
        """Return it as a JSON value."""
        return {
            "said": str(self), "far": self.far, "low_seconds": self.low, "high_seconds": self.high, "floor_seconds": self.floor,
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
    programs = [device.program.name for device in devices.values() if device.program is not None]
    return expected(plan, seconds, known, product_seconds(graph, strategy, machine), programs)


def expected(
    plan: Features, seconds: float, known: Sequence[MeasuredPlan], floor: float = 0.0, programs: Sequence[str] = ()
) -> Trust:
    """Return the same from a plan's features, the measured plans to compare it with, and seconds that no step takes less than.
    Those that one of the ``programs`` ran come first, and if there are several near enough, alone. The interval goes from the
    second lowest to the second highest error of the nearest plans, so it is as lopsided as these are."""
    near = sorted(((one, plan.distance(one.features)) for one in known), key=lambda pair: pair[1])
    if not near or near[0][1] > FAR:
        return Trust(tuple(near[:NEAREST]), None, None, floor)
    own = [pair for pair in near if pair[1] <= FAR and any(of.startswith(pair[0].program) for of in programs)]
    near = (own if len(own) >= FEW else [*own, *(pair for pair in near if pair not in own)])[:NEAREST]
    errors = sorted(log(one.seconds / one.predicted) for one, _ in near)
    out, more = LEFT_OUT if len(errors) == NEAREST else 0, UNSURE if len(errors) < FEW else 0.0
    wider = 1 + near[0][1] / 10
    low, high = min(errors[out] - more, -LEAST) * wider, max(errors[-1 - out] + more, LEAST) * wider
    return Trust(tuple(near), max(seconds * exp(low), min(floor, seconds)), seconds * exp(high), floor)
