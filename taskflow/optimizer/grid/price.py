"""Price of a plan: a step's seconds, composed from the sums of its stages' operators in less than a millisecond.

The cost model prices each operator and the library each collective, with the functions that evaluators use. The price leaves
out messages that wait for a link, and the part of gradient synchronisation after the last backward pass. It ranks plans; the
first ones are simulated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from taskflow.machine import collective
from taskflow.mapper import HybridPlan
from taskflow.optimizer.grid.memory import bytes_in_program
from taskflow.optimizer.grid.node_table import Array
from taskflow.optimizer.grid.passes import long_passes_seconds
from taskflow.optimizer.grid.sharded import ShardedPasses
from taskflow.optimizer.grid.stages import PlanSums, StageSums
from taskflow.optimizer.grid.weight_groups import WeightGroups

NEARLY_FULL = 0.9
"""Part of a device's memory from which on a program's allocator may have to give memory back. Up to a full one its steps count as
up to `TrainingProgram.full_times` as long."""


class PricedKind:
    """A kind of devices, with the sums of the operators on it, and figures of the program that drives it."""

    def __init__(self, sums: PlanSums) -> None:
        device = sums.tables.device
        program = device.program
        self.sums, self.sharded = sums, ShardedPasses(sums)
        self.message = program.message_seconds if program else 0.0
        self.starts = program.collective_seconds if program else 0.0
        self.full_times = program.full_times if program else 1.0
        self.updates = device.memory_rate / device.update_times


@dataclass(frozen=True, slots=True)
class Replica:
    """The replica of a plan with this ``number``, for all that do the same. ``plan``: what the plan would be if all replicas did.
    By rank of the pipeline, the ``kinds`` of its devices, and in ``memory`` the bytes of the smallest one."""

    number: int
    plan: HybridPlan
    kinds: tuple[PricedKind, ...]
    memory: tuple[int, ...]

    def ranks(self) -> list[int]:
        """Return the rank of each stage."""
        return [self.plan.schedule.rank(stage, self.plan.pipeline) for stage in range(self.plan.pipeline * self.plan.virtual)]

    def sums(self, plan: HybridPlan) -> StageSums:
        """Return the sums of a plan with the same stages, of each stage those of its devices' kind."""
        of = {kind: kind.sums.sums(plan) for kind in set(self.kinds)}
        if len(of) == 1:
            return of[self.kinds[0]]
        found = [of[self.kinds[rank]] for rank in self.ranks()]
        arrays = (field.name for field in fields(StageSums) if field.name != "crossing")
        return StageSums(
            **{name: np.array([getattr(one, name)[stage] for stage, one in enumerate(found)]) for name in arrays},
            crossing=max(one.crossing for one in found),
        )


class PlanPrices:
    """Prices of plans with ``data`` and ``micro_batch`` set, cached, on equal devices."""

    def __init__(self, sums: PlanSums) -> None:
        self.sums, self.machine = sums, sums.tables.machine
        self._kind = PricedKind(sums)
        self._nodes = len({processor.node for processor in self.machine.processors})
        self._known: dict[HybridPlan, float] = {}
        self._groups: dict[object, WeightGroups] = {}
        self._shared: dict[object, bool] = {}
        self._routes: dict[int, tuple[float, float]] = {}

    def __call__(self, plan: HybridPlan, micro_batches: int) -> float:
        """Return the seconds of a step."""
        self.price([(plan, micro_batches)])
        return self._known[plan]

    def price(self, plans: Sequence[tuple[HybridPlan, int]]) -> list[float]:
        """Return the seconds of a step for each plan with its number of micro-batches: its slowest replica's, then
        synchronisation. Pipelines of one form are computed together."""
        forms: dict[tuple[object, ...], list[tuple[HybridPlan, Replica, int]]] = {}
        for plan, count in plans:
            if plan not in self._known:
                form = forms.setdefault((plan.schedule, plan.pipeline, plan.virtual, count), [])
                form += [(plan, one, count) for one in self.replicas(plan)]
        for rows in forms.values():
            passes = [self._passes(plan, one, count) for plan, one, count in rows]
            ahead = np.array([one[0] for one in passes]).T
            back = np.array([one[1] for one in passes]).T
            message = np.array([one[2] for one in passes])
            behind = np.array([one[3] for one in passes]).T
            first, _, count = rows[0]
            total = long_passes_seconds(
                list(ahead), list(back), count, message, ranks=first.pipeline, schedule=first.schedule,
                behind=list(behind) if behind.any() else (),
            )
            slowest: dict[HybridPlan, int] = {}
            for i, (plan, _, _) in enumerate(rows):
                if plan not in slowest or total[i] > total[slowest[plan]]:
                    slowest[plan] = i
            for plan, i in slowest.items():
                one = rows[i][1]
                sooner = begun_sooner(one.kinds[one.ranks()[-1]].sums, one.plan, count)
                seconds = float(total[i]) - sooner + self._after(plan, one, ahead[:, i], back[:, i])
                self._known[plan] = seconds * self._crowded(plan, count)
        return [self._known[plan] for plan, _ in plans]

    # ---- which devices -----------------------------------------------------------------------------------------------
    def replicas(self, plan: HybridPlan) -> list[Replica]:
        """Return one replica of each set that do the same."""
        memory = self.sums.tables.device.memory_bytes
        return [Replica(0, plan, (self._kind,) * plan.pipeline, (memory,) * plan.pipeline)]

    def _devices(self, plan: HybridPlan, rank: int) -> Sequence[int]:
        """The devices of a rank, those of a replica one after the other."""
        size = plan.tensor * plan.context * (plan.data or 1)
        return range(rank * size, (rank + 1) * size)

    def _groups_of(self, plan: HybridPlan, rank: int) -> WeightGroups:
        """The groups of a rank's devices. Of equal devices those of the first rank stand for the others'."""
        key = plan.tensor, plan.context, plan.experts, plan.data
        if key not in self._groups:
            self._groups[key] = WeightGroups(self.machine, self._devices(plan, 0), plan)
        return self._groups[key]

    def _updates(self, plan: HybridPlan, rank: int) -> float:
        """Bytes that updates pass over in a second on a rank's slowest device."""
        return self._kind.updates

    def _travels(self, plan: HybridPlan, replica: int, nbytes: float) -> float:
        """Seconds until all of a stage's devices on a node have a message of ``nbytes`` each, which may take the same links."""
        size = plan.tensor * plan.context * (plan.data or 1)
        if size not in self._routes:
            own, *others = self.machine.processors[:size]
            together = [one.number for one in others if one.node == own.node]
            routes = Counter(link.number for number in (0, *together) for link in self.machine.route(number, number + size))
            first = self.machine.route(0, size)
            slowest = min(link.bytes_per_second / routes[link.number] for link in first)
            self._routes[size] = sum(link.latency_seconds for link in first), slowest
        latency, slowest = self._routes[size]
        return latency + nbytes / slowest

    def _shares_links(self, plan: HybridPlan, rank: int) -> bool:
        """Whether a rank's message to the one before takes a link that reductions of its gradients take."""
        if rank == 0:
            return False
        own, before = self._devices(plan, rank), self._devices(plan, rank - 1)
        key = own, before[0], plan.tensor
        if key not in self._shared:
            group, count = tuple(own[:: plan.tensor]), len(self.machine.processors)
            taken = () if len(group) < 2 else collective(self.machine, group).resources
            self._shared[key] = not {count + link.number for link in self.machine.route(own[0], before[0])}.isdisjoint(taken)
        return self._shared[key]

    # ---- seconds -----------------------------------------------------------------------------------------------------
    def _passes(self, plan: HybridPlan, one: Replica, count: int) -> tuple[Array, Array, float, Array]:
        """Seconds of a pass of each of a replica's stages, forward and backward, and of a message to the next rank. Last, for how
        long the message of each stage's backward pass waits: for the reductions of its last gradients, which are ready when it
        is."""
        if one.plan.split > 1:
            return self._in_turns(plan, one, count)
        found, ranks = one.sums(one.plan), one.ranks()
        stages, kinds = len(ranks), [one.kinds[rank] for rank in ranks]
        waits, behind, starts = np.zeros(stages), np.zeros(stages), np.zeros((stages, 2))
        if plan.pipeline > 1:
            crosses = np.array([a != b for a, b in zip(ranks, ranks[1:])], float)
            waits = (np.append(0.0, crosses) + np.append(crosses, 0.0)) * np.array([kind.message for kind in kinds])
            if self._nodes > 1:  # the host runs ahead while a collective goes on, as it does through long kernels
                starts = found.members * np.array([[kind.starts] for kind in kinds])
        ahead = np.maximum(found.seconds[:, 0] + found.sums[:, 0], found.seconds[:, 1] + starts[:, 0])
        back = np.maximum(found.seconds[:, 2] + found.sums[:, 1], found.seconds[:, 3] + starts[:, 1])
        alone = stages == count == 1  # no passes: each task by itself
        if alone:
            ahead, back = found.seconds[:, 4] + found.sums[:, 0], found.seconds[:, 5] + found.sums[:, 1] + found.hidden
        if kinds[0].sums.weights(one.plan).each_pass:
            each = np.array([
                kind.sharded.stage(one.plan, stage, alone, self._groups_of(plan, rank), starts[stage])
                for stage, (rank, kind) in enumerate(zip(ranks, kinds))
            ])  # fmt: skip
            ahead, back = each[:, 0], each[:, 1]
            behind = each[:, 2] * [self._shares_links(plan, rank) for rank in ranks]
        travels = self._travels(plan, one.number, found.crossing) if plan.pipeline > 1 else 0.0
        return ahead + waits, back + waits, travels, behind

    def _in_turns(self, plan: HybridPlan, one: Replica, count: int) -> tuple[Array, Array, float, Array]:
        """The same of a plan whose micro-batches are split. The parts' kernels are smaller. As much of their exchanges is hidden as
        they compute meanwhile, except of what is computed again."""
        parts, whole = one.plan.split, replace(one.plan, split=1)
        ahead, back, travels, behind = self._passes(plan, replace(one, plan=whole), count)
        part = replace(whole, micro_batch=(whole.micro_batch or 1) // parts)
        all_of_it, each = one.sums(whole), one.sums(part)
        once = one.sums(replace(part, recompute_layers=(), recompute="none"))
        found = []
        for seconds, device, host, sums in ((ahead, 0, 1, 0), (back, 2, 3, 1)):
            more = parts * (each.seconds[:, device] + each.sums[:, sums]) - all_of_it.seconds[:, device] - all_of_it.sums[:, sums]
            hidden = parts * np.minimum(once.seconds[:, device], once.sums[:, sums])
            found.append(np.maximum(seconds + more - hidden, parts * each.seconds[:, [device, host]].max(axis=1)))
        return found[0], found[1], travels, behind

    def _after(self, plan: HybridPlan, one: Replica, ahead: Array, back: Array) -> float:
        """Seconds of synchronisation and update on the slowest rank that no backward pass hides, and of late gathers that no
        forward pass hides: later stages' while those before compute."""
        weights = one.kinds[0].sums.weights(one.plan)
        layers = max(1.0, self.sums.layers / (plan.pipeline * plan.virtual))
        slowest, hides = 0.0, plan.sums_beside
        for rank in range(plan.pipeline):
            own = plan.schedule.stages(rank, plan.pipeline, plan.virtual)
            until = float(ahead[: rank + 1].sum()) if plan.gathers_late else None
            groups = self._groups_of(plan, rank)
            if groups.far and hides and plan.zero == 1:
                sent = self._in_turn(one, own, groups, until, layers)
            else:
                each = (one for stage in own for one in weights.layers[stage])
                sent = groups.after(each, float(back[rank]) * hides, until, layers)
            slowest = max(slowest, sent + float(weights.updated[own].sum()) / self._updates(plan, rank))
        return slowest

    def _in_turn(
        self, one: Replica, own: Sequence[int], groups: WeightGroups, ahead: float | None, stage_layers: float
    ) -> float:
        """Seconds by which sums of gradients make the last backward pass of a rank's stages longer, and of what follows it, under
        ZeRO's stage 1 where its exchanges go between nodes, as these do. What a layer adds is complete when its next exchange
        begins, and one of the two waits. Gathers of new weights hide while neither is sent. ``ahead`` and ``stage_layers``: as of
        `WeightGroups.after`."""
        plan, kind = replace(one.plan, split=1), one.kinds[one.ranks()[own[0]]]
        (_, usual, _), (_, longer, after) = (kind.sharded.stage(plan, own[0], False, groups, last=last) for last in (False, True))
        layers = [layer for stage in own for layer in kind.sums.weights(plan).layers[stage]]
        sums = sum(count * groups.seconds(groups.step(experts), sent, 1) for (_, sent, _, experts), count in layers)
        exchanged = one.sums(plan).sums
        free = max(0.0, longer - sums - float(exchanged[own[0], 1]))
        if ahead is not None:
            ahead = max(0.0, ahead - float(exchanged[: own[0] + 1, 0].sum()))
        gathered = [((0, 0, nbytes, experts), count) for (_, _, nbytes, experts), count in layers]
        return max(0.0, longer - usual) + after + groups.after(gathered, free, ahead, stage_layers)

    def _crowded(self, plan: HybridPlan, count: int) -> float:
        """As how many times as long a step counts since it nearly fills the memory of some device."""
        most = 1.0
        for one in self.replicas(plan):
            times = max(kind.full_times for kind in one.kinds)
            if times > 1:
                filled = bytes_in_program(one.kinds[0].sums, one.plan, count) / min(one.memory)
                most = max(most, 1 + (times - 1) * min(1.0, max(0.0, (filled - NEARLY_FULL) / (1 - NEARLY_FULL))))
        return most


def begun_sooner(sums: PlanSums, plan: HybridPlan, micro_batches: int) -> float:
    """Return the seconds that the first micro-batch's backward pass is shorter on a pipeline's last rank, which begins with it:
    gradients of weights are written there, and not added to."""
    if plan.zero > 1 or plan.zero_layers or plan.split > 1:
        return 0.0
    found = sums.sums(plan)
    ahead, host, alone = map(float, sums.adding(plan))
    if plan.pipeline * plan.virtual == micro_batches == 1:
        return alone
    device, starts, sent = float(found.seconds[-1, 2]), float(found.seconds[-1, 3]), float(found.sums[-1, 1])
    return max(device + sent, starts) - max(device - ahead + sent, starts - host)
