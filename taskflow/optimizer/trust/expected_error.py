"""Trust: the measured steps that are like a given plan's, and the error to expect of its prediction."""

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
from taskflow.optimizer.trust.groups import GROUPS, MeasuredGroup
from taskflow.tasks.lower import gradient_flow, runs_again
from taskflow.wording import listed, milliseconds

NEAREST = 10
"""How many of a user's own runs the errors to expect are taken from."""

LEFT_OUT = 1
"""How many of these, if there are so many, are left out at either end."""

LEAST = 0.1
"""No prediction is expected to be nearer, to either side: repeated runs of one job differ by 5 % and more."""

OTHER = 0.05
"""If none of the measured steps ran in the same program, each end is further away by so much. With it 75 to 100 % of a group's
steps are in the range that the other groups give (benchmarks/error_ranges.py)."""

FEW, UNSURE = 3, 0.35
"""If fewer steps were measured, or none of a network with experts, or none of devices that share sequences, each end is further
away by so much (a factor of 1.4)."""

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
    """Expected error of a prediction. ``low`` and ``high``: the range of seconds to expect, given the predicted ones; None if no
    measured step is similar. ``floor``: seconds that no step takes less than (`product_seconds`). ``basis``: what the range is
    from, in words. ``groups``: the groups of measured steps it is from, and their distances; ``runs``: the user's own runs that it
    is from, and theirs. Both have the nearest first."""

    low: float | None
    high: float | None
    floor: float = 0.0
    basis: str = ""
    groups: tuple[tuple[MeasuredGroup, float], ...] = ()
    runs: tuple[tuple[MeasuredStep, float], ...] = ()

    @property
    def far(self) -> bool:
        """True if no measured step is similar to this one."""
        return self.low is None or self.high is None

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return "trust: far from any measured plan"
        return f"trust: {milliseconds(self.low)} to {milliseconds(self.high)} ms are likely, {self.basis}"

    def as_json(self) -> dict[str, object]:
        """Return it as a JSON value."""
        return {
            "text": str(self), "far": self.far, "own": bool(self.runs),
            "low_seconds": self.low, "high_seconds": self.high, "floor_seconds": self.floor,
            "groups": [
                {"source": one.source, "program": one.program, "device": one.device, "reach": one.reach, "steps": one.steps,
                 "low": exp(one.low), "high": exp(one.high), "distance": distance} for one, distance in self.groups
            ],
            "nearest": [
                {"what": str(one), "source": one.source, "measured_seconds": one.seconds, "predicted_seconds": one.predicted,
                 "distance": distance} for one, distance in self.runs[:3]
            ],
        }  # fmt: skip


def trust(
    graph: OperatorGraph, strategy: Strategy, machine: Machine, seconds: float, runs: Sequence[MeasuredStep] = ()
) -> Trust | None:
    """Return what to expect of a step that is predicted to take ``seconds``, from the user's own ``runs`` on such devices and in
    the same program if some are near enough, else the package's groups. None without such runs for networks that do not read
    words or are not trained whole, and for devices whose driving program is not known."""
    devices = {p.device.kind: p.device for p in machine.processors}
    programs = [device.program.name for device in devices.values() if device.program is not None]
    plan = features(graph, strategy, machine)
    own = [run for run in runs if run.device in devices and run.program in (programs or [""])]
    if any(plan.distance(run.features) <= FAR for run in own):
        return expected_by_runs(plan, seconds, own, product_seconds(graph, strategy, machine))
    if not programs or not plan.words or plan.trained < 1:
        return None
    known = [group for group in GROUPS if group.device in devices]
    return expected(plan, seconds, known, programs, product_seconds(graph, strategy, machine))


def expected(
    plan: Features, seconds: float, known: Sequence[MeasuredGroup], programs: Sequence[str] = (), floor: float = 0.0
) -> Trust:
    """Return the same from a plan's features, the groups of measured steps to compare it with, and seconds that no step takes less
    than. Groups count whose plans have the same on several nodes and are near enough; if one of the ``programs`` ran several of
    their steps, its groups alone. The range goes from the lowest of their ranges to the highest, so it is as lopsided as errors
    are."""
    near = sorted(
        ((one, distance) for one in known if one.reach == plan.reach and (distance := one.distance(plan)) <= FAR),
        key=lambda pair: pair[1],
    )
    own = [pair for pair in near if any(of.startswith(pair[0].program) for of in programs)]
    alone = sum(one.steps for one, _ in own) >= FEW
    near = own if alone else near
    if not near:
        return Trust(None, None, floor)
    steps = sum(one.steps for one, _ in near)
    more = (0.0 if alone else OTHER) + UNSURE * ((steps < FEW) + plan.experts + plan.context)
    wider = 1 + near[0][1] / 10
    low = min(min(one.low for one, _ in near) - more, -LEAST) * wider
    high = max(max(one.high for one, _ in near) + more, LEAST) * wider
    return Trust(
        max(seconds * exp(low), min(floor, seconds)), seconds * exp(high), floor, _basis([one for one, _ in near], plan),
        tuple(near),
    )


def _basis(groups: Sequence[MeasuredGroup], plan: Features) -> str:
    """Whose steps a range is from, and what of the plan none of them has."""
    steps = sum(one.steps for one in groups)
    several = "s" if steps > 1 else ""
    programs, devices = listed(sorted({one.program for one in groups})), listed(sorted({one.device for one in groups}))
    lacks = [what for has, what in ((plan.experts, "experts"), (plan.context, "shared sequences")) if has]
    return f"by {steps} measured step{several} of {programs} on {devices}" + (f", none with {' or '.join(lacks)}" if lacks else "")


def expected_by_runs(plan: Features, seconds: float, runs: Sequence[MeasuredStep], floor: float = 0.0) -> Trust:
    """Return the same from the user's own runs, of which one at least is near enough: from the lowest to the highest error of the
    nearest ones, and `OWN_BEYOND`. What all of them are off by in the same direction so moves the interval."""
    by_distance = sorted(((run, plan.distance(run.features)) for run in runs), key=lambda pair: pair[1])
    near = [pair for pair in by_distance if pair[1] <= FAR][:NEAREST]
    errors, out = sorted(log(run.seconds / run.predicted) for run, _ in near), LEFT_OUT if len(near) == NEAREST else 0
    beyond = OWN_BEYOND / sqrt(len(errors)) * (1 + near[0][1] / 10)
    low, high = seconds * exp(errors[out] - beyond), seconds * exp(errors[-1 - out] + beyond)
    one, many = near[0][0], "your run" if len(near) == 1 else f"{len(near)} of your runs"
    basis = f"by {many}; most like {one}: {milliseconds(one.seconds)} ms, predicted {one.predicted / one.seconds:.3g} of measured"
    return Trust(max(low, min(floor, seconds)), max(high, floor), floor, basis, runs=tuple(near))


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
