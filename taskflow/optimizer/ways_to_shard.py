"""Which of the usual ways to shard training fit a machine, with how many samples at a time, and from how many devices on.

Of each way that may fit by the closed form (`memory_of_plan`), `MemoryCheck` plans a step. Other numbers of samples need as much
more or less than this step as the closed form says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf

from taskflow.graph import OperatorGraph
from taskflow.machine import Cluster
from taskflow.mapper import HybridParallel, HybridPlan, map_graph, multiplies, node_size, samples
from taskflow.optimizer.budget import BudgetExhausted
from taskflow.optimizer.evaluate import make_evaluator
from taskflow.optimizer.grid import (
    MARGIN,
    GraphTables,
    PlanMemory,
    PlanSums,
    expert_degrees,
    memory_of_plan,
    takes_micro_batches,
)
from taskflow.optimizer.memory_check import MemoryCheck
from taskflow.rules import UpdateRule

ACCUMULATED = 2
"""Micro-batches of a step, at least: then gradients stay, as PyTorch keeps them until the update."""
CLOSE = 0.05  # how far the closed form may be off where a step has mended it, or no weights are gathered (0.7 % of Llama 8B's)
MOST_DEVICES = 4096  # of the clusters that are looked at
MOST_SAMPLES = 1 << 16  # at a time that are looked for
MOST_TENSOR = 8  # devices that share a layer
WAYS = (("DDP", HybridPlan()), ("ZeRO-1", HybridPlan(zero=1)), ("ZeRO-2", HybridPlan(zero=2)),
        ("FSDP (ZeRO-3)", HybridPlan(zero=3)), ("FSDP, recomputed", HybridPlan(zero=3, recompute="full")))  # fmt: skip
DEALING = (("experts, ZeRO-1", HybridPlan(zero=1)), ("experts, FSDP", HybridPlan(zero=3)),
           ("experts, FSDP, recomputed", HybridPlan(zero=3, recompute="full")))  # fmt: skip
SHARING = (("tensor, ZeRO-1", HybridPlan(zero=1)), ("tensor, recomputed", HybridPlan(zero=1, recompute="full")))


@dataclass(frozen=True, slots=True)
class WayToShard:
    """A way to shard training. ``plan``: with one sample at a time. ``memory``: its bytes by the closed form; ``nbytes``: in all,
    as `MemoryCheck` has it, or close to that (not ``planned``). ``samples``: the most that a replica takes at a time, 0 if not one
    fits; ``known``: by a step of about as many that was planned. ``devices``: the fewest on which one sample fits;
    None if no cluster that was looked at has enough. ``accumulates``: whether a replica may take more samples than it takes at a
    time; not if batch normalisation, or a loss, takes all of the batch together."""

    name: str
    plan: HybridPlan
    memory: PlanMemory
    nbytes: float
    planned: bool
    samples: int
    known: bool
    devices: int | None
    accumulates: bool

    @property
    def most(self) -> HybridPlan:
        """Return the plan with as many samples at a time as fit."""
        return replace(self.plan, micro_batch=max(1, self.samples))


def ways_to_shard(
    graph: OperatorGraph, machine: Cluster, rule: UpdateRule | None, check: MemoryCheck, over: Callable[[], bool] = lambda: False
) -> Iterator[WayToShard]:
    """Yield DDP, ZeRO's stages and tensor parallelism within a node, those that a network can be cut for. Once ``over`` answers
    true, no more steps are planned, and the one that is goes no further. The graph's batch should be several samples a device, as
    steps have `ACCUMULATED` micro-batches. Raises ValueError if it is a single sample."""
    count = len(machine.processors)
    shared = [t for t in (2, 4, MOST_TENSOR) if t <= node_size(machine) and count % t == 0] if multiplies(graph) else []
    plans = list(WAYS)
    plans += [
        (name, replace(plan, tensor=t)) for name, plan in SHARING for t in (shared if plan.recompute == "none" else shared[-1:])
    ]
    yield from _ways(graph, machine, rule, check, over, plans)


def ways_to_deal(
    graph: OperatorGraph, machine: Cluster, rule: UpdateRule | None, check: MemoryCheck, over: Callable[[], bool] = lambda: False
) -> Iterator[WayToShard]:
    """Yield the same of ways that deal experts with places to as many devices of a node as may be."""
    within = [e for e in expert_degrees(graph) if 1 < e <= node_size(machine) and len(machine.processors) % e == 0]
    if within:
        yield from _ways(graph, machine, rule, check, over, [(name, replace(plan, experts=within[-1])) for name, plan in DEALING])


def _ways(
    graph: OperatorGraph, machine: Cluster, rule: UpdateRule | None, check: MemoryCheck, over: Callable[[], bool],
    plans: Sequence[tuple[str, HybridPlan]],
) -> Iterator[WayToShard]:
    sums, count = PlanSums(GraphTables(graph, machine), rule), len(machine.processors)
    if samples(graph) < 2:
        raise ValueError("what a sample needs is told by batches of at least 2 samples, got 1; give --batch 2 or more")
    accumulates = takes_micro_batches(graph)
    for name, kind in plans:
        if kind.recompute not in sums.levels:  # without layers nothing is computed again
            continue
        plan = replace(kind, data=count // kind.tensor, micro_batch=1)
        try:
            yield _Way(sums, machine, check, plan, over, accumulates).found(name)
        except ValueError:
            if plan.tensor * plan.experts == 1:
                raise
            # no layer can be shared by so many


class _Way:
    """One way. ``_planned``: bytes of the steps that were planned, by samples at a time. ``_accumulates``: whether a step may have
    several micro-batches; where it cannot, gradients are added to one that has the whole batch at a time."""

    def __init__(
        self, sums: PlanSums, machine: Cluster, check: MemoryCheck, plan: HybridPlan, over: Callable[[], bool], accumulates: bool
    ) -> None:
        self._sums, self._machine, self._check, self._plan, self._over = sums, machine, check, plan, over
        self._accumulates = accumulates
        self._have = min(processor.memory_bytes for processor in machine.processors)
        self._planned: dict[int, float] = {}
        self._whole = plan.zero < 2  # weights and gradients lie there all the time
        each = samples(sums.graph) // (plan.data or 1)
        powers = (1 << k for k in range(each.bit_length()))
        self._sizes = [size for size in powers if each % (size * ACCUMULATED) == 0] if accumulates else [each][:each]

    def found(self, name: str) -> WayToShard:
        if self._closed().nbytes <= (1 + (CLOSE if self._whole else MARGIN)) * self._have:
            self._plan_steps()
        most = self._samples()
        known = any(most <= 2 * size for size in self._planned)
        planned = self._accumulates and 1 in self._planned
        return WayToShard(
            name, self._plan, self._closed(), self._needs(1), planned, most, known, self._devices(), self._accumulates
        )

    def _closed(self, size: int = 1, data: int | None = None) -> PlanMemory:
        plan = replace(self._plan, micro_batch=size, data=data or self._plan.data)
        return memory_of_plan(self._sums, plan, ACCUMULATED)

    def _plan_steps(self) -> None:
        """Plan a step with about as many samples at a time as fit, or the closest that does not; none of a batch that is too small
        for `ACCUMULATED` micro-batches, since gradients would not stay in it."""
        may_fit = [size for size in self._sizes if self._closed(size).nbytes <= self._have]
        for size in reversed(may_fit or self._sizes[:1]):
            if self._step(size) <= self._have or self._over():
                return

    def _step(self, size: int) -> float:
        if size not in self._planned and not self._over():
            strategy = map_graph(HybridParallel(replace(self._plan, micro_batch=size)), self._sums.graph, self._machine)
            with suppress(BudgetExhausted), self._check.interruptible(self._until):
                more = 0.0 if self._accumulates else self._closed(size).gradients
                self._planned[size] = max(self._check.peaks(strategy)[0]) + more
        return self._planned.get(size, inf)

    def _until(self) -> None:
        if self._over():
            raise BudgetExhausted

    def _needs(self, size: int) -> float:
        """Bytes with so many samples at a time: those of the planned step that is nearest, and what the closed form adds. (A line
        through two planned steps may be one of small steps, whose peak is elsewhere, such as in the update.) A whole batch may be
        large: a smaller one has its share of what the closed form is off by."""
        closed = self._of_closed(size)
        near = min(self._planned, key=lambda known: (abs(known - size), known), default=None)
        if near is None:
            return closed
        more = self._planned[near] - self._closed(near).nbytes
        return closed + (more if self._accumulates else more * min(1.0, size / near))

    def _of_closed(self, size: int) -> float:
        """Bytes with so many samples at a time by the closed form; beyond the graph's batch on a line."""
        top = max([2, *self._sizes])
        if size <= top:
            return self._closed(size).nbytes
        high, low = self._closed(top).nbytes, self._closed(top // 2).nbytes
        return high + (size - top) * (high - low) / (top - top // 2)

    def _samples(self) -> int:
        """The most samples at a time that fit."""
        low, high = 0, MOST_SAMPLES
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._needs(middle) <= self._have else (low, middle - 1)
        return low

    def _devices(self) -> int | None:
        """The fewest devices, of powers of two, on which one sample fits: planned there if the graph's batch is large enough."""
        t, more = self._plan.tensor, self._needs(1) - self._closed().nbytes
        least = t * self._plan.experts
        for count in (least << k for k in range((MOST_DEVICES // least).bit_length())):
            plan, closed = replace(self._plan, data=count // t), self._closed(1, count // t).nbytes
            if closed + more > self._have:
                continue
            try:
                machine = self._machine.prefix(count)
            except ValueError:  # the machine has no more
                return None
            graph = self._sums.graph
            surely = (self._planned or self._whole) and closed + more <= (1 - CLOSE) * self._have
            if surely or count <= len(self._machine.processors) or self._over():
                return count
            if not self._accumulates or samples(graph) % (count // t * ACCUMULATED):
                return count
            check = MemoryCheck(make_evaluator(graph, machine, rule=self._sums.rule))
            more = max(check.peaks(map_graph(HybridParallel(plan), graph, machine))[0]) - closed
            if closed + more <= self._have:
                return count
        return None
