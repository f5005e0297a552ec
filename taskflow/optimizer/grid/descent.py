"""Descent by price: from plans of the grid, some of which do not fit, to plans that no grid has, with nothing simulated.

A simulation takes seconds, a price milliseconds. What is better than a grid often differs in several choices at once: stages of
uneven length, another schedule, and as much recomputed as the memory requires. Single changes, each of which has to be
faster when it is simulated, do not get there in a budget.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from taskflow.mapper import HybridPlan, samples
from taskflow.optimizer.grid.grid import SURE
from taskflow.optimizer.grid.memory import PlanMemory
from taskflow.optimizer.grid.priced import TOO_LARGE, AnyGrid, PricedPlan

MOST_STARTS = 24  # plans from which single changes go on
MOST_STEPS = 24  # from a start
PENALTY = 4.0
"""A plan costs its seconds, and more for each byte beyond the memory: times 1 + PENALTY x (bytes beyond / memory)."""
SMALL_PENALTY = 0.2
"""The same when starts are chosen, which need to fit only after some steps."""


def descend(grid: AnyGrid, plans: Sequence[PricedPlan], over: Callable[[], bool]) -> list[PricedPlan]:
    """Return the plans at which descents from different t, c, p and e end and that are likely to fit, the cheapest first.
    ``plans``: those of the grid that fit; ``over``: whether to end."""
    found: dict[HybridPlan, PricedPlan] = {}
    for start in _starts(grid, plans):
        if over():
            break
        end = _descent(grid, start, over)
        if end is not None:
            found[end.plan] = end
    return sorted(found.values(), key=lambda one: (one.seconds, str(one.plan)))


def _starts(grid: AnyGrid, plans: Sequence[PricedPlan]) -> list[PricedPlan]:
    """Return the cheapest plans of each t, c, p and e: of those that fit, and of those that would if more was recomputed."""
    plain = [
        one for one in grid.refused
        if one.plan.recompute == "none" and one.plan.zero == 1 and one.plan.virtual == 1
        and one.memory.nbytes <= TOO_LARGE * grid.memory_bytes
    ]  # fmt: skip
    prices = grid.prices.price([(one.plan, one.micro_batches) for one in plain])
    priced = [PricedPlan(one.plan, one.micro_batches, price, one.memory) for one, price in zip(plain, prices)]
    found: dict[HybridPlan, PricedPlan] = {}
    for penalty in (PENALTY, SMALL_PENALTY):
        of_kind: dict[tuple[int, ...], PricedPlan] = {}
        for one in sorted((*plans, *priced), key=lambda one: _cost(grid, one.seconds, one.memory, penalty)):
            plan = one.plan
            of_kind.setdefault((plan.tensor, plan.context, plan.pipeline, plan.experts), one)
        found |= {one.plan: one for one in list(of_kind.values())[:MOST_STARTS]}
    return sorted(found.values(), key=lambda one: _cost(grid, one.seconds, one.memory, SMALL_PENALTY))


def _cost(grid: AnyGrid, seconds: float, memory: PlanMemory, penalty: float = PENALTY) -> float:
    beyond = memory.nbytes / (SURE * grid.memory_bytes) - 1
    return seconds * (1 + penalty * max(0.0, beyond))


def _descent(grid: AnyGrid, start: PricedPlan, over: Callable[[], bool]) -> PricedPlan | None:
    """Return the end of steepest descent from a plan; None if that does not fit."""
    batch = samples(grid.graph)
    best, least = start, _cost(grid, start.seconds, start.memory)
    tried = {start.plan}
    for _ in range(MOST_STEPS):
        some: list[tuple[HybridPlan, int]] = []
        memories: list[PlanMemory] = []
        for one in grid.quick_neighbours(best.plan):
            if over():
                break
            count = batch // one.samples_a_pass
            if one in tried:
                continue
            tried.add(one)
            try:
                memory = grid.memory(one, count)
            except ValueError:  # the network cannot be cut so
                continue
            some.append((one, count))
            memories.append(memory)
        prices = grid.prices.price(some)
        costs = [_cost(grid, price, memory) for price, memory in zip(prices, memories)]
        at = min(range(len(costs)), key=costs.__getitem__, default=-1)
        if at < 0 or costs[at] >= least:
            break
        best, least = PricedPlan(*some[at], prices[at], memories[at]), costs[at]
    return best if best.memory.nbytes <= SURE * grid.memory_bytes and best.seconds < inf else None
