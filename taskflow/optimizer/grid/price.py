"""Price of a plan: a step's seconds, composed from the sums of its stages' operators in less than a millisecond.

The cost model prices each operator and the library each collective, with the functions that evaluators use. The price leaves
out messages that wait for a link, and the part of gradient synchronisation after the last backward pass. It ranks plans; the
first ones are simulated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from taskflow.machine import collective
from taskflow.mapper import HybridPlan
from taskflow.optimizer.grid.memory import bytes_in_program
from taskflow.optimizer.grid.node_table import Array
from taskflow.optimizer.grid.passes import long_passes_seconds
from taskflow.optimizer.grid.sharded import ShardedPasses
from taskflow.optimizer.grid.stages import PlanSums
from taskflow.optimizer.grid.weight_groups import WeightGroups

NEARLY_FULL = 0.9
"""Part of a device's memory from which on a program's allocator may have to give memory back. Up to a full one its steps count as
up to `TrainingProgram.full_times` as long."""


class PlanPrices:
    """Prices of plans with ``data`` and ``micro_batch`` set, cached."""

    def __init__(self, sums: PlanSums) -> None:
        self.sums, self.machine = sums, sums.tables.machine
        device = sums.tables.device
        self.message = device.program.message_seconds if device.program else 0.0
        self.updates = device.memory_rate / device.update_times
        self.starts = device.program.collective_seconds if device.program else 0.0
        self.full_times = device.program.full_times if device.program else 1.0
        self.memory_bytes = device.memory_bytes
        self._nodes = len({processor.node for processor in self.machine.processors})
        self._known: dict[HybridPlan, float] = {}
        self.sharded = ShardedPasses(sums)
        self._groups: dict[object, WeightGroups] = {}
        self._shared: dict[tuple[int, int, int], bool] = {}
        self._routes: dict[int, tuple[float, float]] = {}

    def __call__(self, plan: HybridPlan, micro_batches: int) -> float:
        """Return the seconds of a step."""
        self.price([(plan, micro_batches)])
        return self._known[plan]

    def price(self, plans: Sequence[tuple[HybridPlan, int]]) -> list[float]:
        """Return the seconds of a step for each plan with its number of micro-batches; pipelines of one form are computed
        together."""
        forms: dict[object, list[tuple[HybridPlan, int]]] = {}
        for plan, count in plans:
            if plan not in self._known:
                forms.setdefault((plan.schedule, plan.pipeline, plan.virtual, count), []).append((plan, count))
        for some in forms.values():
            passes = [self._passes(plan, count) for plan, count in some]
            ahead = np.array([one[0] for one in passes]).T
            back = np.array([one[1] for one in passes]).T
            message = np.array([one[2] for one in passes])
            behind = np.array([one[3] for one in passes]).T
            first, count = some[0]
            total = long_passes_seconds(
                list(ahead), list(back), count, message, ranks=first.pipeline, schedule=first.schedule,
                behind=list(behind) if behind.any() else (),
            )
            for i, (plan, _) in enumerate(some):
                sooner = begun_sooner(self.sums, plan, count)
                seconds = float(total[i]) - sooner + self._after(plan, ahead[:, i], back[:, i])
                self._known[plan] = seconds * self._crowded(plan, count)
        return [self._known[plan] for plan, _ in plans]

    def _passes(self, plan: HybridPlan, count: int) -> tuple[Array, Array, float, Array]:
        """Seconds of a pass of each stage, forward and backward, and of a message to the next rank. Last, for how long the message
        of each stage's backward pass waits: for the reductions of its last gradients, which are ready when it is."""
        if plan.split > 1:
            return self._in_turns(plan, count)
        found, weights = self.sums.sums(plan), self.sums.weights(plan)
        stages = plan.pipeline * plan.virtual
        waits, behind = np.zeros(stages), np.zeros(stages)
        if plan.pipeline > 1:
            at = np.array([plan.schedule.rank(stage, plan.pipeline) for stage in range(stages)])
            crosses = (at[1:] != at[:-1]).astype(float)
            waits = (np.append(0.0, crosses) + np.append(crosses, 0.0)) * self.message
        # The host runs ahead while a collective goes on, as it does through long kernels.
        starts = found.members * (self.starts if plan.pipeline > 1 and self._nodes > 1 else 0.0)
        ahead = np.maximum(found.seconds[:, 0] + found.sums[:, 0], found.seconds[:, 1] + starts[:, 0])
        back = np.maximum(found.seconds[:, 2] + found.sums[:, 1], found.seconds[:, 3] + starts[:, 1])
        if stages == count == 1:  # no passes: each task by itself
            ahead, back = found.seconds[:, 4] + found.sums[:, 0], found.seconds[:, 5] + found.sums[:, 1] + found.hidden
        if weights.each_pass:
            groups = self._groups_of(plan)
            alone = stages == count == 1
            each = np.array([self.sharded.stage(plan, stage, alone, groups, starts[stage]) for stage in range(stages)])
            ahead, back = each[:, 0], each[:, 1]
            shared = [self._shares_links(plan, plan.schedule.rank(stage, plan.pipeline)) for stage in range(stages)]
            behind = each[:, 2] * shared
        travels = 0.0
        if plan.pipeline > 1:
            travels = self._travels(plan, found.crossing)
        return ahead + waits, back + waits, travels, behind

    def _travels(self, plan: HybridPlan, nbytes: float) -> float:
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

    def _in_turns(self, plan: HybridPlan, count: int) -> tuple[Array, Array, float, Array]:
        """The same of a plan whose micro-batches are split. The parts' kernels are smaller. As much of their exchanges is hidden as
        they compute meanwhile, except of what is computed again."""
        parts, plan = plan.split, replace(plan, split=1)
        ahead, back, travels, behind = self._passes(plan, count)
        if plan.micro_batch is None:  # unequal shares
            return ahead, back, travels, behind
        part = replace(plan, micro_batch=plan.micro_batch // parts)
        whole, each = (self.sums.sums(of) for of in (plan, part))
        once = self.sums.sums(replace(part, recompute_layers=(), recompute="none"))
        found = []
        for seconds, device, host, sums in ((ahead, 0, 1, 0), (back, 2, 3, 1)):
            more = parts * (each.seconds[:, device] + each.sums[:, sums]) - whole.seconds[:, device] - whole.sums[:, sums]
            hidden = parts * np.minimum(once.seconds[:, device], once.sums[:, sums])
            found.append(np.maximum(seconds + more - hidden, parts * each.seconds[:, [device, host]].max(axis=1)))
        return found[0], found[1], travels, behind

    def _after(self, plan: HybridPlan, ahead: Array, back: Array) -> float:
        """Seconds of synchronisation and update on the slowest rank that no backward pass hides, and of late gathers that no
        forward pass hides: later stages' while those before compute."""
        weights = self.sums.weights(plan)
        layers = max(1.0, self.sums.layers / (plan.pipeline * plan.virtual))
        groups = self._groups_of(plan)
        slowest, hides = 0.0, plan.sums_beside
        for rank in range(plan.pipeline):
            own = plan.schedule.stages(rank, plan.pipeline, plan.virtual)
            until = float(ahead[: rank + 1].sum()) if plan.gathers_late else None
            sent = groups.after((one for stage in own for one in weights.layers[stage]), float(back[rank]) * hides, until, layers)
            slowest = max(slowest, sent + float(weights.updated[own].sum()) / self.updates)
        return slowest

    def _crowded(self, plan: HybridPlan, count: int) -> float:
        """As how many times as long a step counts since it nearly fills the memory."""
        if self.full_times == 1:
            return 1.0
        filled = bytes_in_program(self.sums, plan, count) / self.memory_bytes
        return 1 + (self.full_times - 1) * min(1.0, max(0.0, (filled - NEARLY_FULL) / (1 - NEARLY_FULL)))

    def _shares_links(self, plan: HybridPlan, rank: int) -> bool:
        """Whether a rank's message to the one before takes a link that reductions of its gradients take."""
        if rank == 0:
            return False
        size = plan.tensor * plan.context * (plan.data or 1)
        key = size, plan.tensor, rank
        if key not in self._shared:
            first, count = rank * size, len(self.machine.processors)
            group = tuple(range(first, first + size, plan.tensor))
            taken = () if len(group) < 2 else collective(self.machine, group).resources
            self._shared[key] = not {count + link.number for link in self.machine.route(first, first - size)}.isdisjoint(taken)
        return self._shared[key]

    def _groups_of(self, plan: HybridPlan) -> WeightGroups:
        """The groups of the first stage's devices, which stand for those of the others."""
        key = plan.tensor, plan.context, plan.experts, plan.data
        if key not in self._groups:
            devices = range(plan.tensor * plan.context * (plan.data or 1))
            self._groups[key] = WeightGroups(self.machine, devices, plan)
        return self._groups[key]


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
