"""Trust: the measured plans nearest to a given one, and the error to expect of its prediction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from typing import Protocol

from taskflow.graph import OperatorGraph
from taskflow.machine import Machine
from taskflow.mapper import Strategy
from taskflow.operators.operator import computes_in
from taskflow.optimizer.cost import product_flops
from taskflow.optimizer.trust.features import Features, features
from taskflow.optimizer.trust.measured import MEASURED, MeasuredPlan
from taskflow.tasks.lower import gradient_flow, runs_again
from taskflow.wording import milliseconds

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

OWN_BEYOND = 0.25
"""Each end is so much (as a logarithm) further away than the errors of the user's own runs, divided by the root of how many these
are. With it 78 to 99 % of measured steps are in range, with 1 to 20 others of their cluster as runs (benchmarks/own_runs.py)."""


class MeasuredStep(Protocol):
    """A plan whose step was measured, of the package's table or of a user's runs."""

    @property
    def seconds(self) -> float: ...

    @property
    def predicted(self) -> float: ...

    @property
    def source(self) -> str: ...

    @property
    def device(self) -> str: ...

    @property
    def program(self) -> str: ...

    @property
    def features(self) -> Features: ...


@dataclass(frozen=True, slots=True)
class Trust:
    """Expected error of a prediction. ``nearest``: measured plans and their distances, the nearest first; empty if nothing is
    measured on such devices. ``low`` and ``high``: the range of seconds to expect, given the predicted ones; None if no measured
    plan is similar. ``floor``: seconds that no step takes less than (`product_seconds`). ``own``: whether the nearest are the
    user's runs."""

    nearest: tuple[tuple[MeasuredStep, float], ...]
    low: float | None
    high: float | None
    floor: float = 0.0
    own: bool = False

    @property
    def far(self) -> bool:
        """True if no measured plan is similar to this one."""
        return self.low is None or self.high is None

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return "trust: far from any measured plan"
        one, _ = self.nearest[0]
        text = f"trust: {milliseconds(self.low)} to {milliseconds(self.high)} ms are likely"
        if self.own:
            runs = "your run" if len(self.nearest) == 1 else f"{len(self.nearest)} of your runs"
            return (
                f"{text}, by {runs}; most like {one}: {milliseconds(one.seconds)} ms, predicted {one.predicted / one.seconds:.3g} "
                "of measured"
            )
        return f"{text}; nearest measured: {one}, {milliseconds(one.seconds)} ms, predicted {milliseconds(one.predicted)}"

    def as_json(self) -> dict[str, object]:
        """Return it as a JSON value."""
        return {
            "text": str(self), "far": self.far, "own": self.own,
            "low_seconds": self.low, "high_seconds": self.high, "floor_seconds": self.floor,
            "nearest": [
                {"what": str(one), "source": one.source, "measured_seconds": one.seconds, "predicted_seconds": one.predicted,
                 "distance": distance} for one, distance in self.nearest[:3]
            ],
        }  # fmt: skip


def trust(
    graph: OperatorGraph, strategy: Strategy, machine: Machine, seconds: float, runs: Sequence[MeasuredStep] = ()
) -> Trust | None:
    """Return what to expect of a step that is predicted to take ``seconds``, from the user's own ``runs`` on such devices and in
    the same program if some are near enough, else from the package's table. None without such runs for networks that do not read
    words or are not trained whole, and for devices whose driving program is not known."""
    devices = {p.device.kind: p.device for p in machine.processors}
    programs = [device.program.name for device in devices.values() if device.program is not None]
    plan = features(graph, strategy, machine)
    own = [run for run in runs if run.device in devices and run.program in (programs or [""])]
    if any(plan.distance(run.features) <= FAR for run in own):
        return expected_by_runs(plan, seconds, own, product_seconds(graph, strategy, machine))
    if not programs or not plan.words or plan.trained < 1:
        return None
    known = [one for one in MEASURED if one.device in devices]
    return expected(plan, seconds, known, product_seconds(graph, strategy, machine), programs)


def expected(
    plan: Features, seconds: float, known: Sequence[MeasuredPlan], floor: float = 0.0, programs: Sequence[str] = ()
) -> Trust:
    """Return the same from a plan's features, the measured plans to compare it with, and seconds that no step takes less than.
    Those that one of the ``programs`` ran come first, and if there are several near enough, alone. The interval goes from the
    second lowest to the second highest error of the nearest plans, so it is as lopsided as these are."""
    near = _by_distance(plan, known)
    if not near or near[0][1] > FAR:
        return Trust(tuple(near[:NEAREST]), None, None, floor)
    own = [pair for pair in near if pair[1] <= FAR and any(of.startswith(pair[0].program) for of in programs)]
    near = (own if len(own) >= FEW else [*own, *(pair for pair in near if pair not in own)])[:NEAREST]
    errors, out = _errors(near)
    more = UNSURE if len(errors) < FEW else 0.0
    wider = 1 + near[0][1] / 10
    low, high = min(errors[out] - more, -LEAST) * wider, max(errors[-1 - out] + more, LEAST) * wider
    return Trust(tuple(near), max(seconds * exp(low), min(floor, seconds)), seconds * exp(high), floor)


def expected_by_runs(plan: Features, seconds: float, runs: Sequence[MeasuredStep], floor: float = 0.0) -> Trust:
    """Return the same from the user's own runs, of which one at least is near enough: from the lowest to the highest error of the
    nearest ones, and `OWN_BEYOND`. What all of them are off by in the same direction so moves the interval."""
    near = [pair for pair in _by_distance(plan, runs) if pair[1] <= FAR][:NEAREST]
    errors, out = _errors(near)
    beyond = OWN_BEYOND / sqrt(len(errors)) * (1 + near[0][1] / 10)
    low, high = seconds * exp(errors[out] - beyond), seconds * exp(errors[-1 - out] + beyond)
    return Trust(tuple(near), max(low, min(floor, seconds)), max(high, floor), floor, own=True)


def _by_distance(plan: Features, known: Sequence[MeasuredStep]) -> list[tuple[MeasuredStep, float]]:
    return sorted(((one, plan.distance(one.features)) for one in known), key=lambda pair: pair[1])


def _errors(near: Sequence[tuple[MeasuredStep, float]]) -> tuple[list[float], int]:
    """The errors of measured plans as logarithms, sorted, and how many are left out at either end."""
    return sorted(log(one.seconds / one.predicted) for one, _ in near), LEFT_OUT if len(near) == NEAREST else 0


def product_seconds(graph: OperatorGraph, strategy: Strategy, machine: Machine) -> float:
    """Return the seconds of all products of a training step, forward, backward and computed again, shared evenly among the devices
    that a strategy uses, each as fast as the fastest of them at its peak."""
    active, needs, _ = gradient_flow(graph)
    again = runs_again(graph, active, strategy.again)
    places = {id(config.processors): config.processors for config in strategy.configs.values()}  # layers are alike
    used = set().union(*places.values())
    devices = list({p.device.kind: p.device for p in machine.processors if p.number in used}.values())
    known: dict[object, tuple[float, float]] = {}
    total = 0.0
    for node in graph:
        wanted = tuple((tensor.node, tensor.index) in needs for tensor in node.inputs)
        key = node.operator, node.specs, wanted
        if key not in known:
            rate = max(device.product_rate(computes_in(node.operator, node.specs)) for device in devices)
            ahead, back = (product_flops(node.operator, node.specs, node.space, way, wanted) / rate for way in (False, True))
            known[key] = ahead, back
        ahead, back = known[key]
        total += ahead * (1 + again[node.number]) + back * (node.number in active)
    return total / len(used)
