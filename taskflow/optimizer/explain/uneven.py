"""uneven_pieces: how much pieces of uneven size gain on devices of unequal speed, compared with even ones."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

from taskflow.mapper import Strategy
from taskflow.optimizer.evaluate import Evaluator, where_time_goes
from taskflow.optimizer.space import Weigher, even, shares_by_speed, unequal, units_of, whole_shares

ROUNDS = 3  # in which speeds are worked out again at the new sizes


@dataclass(frozen=True, slots=True)
class DeviceKind:
    """Devices of one kind: their number, and the fraction of the step's arithmetic that all of them do, 0 to 1."""

    kind: str
    devices: int
    share: float


@dataclass(frozen=True, slots=True)
class UnevenGain:
    """Seconds of a step with the plan's cuts in uneven pieces and in even ones. ``now``: whether the plan has uneven pieces; if
    not, ``uneven_seconds`` are with pieces in proportion to the devices' speeds. ``kinds``: the work of each kind of device
    with uneven pieces."""

    now: bool
    uneven_seconds: float
    even_seconds: float
    kinds: tuple[DeviceKind, ...]

    @property
    def gain(self) -> float:
        """Factor by which even pieces take longer."""
        return self.even_seconds / self.uneven_seconds if self.uneven_seconds > 0 else 1.0

    def as_json(self) -> dict[str, Any]:
        """Return it as a JSON value, with units in the keys."""
        return {
            "now": self.now, "uneven_iteration_seconds": self.uneven_seconds, "even_iteration_seconds": self.even_seconds,
            "gain": self.gain,
            "kinds": [{"kind": k.kind, "devices": k.devices, "share_of_arithmetic": k.share} for k in self.kinds],
        }

    def __str__(self) -> str:
        does = ", ".join(f"{k.devices} x {k.kind} {k.share:.0%}" for k in self.kinds)
        uneven, flat = (f"{seconds * 1e3:.4g} ms" for seconds in (self.uneven_seconds, self.even_seconds))
        if self.now:
            return (
                f"Uneven pieces ({does} of the arithmetic): with the same cuts in even pieces a step takes {flat}, "
                f"{self.gain:.2f} times as long."
            )
        return (
            f"Even pieces on devices of unequal speed: with pieces in proportion to it ({does} of the arithmetic) a step takes "
            f"{uneven}, " + (f"{self.gain:.2f} times as fast." if self.gain > 1 else "no less.")
        )


def uneven_pieces(evaluator: Evaluator) -> UnevenGain | None:
    """Return the gain of uneven pieces for the evaluator's current strategy, at which the evaluator is again afterwards. None
    if all devices are alike, if the plan has micro-batches, stages or the like, and if no cut can be made uneven."""
    strategy, seconds = evaluator.strategy, evaluator.seconds
    if strategy.ordered or not unequal(evaluator.machine):
        return None
    flat = even(strategy)
    try:
        if flat is not strategy:
            return UnevenGain(True, seconds, evaluator.set(flat), _kinds(evaluator, strategy))
        weighed, least = _weighed(evaluator, strategy)
        return None if weighed is strategy else UnevenGain(False, least, seconds, _kinds(evaluator, weighed))
    finally:
        evaluator.set(strategy)


def _weighed(evaluator: Evaluator, strategy: Strategy) -> tuple[Strategy, float]:
    """The strategy with pieces by speed, and its seconds; itself where no piece changes."""
    machine, graph = evaluator.machine, evaluator.graph
    units = units_of(graph, len(machine.processors))
    shares = whole_shares([1.0] * len(machine.processors), units)
    best, least = strategy, inf
    for _ in range(ROUNDS):
        shares = shares_by_speed(machine, where_time_goes(evaluator, path=False).processor_seconds, shares)
        plan = Weigher(graph, shares).strategy(strategy)
        if plan.configs == strategy.configs or (taken := evaluator.set(plan)) >= least:
            break
        best, least = plan, taken
    return best, least


def _kinds(evaluator: Evaluator, strategy: Strategy) -> tuple[DeviceKind, ...]:
    done = [0.0] * len(evaluator.machine.processors)
    for node in evaluator.graph:
        for rect, processor in strategy[node.name].pieces(node):
            done[processor] += node.operator.flops(node.specs, rect)
    kinds: dict[str, tuple[int, float]] = {}
    for one in evaluator.machine.processors:
        count, flops = kinds.get(one.kind, (0, 0.0))
        kinds[one.kind] = count + 1, flops + done[one.number]
    total = sum(done) or 1.0
    return tuple(DeviceKind(kind, count, flops / total) for kind, (count, flops) in kinds.items())
