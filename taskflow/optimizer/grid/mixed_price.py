"""Price and memory of plans on a machine of unequal devices, in closed form: every group counts at its slowest device's speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from taskflow.machine import Cluster
from taskflow.mapper import HybridPlan
from taskflow.optimizer.grid.memory import PlanMemory, rank_memories
from taskflow.optimizer.grid.node_table import Array
from taskflow.optimizer.grid.passes import long_passes_seconds
from taskflow.optimizer.grid.places import Places, PlacesOf
from taskflow.optimizer.grid.price import begun_sooner
from taskflow.optimizer.grid.sharded import ShardedPasses
from taskflow.optimizer.grid.stages import PlanSums
from taskflow.optimizer.grid.weight_groups import WeightGroups


def of_replica(plan: HybridPlan, share: int, data: int) -> HybridPlan:
    """Return the plan that every replica would follow if all took ``share`` samples of a micro-batch on devices of one kind."""
    return replace(plan, shares=(), devices=(), micro_batch=share, data=data)


def unlike(plan: HybridPlan, places: Places) -> list[tuple[int, int]]:
    """Return one replica of each set that do the same, and its samples of a micro-batch."""
    shares = plan.shares or (plan.micro_batch or 1,) * len(places.groups[0])
    return [(of[share], share) for same in places.classes for of in [{shares[j]: j for j in reversed(same)}] for share in of]


class MixedPrices:
    """Prices of plans, like `PlanPrices`. ``sums``: for each kind of device, the fastest first."""

    def __init__(self, sums: Sequence[PlanSums], places: PlacesOf, machine: Cluster) -> None:
        self.sums, self.places, self.machine = sums, places, machine
        devices = [one.tables.device for one in sums]
        self.message = [device.program.message_seconds if device.program else 0.0 for device in devices]
        self.updates = [device.memory_rate / device.update_times for device in devices]
        self._known: dict[HybridPlan, float] = {}
        self._memories: dict[tuple[HybridPlan, int], list[tuple[int, int, PlanMemory, int]]] = {}
        self.sharded = [ShardedPasses(one) for one in sums]
        self._groups: dict[object, WeightGroups] = {}

    def __call__(self, plan: HybridPlan, micro_batches: int) -> float:
        """Return the seconds of a step."""
        self.price([(plan, micro_batches)])
        return self._known[plan]

    def price(self, plans: Sequence[tuple[HybridPlan, int]]) -> list[float]:
        """Return the seconds of a step for each plan with its number of micro-batches: its slowest replica's, then
        synchronisation."""
        forms: dict[object, list[tuple[HybridPlan, int, int]]] = {}
        for plan, count in plans:
            if plan not in self._known:
                form = forms.setdefault((plan.schedule, plan.pipeline, plan.virtual, count), [])
                form += [(plan, j, share) for j, share in unlike(plan, self.places.of(plan))]
        for key, rows in forms.items():
            count = key[3]  # type: ignore[index]
            passes = [self._passes(*row, count) for row in rows]
            ahead = np.array([one[0] for one in passes]).T
            back = np.array([one[1] for one in passes]).T
            message = np.array([one[2] for one in passes])
            first = rows[0][0]
            total = long_passes_seconds(list(ahead), list(back), count, message, ranks=first.pipeline, schedule=first.schedule)
            slowest: dict[HybridPlan, int] = {}
            for i, (plan, _, _) in enumerate(rows):
                if plan not in slowest or total[i] > total[slowest[plan]]:
                    slowest[plan] = i
            for plan, i in slowest.items():
                _, j, share = rows[i]
                places = self.places.of(plan)
                last = plan.schedule.rank(plan.pipeline * plan.virtual - 1, plan.pipeline)
                one = of_replica(plan, share, len(places.groups[0]))
                sooner = begun_sooner(self.sums[places.kinds[last][j]], one, count)
                self._known[plan] = float(total[i]) - sooner + self._after(plan, ahead[:, i], back[:, i], share)
        return [self._known[plan] for plan, _ in plans]

    def memories(self, plan: HybridPlan, micro_batches: int) -> list[tuple[int, int, PlanMemory, int]]:
        """Return, for the groups that differ: replica, rank, the memory that a device needs, and the bytes that the smallest
        device has."""
        if (plan, micro_batches) in self._memories:
            return self._memories[plan, micro_batches]
        places = self.places.of(plan)
        found = self._memories[plan, micro_batches] = []
        for j, share in unlike(plan, places):
            one = of_replica(plan, share, len(places.groups[0]))
            needs = rank_memories(self.sums[places.kinds[0][j]], one, micro_batches)
            found += [(j, rank, need, places.memory[rank][j]) for rank, need in enumerate(needs)]
        return found

    def _passes(self, plan: HybridPlan, replica: int, share: int, micro_batches: int) -> tuple[Array, Array, float]:
        """Seconds of a pass of each stage of a replica, forward and backward, and of a message to the next rank."""
        places = self.places.of(plan)
        one = of_replica(plan, share, len(places.groups[0]))
        stages = plan.pipeline * plan.virtual
        rank = [plan.schedule.rank(stage, plan.pipeline) for stage in range(stages)]
        kinds = [places.kinds[r][replica] for r in rank]
        found = {kind: self.sums[kind].sums(one) for kind in set(kinds)}
        seconds = np.array([found[kind].seconds[stage] for stage, kind in enumerate(kinds)])
        sums = np.array([found[kind].sums[stage] for stage, kind in enumerate(kinds)])
        ahead = np.maximum(seconds[:, 0] + sums[:, 0], seconds[:, 1])
        back = np.maximum(seconds[:, 2] + sums[:, 1], seconds[:, 3])
        if stages == micro_batches == 1:  # no passes: each task by itself
            hidden = np.array([found[kind].hidden[stage] for stage, kind in enumerate(kinds)])
            ahead, back = seconds[:, 4] + sums[:, 0], seconds[:, 5] + sums[:, 1] + hidden
        each = self.sums[kinds[0]].weights(one)
        if each.each_pass:
            alone = stages == micro_batches == 1
            for stage, (r, kind) in enumerate(zip(rank, kinds)):
                ahead[stage], back[stage], _ = self.sharded[kind].stage(one, stage, alone, self._groups_of(plan, r))
        if plan.pipeline == 1:
            return ahead, back, 0.0
        crosses = np.array([a != b for a, b in zip(rank, rank[1:])], float)
        waits = (np.append(0.0, crosses) + np.append(crosses, 0.0)) * np.array([self.message[kind] for kind in kinds])
        crossing = max(sums_of.crossing for sums_of in found.values())
        travels = 0.0
        for here, there in zip(places.groups, places.groups[1:]):
            route = self.machine.route(here[replica][0], there[replica][0])
            slow = min(link.bytes_per_second for link in route)
            travels = max(travels, sum(link.latency_seconds for link in route) + crossing / slow)
        return ahead + waits, back + waits, travels

    def _after(self, plan: HybridPlan, ahead: Array, back: Array, share: int) -> float:
        """Seconds of synchronisation and update on the slowest rank that no backward pass hides (`PlanPrices`)."""
        places = self.places.of(plan)
        one = of_replica(plan, share, len(places.groups[0]))
        weights = self.sums[places.kinds[0][0]].weights(one)
        layers = max(1.0, self.sums[0].layers / (plan.pipeline * plan.virtual))
        slowest, hides = 0.0, plan.sums_beside
        for rank in range(plan.pipeline):
            own = plan.schedule.stages(rank, plan.pipeline, plan.virtual)
            groups = self._groups_of(plan, rank)
            until = float(ahead[: rank + 1].sum()) if plan.gathers_late else None
            sent = groups.after((one for stage in own for one in weights.layers[stage]), float(back[rank]) * hides, until, layers)
            update = float(weights.updated[own].sum()) / min(self.updates[kind] for kind in places.kinds[rank])
            slowest = max(slowest, sent + update)
        return slowest

    def _groups_of(self, plan: HybridPlan, rank: int) -> WeightGroups:
        """The groups of a rank's devices."""
        devices = tuple(p for group in self.places.of(plan).groups[rank] for p in group)
        key = devices, plan.tensor, plan.context, plan.experts
        if key not in self._groups:
            self._groups[key] = WeightGroups(self.machine, devices, plan)
        return self._groups[key]
