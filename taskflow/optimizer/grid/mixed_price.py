"""Price and memory of plans on a machine of unequal devices: every group counts at its slowest device's speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from taskflow.machine import Cluster
from taskflow.mapper import HybridPlan
from taskflow.optimizer.grid.memory import PlanMemory, rank_memories
from taskflow.optimizer.grid.places import PlacesOf
from taskflow.optimizer.grid.price import PlanPrices, PricedKind, Replica
from taskflow.optimizer.grid.stages import PlanSums
from taskflow.optimizer.grid.weight_groups import WeightGroups


def of_replica(plan: HybridPlan, share: int, data: int) -> HybridPlan:
    """Return the plan that every replica would follow if all took ``share`` samples of a micro-batch on devices of one kind."""
    return replace(plan, shares=(), devices=(), micro_batch=share, data=data)


class MixedPrices(PlanPrices):
    """Prices of plans like those of equal devices. ``sums``: for each kind of device, the fastest first."""

    def __init__(self, sums: Sequence[PlanSums], places: PlacesOf, machine: Cluster) -> None:
        super().__init__(sums[0])
        self.machine, self.places = machine, places
        self._kinds = [self._kind, *map(PricedKind, sums[1:])]
        self._replicas: dict[HybridPlan, list[Replica]] = {}
        self._memories: dict[tuple[HybridPlan, int], list[tuple[int, int, PlanMemory, int]]] = {}

    def replicas(self, plan: HybridPlan) -> list[Replica]:
        """Return one replica of each set that have devices of the same kinds and memory, and as many samples."""
        if plan not in self._replicas:
            places = self.places.of(plan)
            data = len(places.groups[0])
            shares = plan.shares or (plan.micro_batch or 1,) * data
            self._replicas[plan] = [
                Replica(j, of_replica(plan, share, data), tuple(self._kinds[kinds[j]] for kinds in places.kinds),
                        tuple(memory[j] for memory in places.memory))
                for same in places.classes for share, j in {shares[j]: j for j in reversed(same)}.items()
            ]  # fmt: skip
        return self._replicas[plan]

    def memories(self, plan: HybridPlan, micro_batches: int) -> list[tuple[int, int, PlanMemory, int]]:
        """Return, for the groups that differ: replica, rank, the memory that a device needs, and the bytes that the smallest
        device has."""
        if (plan, micro_batches) not in self._memories:
            self._memories[plan, micro_batches] = [
                (one.number, rank, need, one.memory[rank]) for one in self.replicas(plan)
                for rank, need in enumerate(rank_memories(one.kinds[0].sums, one.plan, micro_batches))
            ]
        return self._memories[plan, micro_batches]

    def _devices(self, plan: HybridPlan, rank: int) -> Sequence[int]:
        return tuple(p for group in self.places.of(plan).groups[rank] for p in group)

    def _groups_of(self, plan: HybridPlan, rank: int) -> WeightGroups:
        """The groups of a rank's devices."""
        key = self._devices(plan, rank), plan.tensor, plan.context, plan.experts
        if key not in self._groups:
            self._groups[key] = WeightGroups(self.machine, key[0], plan)
        return self._groups[key]

    def _updates(self, plan: HybridPlan, rank: int) -> float:
        return min(self._kinds[kind].updates for kind in self.places.of(plan).kinds[rank])

    def _travels(self, plan: HybridPlan, replica: int, nbytes: float) -> float:
        """Seconds of the slowest message of ``nbytes`` from a rank of a replica to the next."""
        groups = [rank[replica] for rank in self.places.of(plan).groups]
        routes = [self.machine.route(here[0], there[0]) for here, there in zip(groups, groups[1:])]
        return max(
            sum(link.latency_seconds for link in route) + nbytes / min(link.bytes_per_second for link in route) for route in routes
        )
