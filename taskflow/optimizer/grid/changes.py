"""Advice if no plan fits: the plan with the fewest changes that fits in closed form, or how many devices one needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from taskflow.graph import OperatorGraph
from taskflow.machine import Cluster, Machine
from taskflow.mapper import HybridPlan, node_size, samples
from taskflow.optimizer.grid.grid import PlanGrid
from taskflow.optimizer.grid.memory import memory_of_plan
from taskflow.optimizer.grid.plans import powers
from taskflow.optimizer.grid.stages import PlanSums
from taskflow.rules import UpdateRule

MOST_TIMES = 64  # as many devices as there are
MORE_TIME = "give it a larger budget"


@dataclass(frozen=True, slots=True)
class FittingChange:
    """What would fit. ``advice``: in a sentence, empty if nothing is known. ``plans``: on these devices, the one with the fewest
    changes first, then the one that needs least; none if no plan fits these."""

    advice: str = ""
    plans: tuple[HybridPlan, ...] = ()


def change_that_fits(
    graph: OperatorGraph, machine: Machine, rule: UpdateRule | None, over: Callable[[], bool] = lambda: False,
    allowed: Callable[[HybridPlan], bool] = lambda plan: True, all_of_a_layer: str = "full",
) -> FittingChange:
    """Return what would fit where nothing was found: a pipelined or sharded plan on these devices, or more devices. Nothing is said
    of networks that have no such plans, and of machines that are not described. By closed forms, which leave out most
    short-lived arrays, so with a tenth of the memory left free. Once ``over`` answers true, it says what it has found until then.
    ``allowed``: which plans may be said at all; ``all_of_a_layer``: as of `make_grid`."""
    if not isinstance(machine, Cluster) or not any(node.parameters for node in graph):
        return FittingChange()
    if graph.carries or samples(graph) < 1:
        return FittingChange()
    count = len(machine.processors)
    try:
        grid = PlanGrid(graph, machine, rule, None, all_of_a_layer)
        savings = _savings(grid, count, over, allowed)
        if (found := _least_changed(grid, savings)) is not None:
            plans = found[0], min(savings, key=lambda one: one[1])[0]
            return FittingChange(f"plan '{found[0]}' would fit ({_need(found[1], grid.memory_bytes)})", tuple(dict.fromkeys(plans)))
        tried = count
        for times in powers(MOST_TIMES)[1:]:
            if over():
                break
            try:
                larger = machine.prefix(times * count)
            except ValueError:  # no more may be had
                break
            tried = times * count
            more = PlanGrid(graph, larger, rule, None, all_of_a_layer)
            if (found := _least_changed(more, _savings(more, times * count, over, allowed))) is not None:
                advice = _need(found[1], grid.memory_bytes)
                return FittingChange(f"{times * count} devices would do: plan '{found[0]}' would fit ({advice})")
    except ValueError:  # the network cannot be taken apart so
        return FittingChange()
    if not savings:
        return FittingChange(MORE_TIME if over() else "")
    least = min(savings, key=lambda one: one[1])
    needs = f"'{least[0]}' ({_need(least[1], grid.memory_bytes)})"
    if over():
        return FittingChange(f"of {len(savings)} plans that there was time to look at, {needs} needs least; {MORE_TIME}")
    few = f"; {tried:,} devices are too few as well" if tried > count else ""
    return FittingChange(f"the plan that needs least is {needs}{few}; use {'more of them, or ' if few else ''}a smaller network")


def _need(nbytes: float, have: int) -> str:
    return f"about {float(f'{nbytes / 1e9:.3g}'):,g} of {have / 1e9:.3g} GB by its closed form"


def _least_changed(grid: PlanGrid, savings: Sequence[tuple[HybridPlan, float]]) -> tuple[HybridPlan, float] | None:
    """The plan with the fewest changes against data parallelism that fits: sharded state, smaller micro-batches and
    recomputation come before groups and stages."""
    fitting = [one for one in savings if one[1] <= 0.9 * grid.memory_bytes]
    return min(fitting, key=lambda one: _changes(one[0], samples(grid.graph)), default=None)


def _changes(plan: HybridPlan, batch: int) -> tuple[int, int, int, int]:
    whole = (plan.micro_batch or 1) == batch // (plan.data or 1)
    inside = (plan.zero > 0) + (plan.recompute != "none") + (not whole)
    around = 2 * (plan.tensor > 1) + 2 * (plan.context > 1) + 3 * (plan.pipeline > 1)
    return inside + around, plan.zero, plan.tensor * plan.context * plan.pipeline, -(plan.micro_batch or 1)


def _savings(
    grid: PlanGrid, devices: int, over: Callable[[], bool], allowed: Callable[[HybridPlan], bool]
) -> list[tuple[HybridPlan, float]]:
    """Plans that save memory, each with the bytes that it needs: with one device or all of a node a group, as many stages as
    divide, and the smallest and the largest micro-batches. Samples are whole, or as cut as the node allows. What needs least comes
    first, and is looked at in any case, since there may be no time for all."""
    graph, sums = grid.graph, grid.sums
    node, batch = min(node_size(grid.machine), devices), samples(graph)
    found: list[tuple[HybridPlan, float]] = []
    for t in dict.fromkeys((1, node)):
        for c in dict.fromkeys((1, max(c for c in sums.axes.contexts(t) if devices % (t * c) == 0 or c == 1))):
            for p in (p for p in range(1, max(1, sums.layers) + 1) if devices % (t * c * p) == 0):
                d = devices // (t * c * p)
                if found and over():
                    return found
                if batch % d:
                    continue
                for mb in dict.fromkeys((1, batch // d)):
                    for recompute in reversed(sums.levels):
                        for zero in (3, 2, 1, 0) if c * d > 1 else (0,):
                            shape = HybridPlan(tensor=t, context=c, pipeline=p, data=d, micro_batch=mb)
                            plan = replace(shape, zero=zero, recompute=recompute)
                            if allowed(plan) and (nbytes := _bytes(sums, plan, batch)) is not None:
                                found.append((plan, nbytes))
    return found


def _bytes(sums: PlanSums, plan: HybridPlan, batch: int) -> float | None:
    count = batch // ((plan.data or 1) * (plan.micro_batch or 1))
    try:
        return memory_of_plan(sums, plan, count).nbytes
    except ValueError:
        return None
