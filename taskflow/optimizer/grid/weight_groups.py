"""WeightGroups: seconds of collectives of weights and gradients among the devices of a stage that hold them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

from taskflow.machine import Around, Cluster, PartOfMachine, collective, ring_bytes
from taskflow.mapper import HybridPlan

MOST_BESIDE = 8  # groups of replicas that are looked at
BULK = 1 << 44  # bytes beside which latencies do not matter


class WeightGroups:
    """Groups of a stage's devices, in the order of replicas and within these of t. Every ``step``th of them holds the same
    weights: with 1 all do, with t those of a tensor-parallel part, with t x c x e those of an expert."""

    def __init__(self, machine: Cluster | PartOfMachine, devices: Sequence[int], plan: HybridPlan) -> None:
        self.machine, self.devices = machine, devices
        self.tensor, self.experts, self.inner = plan.tensor, plan.experts, plan.tensor * plan.context
        self.expert_step = self.inner * plan.experts
        self._around: dict[int, tuple[Around, int]] = {}
        self._meets: dict[int, bool] = {}

    def step(self, experts: bool) -> int:
        """Return the step of experts' weights, or of others."""
        return self.expert_step if experts else self.tensor

    def members(self, step: int) -> int:
        """Return how many devices hold the same weights."""
        return len(self.devices[::step])

    def seconds(self, step: int, nbytes: float, halves: int) -> float:
        """Return the seconds of an all-reduce (2) of an array, or of one of its halves (1)."""
        members = self.members(step)
        if members < 2 or not nbytes:
            return 0.0
        if step not in self._around:
            self._around[step] = collective(self.machine, tuple(self.devices[::step])), self._beside(step)
        around, beside = self._around[step]
        return around.seconds(ring_bytes(members, int(nbytes), halves), halves) * beside

    def seconds_in_bulk(self, step: int, nbytes: float, halves: int) -> float:
        """Return the seconds by which an array adds to a collective that takes many at once: without latencies."""
        return (self.seconds(step, 2 * BULK, halves) - self.seconds(step, BULK, halves)) / BULK * nbytes

    def after(
        self, layers: Iterable[tuple[tuple[int, int, int, bool], int]], back: float, ahead: float | None, stage_layers: float
    ) -> float:
        """Return the seconds of all sums of gradients and all gathers of new weights of a stage's layers or buckets
        (`StageWeights.layers`), a collective for each, that the last backward pass of ``back`` seconds does not hide. Those of all
        but the first go on meanwhile, once there is a gradient; ``stage_layers``: how many numbered layers there are. ``ahead``:
        seconds of the first forward passes, which hide gathers of all but the first layer if these are late
        (`Sync.late_gather`); None if they follow the update."""
        sums, gathers, number = 0.0, 0.0, 0
        for (reduced, scattered, gathered, experts), count in layers:
            step = self.step(experts)
            sums += count * (self.seconds(step, reduced, 2) + self.seconds(step, scattered, 1))
            gathers, number = gathers + count * self.seconds(step, gathered, 1), number + count
        after_one = 1 - 1 / max(1.0, min(number, stage_layers))

        def left(total: float, hiding: float) -> float:
            return total - min(total * (1 - 1 / max(1, number)), hiding * after_one)

        return left(sums + gathers, back) if ahead is None else left(sums, back) + left(gathers, ahead)

    def meets(self, step: int) -> bool:
        """Return whether collectives of weights that every ``step``th device holds use links that those of a replica's devices, or
        of those that deal experts, use."""
        if step not in self._meets:
            own, weights = self.devices[: self.expert_step], self.devices[::step]
            self._meets[step] = len(own) > 1 and len(weights) > 1 and not set(
                collective(self.machine, tuple(own)).resources
            ).isdisjoint(collective(self.machine, tuple(weights)).resources)
        return self._meets[step]

    @cached_property
    def far(self) -> bool:
        """Whether devices of one replica, or of those that deal experts, are on several nodes."""
        return len({self.machine.processors[p].node for p in self.devices[: self.expert_step]}) > 1

    def _beside(self, step: int) -> int:
        """Number of groups that send over the network card that most of them use."""
        processors = self.machine.processors
        groups = [self.devices[m::step] for m in range(min(self.tensor, MOST_BESIDE))]
        if step < self.tensor or len({processors[p].node for p in groups[0]}) == 1:
            return 1
        ways = [
            {min(self.machine.way_out(p), key=lambda link: link.bytes_per_second).number for p in group} for group in groups
        ]
        return max(sum(link in way for way in ways) for link in set().union(*ways))
