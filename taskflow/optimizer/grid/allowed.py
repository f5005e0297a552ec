"""Allowed: which plans in notation a search may return, under its options, a user's constraints and for a framework."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from taskflow.graph import Node, OperatorGraph
from taskflow.machine import Machine, host
from taskflow.mapper import HybridParallel, HybridPlan, OpConfig, Strategy, map_graph
from taskflow.operators.operator import Soap
from taskflow.optimizer.space import SpaceOptions, in_a_row, repaired_strategy
from taskflow.optimizer.target import PlanTarget

DEGREES = ("tensor", "context", "data", "experts")  # of a plan that cut operators


class NotAllowedError(ValueError):
    """Error: a search may not return this plan."""


class Allowed:
    """Decides on plans, and makes their strategies.

    Operators that are pinned are cut as pinned, and layers synchronised as pinned, in every plan. A plan that goes against any
    other rule is left out. ``may_have`` asks of each degree of a plan by itself, which is soon done; making the strategy asks all.
    ``products``: the type of products that every plan gets (`HybridPlan.products`).
    """

    def __init__(
        self, graph: OperatorGraph, machine: Machine, space: SpaceOptions | None = None, target: PlanTarget | None = None,
        over: Callable[[], bool] = lambda: False, products: str = "",
    ) -> None:
        self.graph, self.machine, self.target, self._over = graph, machine, target, over
        self.space, self.products = space or SpaceOptions(), products
        self.free = self.space == SpaceOptions() and target is None
        self.permitted = self.space.constraints.resolve(graph, len(machine.processors))
        self.syncs = self.space.constraints.syncs(graph)
        self._pins = {name: of for name, of in self.permitted.items() if of.pin is not None}
        self._known: dict[tuple[str, int], bool] = {}
        self.refused = ""
        """Why the last plan that was asked for is not allowed."""

    def may_have(self, plan: HybridPlan) -> bool:
        """True if each degree of a plan is allowed by itself."""
        if self.free:
            return True
        if not self.space.uneven and plan.shares:
            return False
        if self.target is not None and not self.target.may_have(self._typed(plan), self._over):
            return False
        degrees = [(name, getattr(plan, name) or 1) for name in DEGREES]
        return all(degree == 1 or self._by_itself(name, degree) for name, degree in degrees)

    def strategy(self, plan: HybridPlan) -> Strategy:
        """Return the strategy of a plan. Raises ValueError if the network cannot be cut so, `NotAllowedError` if the plan is not
        allowed."""
        plan = self._typed(plan)
        if self.free:
            return map_graph(HybridParallel(plan), self.graph, self.machine)
        if self.target is not None and not self.target.has(plan, self._over):
            raise self._error(plan, f"{self.target.name} cannot express it")
        result = map_graph(HybridParallel(plan), self.graph, self.machine)
        found = repaired_strategy(self._pins, self.syncs, result)
        if found is not result:
            if self.products:
                raise self._error(plan, "a pin changes it, and only plans in notation have products in 8 bits")
            try:
                found.verify(self.graph)
            except ValueError as error:  # a pin is outside its stage
                raise self._error(plan, str(error)) from None
        for node in self.graph:
            if why := self._cut(node, found[node.name]) or self._place(node, found[node.name]):
                raise self._error(plan, f"{node.name}: {why}")
        return found

    def _typed(self, plan: HybridPlan) -> HybridPlan:
        return replace(plan, products=self.products) if self.products else plan

    def _error(self, plan: HybridPlan, why: str) -> NotAllowedError:
        self.refused = f"{plan}: {why}"
        return NotAllowedError(self.refused)

    def _by_itself(self, name: str, degree: int) -> bool:
        """True if no operator is cut as it must not be in the plan that has one degree alone."""
        if (name, degree) not in self._known:
            degrees: dict[str, Any] = {"data": degree if name == "experts" else 1} | {name: degree}
            plan = HybridPlan(**degrees)
            self._known[name, degree] = True
            try:
                result = map_graph(HybridParallel(plan), self.graph, host(degree))
            except ValueError:  # with others it may be had
                return True
            for node in self.graph:
                if node.name not in self._pins and (why := self._cut(node, result[node.name])):
                    self.refused = f"{plan}: {node.name}: {why}"
                    self._known[name, degree] = False
                    break
        return self._known[name, degree]

    def _cut(self, node: Node, config: OpConfig) -> str:
        """Why an operator may not be cut so; empty if it may."""
        if node.name in self._pins:
            return ""
        of, space = self.permitted.get(node.name), self.space
        if of is not None and (why := of.cut(config)):
            return why
        if space.most_pieces and len(config.processors) > space.most_pieces:
            return f"may have at most {space.most_pieces} pieces"
        if config.weights and not (space.uneven and space.degrees == "any"):
            return "must have even pieces"
        for dim, degree in zip(node.dims, config.degrees):
            if degree > 1 and dim.soap is Soap.REDUCTION and not space.reduction:
                return f"{dim.name} is contracted, and must not be cut"
            if degree > 1 and space.degrees != "any" and dim.size % degree:
                return f"{degree} does not divide {dim.name}"
            if space.degrees == "powers" and degree & (degree - 1):
                return f"{degree} is no power of two"
        return ""

    def _place(self, node: Node, config: OpConfig) -> str:
        """Why an operator may not run on these devices; empty if it may."""
        if node.name in self._pins:
            return ""
        of = self.permitted.get(node.name)
        if of is not None and (why := of.violation(config)):
            return why
        devices = (of.devices if of is not None else ()) or range(len(self.machine.processors))
        if self.space.placements == "contiguous" and in_a_row(config, devices) != config:
            return "must be on devices in a row"
        return ""
