"""LayeredPlan: a plan in notation in which single layers may differ, and its strategy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import groupby

from taskflow.graph import OperatorGraph
from taskflow.machine import Machine
from taskflow.mapper import (
    HybridParallel,
    HybridPlan,
    Strategy,
    Sync,
    SyncAlgorithm,
    UpdatePlacement,
    layer_numbers,
    map_graph,
    recomputed,
)


@dataclass(frozen=True, slots=True)
class LayeredPlan:
    """A plan in notation whose layers may differ. ``recompute``: ``none``, ``selective`` or ``full`` for each layer; ``zero``:
    the stage of ZeRO for each layer; empty: as in ``plan`` for all. Operators before the first layer belong to it, those after
    the last to that one."""

    plan: HybridPlan
    recompute: tuple[str, ...] = ()
    zero: tuple[int, ...] = ()

    def __str__(self) -> str:
        plan = self.plan
        if self.recompute:
            plan = replace(plan, recompute="none")
        if self.zero:
            plan = replace(plan, zero=0)
        words = [str(plan)]
        words += [f"recompute={_runs(self.recompute)}"] * bool(self.recompute)
        words += [f"zero={_runs(tuple(map(str, self.zero)))}"] * bool(self.zero)
        return " ".join(words)

    def levels(self, layers: int) -> tuple[str, ...]:
        """Return what each layer recomputes."""
        return self.recompute or (self.plan.recompute,) * layers

    def zeros(self, layers: int) -> tuple[int, ...]:
        """Return each layer's stage of ZeRO."""
        return self.zero or (self.plan.zero,) * layers


def _runs(values: tuple[str, ...]) -> str:
    """``none*3,full*5``."""
    return ",".join(f"{value}*{len(list(same))}" for value, same in groupby(values))


def plan_strategy(layered: LayeredPlan, graph: OperatorGraph, machine: Machine) -> Strategy:
    """Return the strategy of a plan. Raises ValueError if it does not fit."""
    strategy = map_graph(HybridParallel(layered.plan), graph, machine)
    if layered.recompute or layered.zero:
        numbers = layer_numbers(graph)
        strategy = replace(
            strategy, recompute=recomputed_by_layer(graph, layered, numbers), syncs=_syncs(graph, strategy, layered, numbers)
        )
    return replace(strategy, name=str(layered))


def recomputed_by_layer(graph: OperatorGraph, layered: LayeredPlan, numbers: Mapping[str, int]) -> frozenset[str]:
    """Return the operators that are computed again."""
    if not layered.recompute:
        return recomputed(graph, layered.plan.recompute)
    of = {level: recomputed(graph, level) for level in set(layered.recompute)}
    return frozenset(node.name for node in graph if node.name in of[layered.recompute[numbers[node.name]]])


def _syncs(graph: OperatorGraph, strategy: Strategy, layered: LayeredPlan, numbers: Mapping[str, int]) -> dict[str, Sync]:
    if not layered.zero:
        return dict(strategy.syncs)
    found: dict[str, Sync] = {}
    for node in graph:
        for parameter in node.parameters:
            found.setdefault(parameter.layer, sync_of(layered.zero[numbers[node.name]], layered.plan))
    return found


def sync_of(zero: int, plan: HybridPlan) -> Sync:
    """Return how a layer is synchronised at a stage of ZeRO."""
    if not zero:
        return Sync(SyncAlgorithm.COLLECTIVE, UpdatePlacement.REPLICATED)
    return Sync(
        SyncAlgorithm.COLLECTIVE, UpdatePlacement.SHARDED, zero=zero, shard_group=plan.shard_group if zero > 1 else 0,
        prefetch=plan.prefetch if zero > 2 else 1,
    )
