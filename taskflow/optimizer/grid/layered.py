"""LayeredPlan: a plan in notation in which single layers may differ, and its strategy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from taskflow.graph import OperatorGraph
from taskflow.machine import Machine
from taskflow.mapper import BLOCK, HybridParallel, HybridPlan, Strategy, map_graph


@dataclass(frozen=True, slots=True)
class LayeredPlan:
    """A plan in notation whose layers may differ. ``recompute``: one of the words of the notation for each layer; ``zero``: the
    stage of ZeRO for each layer, of which ``plan`` has the highest; empty: as in ``plan`` for all. Operators before the first
    layer belong to it, those after the last to that one."""

    plan: HybridPlan
    recompute: tuple[str, ...] = ()
    zero: tuple[int, ...] = ()

    @property
    def whole(self) -> HybridPlan:
        """Return all of it as one plan in notation."""
        plan = self.plan
        if self.recompute:
            plan = replace(plan, recompute="none", recompute_layers=self.recompute)
        if not self.zero:
            return plan
        most = max(self.zero)
        return replace(
            plan, zero=0, zero_layers=self.zero, shard_group=plan.shard_group if most > 1 else 0,
            prefetch=plan.prefetch if most > 2 else BLOCK,
        )

    def __str__(self) -> str:
        return str(self.whole)

    @property
    def changes(self) -> int:
        """Return how often a layer is recomputed or sharded otherwise than the one before it."""
        return sum(sum(a != b for a, b in pairwise(values)) for values in (self.recompute, self.zero))

    def levels(self, layers: int) -> tuple[str, ...]:
        """Return what each layer recomputes."""
        return self.recompute or (self.plan.recompute,) * layers

    def zeros(self, layers: int) -> tuple[int, ...]:
        """Return each layer's stage of ZeRO."""
        return self.zero or (self.plan.zero,) * layers


def plan_strategy(layered: LayeredPlan, graph: OperatorGraph, machine: Machine) -> Strategy:
    """Return the strategy of a plan. Raises ValueError if it does not fit."""
    return replace(map_graph(HybridParallel(layered.whole), graph, machine), name=str(layered))
