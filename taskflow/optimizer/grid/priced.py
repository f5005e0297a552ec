"""Interface of a grid to a search, for any machine: plans with their prices, memory and neighbours."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import inf

from taskflow.graph import OperatorGraph
from taskflow.machine import Cluster, PartOfMachine
from taskflow.mapper import HybridPlan, PipelineSchedule, samples
from taskflow.optimizer.grid.memory import MARGIN, PlanMemory
from taskflow.optimizer.grid.price import PlanPrices
from taskflow.optimizer.grid.stages import PlanSums
from taskflow.rules import UpdateRule

PRICED = 256  # plans at a time, so that little of the time is taken beyond its end; more are hardly quicker to price
TOO_LARGE = 3.0  # times the memory: plans that need more do not come to fit by a few changes
ALIKE = 2  # plans of one t, c, p and e, with or without stage 3, that are simulated before others
NEARLY = 1.02  # times the seconds that are expected of the fastest: so near, prices do not tell which plan is faster


@dataclass(frozen=True, slots=True)
class PricedPlan:
    """A plan of the grid with its number of micro-batches, its price in seconds and the bytes that it needs in closed form."""

    plan: HybridPlan
    micro_batches: int
    seconds: float
    memory: PlanMemory


class AnyGrid(ABC):
    """Priced grid of a network on a machine, of the plans that a function ``takes``: a `PlanGrid` or, for unequal devices, a
    `MixedGrid`. ``fitting`` and ``refused``: the plans that fit in closed form, the fastest by price first, and those that do not
    (after `plans`). ``whole``: whether all plans have been looked at then. The local search uses its cache, too."""

    sums: PlanSums
    prices: PlanPrices

    def __init__(
        self, graph: OperatorGraph, machine: Cluster | PartOfMachine, rule: UpdateRule | None,
        takes: Callable[[HybridPlan], bool] | None,
    ) -> None:
        self.graph, self.machine, self.rule, self.batch = graph, machine, rule, samples(graph)
        self.takes = takes or (lambda plan: True)
        self.memory_bytes = min(processor.memory_bytes for processor in machine.processors)
        self.fitting: list[PricedPlan] = []
        self.refused: list[PricedPlan] = []
        self.whole = True

    def taken(self, plan: HybridPlan) -> HybridPlan | None:
        """Return the plan if the grid takes it, else the first under another schedule, or without loss parallelism, that it takes;
        None if there is none. A framework may have pipelines of few micro-batches not under 1F1B, and losses that need all
        scores."""
        if self.takes(plan):
            return plan
        schedules = [one for one in PipelineSchedule if one.chunks in (None, plan.virtual)] if plan.pipeline > 1 else []
        others = [plan] if plan.tensor == 1 else [plan, replace(plan, loss_parallel=False)]
        every = (replace(one, schedule=schedule) for one in others for schedule in dict.fromkeys((plan.schedule, *schedules)))
        return next(filter(self.takes, every), None)

    def all_taken(self, plans: Iterable[HybridPlan], but: HybridPlan) -> Iterator[HybridPlan]:
        """Yield what the grid takes of each of some plans, once, and not ``but``."""
        seen = {but}
        for one in plans:
            if (taken := self.taken(one)) is not None and taken not in seen:
                seen.add(taken)
                yield taken

    @abstractmethod
    def plans(self, over: Callable[[], bool] = lambda: False) -> tuple[list[PricedPlan], int]:
        """Return all plans that fit, the one with the best price first, and the number of all plans. Stops early once ``over``
        answers true."""

    @abstractmethod
    def usual(self, over: Callable[[], bool] = lambda: False) -> list[PricedPlan]:
        """Return plans that fit and that people often use (not `unusual`), soon priced, the best first; perhaps none."""

    @abstractmethod
    def fitted(self, over: Callable[[], bool], known: float) -> list[PricedPlan]:
        """Return plans with as much recomputed as memory requires, the cheapest first, that may be faster than ``known`` seconds;
        perhaps none."""

    @abstractmethod
    def refitted(self, one: PricedPlan, spare: Callable[[], Sequence[float]]) -> PricedPlan | None:
        """Return a simulated plan with all of the memory used of which it leaves ``spare`` bytes by processor; None if none is
        known that is better."""

    @abstractmethod
    def least(self, over: Callable[[], bool] = lambda: False) -> float:
        """Return seconds that no plan takes less than, with an order or without; 0 if they are not known, infinite if none fits.
        Once ``over`` answers true, what is known by then."""

    @property
    @abstractmethod
    def may_fit_unordered(self) -> bool:
        """False if no plan without an order fits the devices, however it is cut and placed."""

    @abstractmethod
    def memory(self, plan: HybridPlan, count: int) -> PlanMemory:
        """Return the memory that a device needs, in closed form, scaled to ``memory_bytes``. Raises ValueError if the network
        cannot be cut so."""

    @abstractmethod
    def neighbours(self, plan: HybridPlan) -> Iterator[HybridPlan]:
        """Yield the plans that differ in one choice."""

    @abstractmethod
    def quick_neighbours(self, plan: HybridPlan) -> Iterator[HybridPlan]:
        """Yield those of them that descents by price go to: they keep the degrees and treat all stages alike."""


def priced_plans(
    grid: AnyGrid, plans: Iterable[tuple[HybridPlan, int]], over: Callable[[], bool], huge: set[HybridPlan] | None = None
) -> tuple[list[PricedPlan], list[PricedPlan]]:
    """Return, of ``plans`` with their numbers of micro-batches, those that fit in closed form, the one with the best price first,
    and those that do not, without prices. Those that need far more than the memory even in smaller micro-batches, which came
    before, are left out; ``huge``: those that are known, to which others are added. Stops early once ``over`` answers true;
    `PRICED` are priced together."""
    priced: list[PricedPlan] = []
    huge = set() if huge is None else huge
    refused: list[PricedPlan] = []
    left = iter(plans)
    while some := list(islice(left, PRICED)):
        fitting: list[tuple[HybridPlan, int, PlanMemory]] = []
        for plan, count in some:
            if over():
                break
            if _surely_huge(plan, count, huge):
                huge.add(plan)
                continue
            try:
                memory = grid.memory(plan, count)
            except ValueError:  # the network cannot be cut so
                continue
            if memory.nbytes > TOO_LARGE * grid.memory_bytes:
                huge.add(plan)
            if memory.nbytes <= (1 + MARGIN) * grid.memory_bytes:
                fitting.append((plan, count, memory))
            else:
                refused.append(PricedPlan(plan, count, inf, memory))
        prices = grid.prices.price([(plan, count) for plan, count, _ in fitting])
        priced += [PricedPlan(plan, count, seconds, memory) for (plan, count, memory), seconds in zip(fitting, prices)]
        if over():
            break
    return by_price(priced), refused


def by_price(plans: Iterable[PricedPlan]) -> list[PricedPlan]:
    """Return plans in order, the one with the best price first."""
    return sorted(plans, key=lambda one: (one.seconds, one.memory.nbytes, str(one.plan)))


def soonest_first(plans: Sequence[PricedPlan], work: Callable[[PricedPlan], int]) -> list[PricedPlan]:
    """Return plans by price, but of those whose prices are nearly the same, the one that is simulated soonest first. ``work``: what
    simulating a plan takes (`PlanTrial.work`)."""
    left, found = by_price(plans), list[PricedPlan]()
    while left:
        near = bisect_right(left, NEARLY * left[0].seconds, key=lambda one: one.seconds)
        found += sorted(left[:near], key=lambda one: (work(one), one.seconds))
        left = left[near:]
    return found


def _surely_huge(plan: HybridPlan, count: int, huge: Collection[HybridPlan]) -> bool:
    """Whether a plan that needs no more is among those that need far too much: in smaller micro-batches (of several: of one no
    sums of gradients are kept), or with the state by shares."""
    size = plan.micro_batch or 1
    if not huge or plan.shares:
        return False
    smaller = count > 1 and size % 2 == 0 and replace(plan, micro_batch=size // 2) in huge
    return smaller or (plan.zero == 0 and plan.sharers > 1 and replace(plan, zero=1) in huge)


def varied(
    plans: Sequence[PricedPlan], simulated: Callable[[], int], refused: Callable[[], int] = lambda: 0, lacking: float = inf
) -> Iterator[PricedPlan]:
    """The plans by price, but only the first `ALIKE` for each choice of t, c, p and e, with and without ZeRO's stage 3, then the
    others. Prices of plans that differ only in micro-batches or other sharding are soon too close to tell apart. ``simulated``:
    how many plans have been so far; one for which there is no time does not count as one of its kind, so that others, of fewer
    stages or micro-batches, have their turn. ``refused``: how many have not fitted the memory; such a plan does not count either,
    and those that need as much in closed form, or ``lacking`` bytes, come last."""
    seen: Counter[object] = Counter()
    left = [(one, _arrangement(one.plan)) for one in plans]
    for small, fresh in ((True, True), (True, False), (False, True), (False, False)):
        later = []  # what comes in none of these turns will not come in it later either
        for one, kind in left:
            if (small and one.memory.nbytes >= lacking) or (fresh and seen[kind] >= ALIKE):
                later.append((one, kind))
                continue
            before = simulated(), refused()
            yield one
            if refused() == before[1]:
                seen[kind] += simulated() - before[0]
            else:
                lacking = min(lacking, one.memory.nbytes)
        left = later


def _arrangement(plan: HybridPlan) -> object:
    """How a plan arranges devices; those of `varied` that do so alike are of one kind."""
    return plan.tensor, plan.context, plan.pipeline, plan.experts, plan.devices, plan.zero == 3
