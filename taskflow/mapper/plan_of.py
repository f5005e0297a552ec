"""plan_of: the plan in notation that a strategy is. Names are not asked, and a plan is believed only if it gives the strategy."""

from __future__ import annotations

from collections.abc import Iterator

from taskflow.graph import OperatorGraph
from taskflow.machine import host
from taskflow.mapper.again import AGAIN_STATES
from taskflow.mapper.config import Exchange
from taskflow.mapper.hybrid import HybridParallel
from taskflow.mapper.mapper import map_graph
from taskflow.mapper.plan import HybridPlan
from taskflow.mapper.strategy import Strategy


def plan_of(graph: OperatorGraph, strategy: Strategy) -> HybridPlan | None:
    """Return the plan in notation that a strategy says it is (`Strategy.plan`), with every degree set. None if it says none, or
    if it is not that one."""
    return checked(strategy.plan, graph, strategy)[0] if strategy.plan is not None else None


def checked(plan: HybridPlan, graph: OperatorGraph, strategy: Strategy) -> tuple[HybridPlan | None, str]:
    """Return ``plan`` with every degree set, if it gives the strategy: its cuts and places, pipeline, synchronisation,
    recomputation and exchanges. Else return None, and where the strategy first differs from it."""
    try:
        planned = map_graph(HybridParallel(plan), graph, host(strategy.processors))
    except ValueError as error:
        return None, str(error)
    why = next(_differences(graph, strategy, planned), "")
    return (None, why) if why else (planned.plan, "")


def _differences(graph: OperatorGraph, strategy: Strategy, planned: Strategy) -> Iterator[str]:
    """Sentences about where a strategy differs from the one that its plan makes."""
    for node in graph:
        here, there = strategy[node.name], planned[node.name]
        if here != there:
            yield f"{node.name} is {here.describe(node)}, in the plan {there.describe(node)}"
    if strategy.pipeline != planned.pipeline:
        yield f"its pipeline is {strategy.pipeline}, in the plan {planned.pipeline}"
    for what, some in strategy.again.sets().items():
        if different := some ^ planned.again.sets()[what]:
            name, states = min(different), AGAIN_STATES[what]
            yield f"{name} is {states[name not in some]}, in the plan {states[name in some]}"
    for layer in dict.fromkeys(parameter.layer for parameter in graph.parameters):
        if strategy.sync(layer) != planned.sync(layer):
            yield f"weights of {layer} are synchronised by {strategy.sync(layer)}, in the plan by {planned.sync(layer)}"
    if strategy.exchange is not planned.exchange:
        yield f"tensors are exchanged by {strategy.exchange.value}, in the plan by {planned.exchange.value}"
    # Where replicas only share samples, the machine decides how sums of losses are added: a plan does not say it.
    if planned.exchange is not Exchange.COPIES and strategy.sums is not planned.sums:
        yield f"partial values are summed by {strategy.sums.value}, in the plan by {planned.sums.value}"
