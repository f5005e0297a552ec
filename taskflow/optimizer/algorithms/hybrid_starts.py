"""Hybrids: sample-parallel plans in which layers with many weights are cut in other dimensions too, as their loads suggest.

On a hierarchical machine it matters which processors are neighbours in the samples' order. Take a layer that is cut into groups
of pieces: those of a group read the same samples, and each holds another part of the weights. Groups within a node exchange
samples cheaply, but hold whole weights on every node. Groups spread over the nodes synchronise only half or a quarter of the
weights on every node, and have a part of what they read. So every order of the machine's processors gives a different plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod

from taskflow.graph import Node, OperatorGraph
from taskflow.machine import Machine
from taskflow.mapper import OpConfig, Strategy
from taskflow.operators.operator import Soap
from taskflow.optimizer.algorithms.initial import with_syncs
from taskflow.optimizer.space import Layer, OperatorSpace, SearchSpace, Spreads, on_team, teams
from taskflow.optimizer.traffic import Loads, Vector

MOST_ORDERS = 8  # of a machine's processors
PASSES = 2  # over the layers: what one takes may change what is best for another


def hybrids(
    graph: OperatorGraph, machine: Machine, space: SearchSpace, layers: Sequence[Layer], loads: Loads, over: Callable[[], bool]
) -> Iterator[Strategy]:
    """Return a plan for each order of all processors, with the best cuts by `Loads`; nothing is simulated. Layers with weights
    are decided one after another, those with the most weights first. When ``over`` returns true, the plan is returned as far as
    it is."""
    count = len(machine.processors)
    # Those dealt around the largest groups first: the natural order is the known strategies'.
    orders = [team for team in reversed(teams(machine)) if len(team) == count][:MOST_ORDERS]
    heaviest = sorted((layer for layer in layers if layer.weights), key=lambda layer: layer.weight_bytes, reverse=True)
    for number, team in enumerate(orders):
        if over():
            return
        spreads = Spreads()
        configs: dict[str, OpConfig] = {}
        for layer in layers:
            leader = layer.leaders[0]
            samples = max(_cuts(space[leader], count), key=lambda degrees: _samples(leader, degrees))
            configs.update(spreads(layer, on_team(samples, team[: prod(samples)])))
        before: Vector | None = None  # the loads of these configurations
        for layer in heaviest * PASSES:
            if over():
                break
            if before is None:
                before = loads.of(configs)
            if changes := _best(layer, configs, before, team, space, loads, spreads, over):
                configs |= changes
                before = None
        yield with_syncs(Strategy(count, configs, {}, f"hybrid {number}"), graph, machine)


def _best(
    layer: Layer, configs: dict[str, OpConfig], before: Vector, team: Sequence[int], space: SearchSpace, loads: Loads,
    spreads: Spreads, over: Callable[[], bool],
) -> dict[str, OpConfig]:
    """The configurations of a layer with which the busiest processor and the busiest link together do least, of those that
    there is time to look at; none if those it has do. ``before``: the loads of ``configs``."""
    count, leader = len(team), layer.leaders[0]
    best: dict[str, OpConfig] = {}
    least = before[:count].max() + before[count:].max(initial=0.0)
    for degrees in _cuts(space[leader], count):
        if over():
            break
        changes = spreads(layer, on_team(degrees, team[: prod(degrees)]))
        after = loads.after(before, configs, changes)
        busy = after[:count].max() + after[count:].max(initial=0.0)
        if busy < least:
            best, least = changes, busy
    return best


def _cuts(space: OperatorSpace, pieces: int) -> Sequence[tuple[int, ...]]:
    """Those that a hybrid is made of: samples, and outputs, rows or columns beside them."""
    return space.cuts(pieces, dimensions=2, contracted=False, nearest=True)


def _samples(node: Node, degrees: Sequence[int]) -> int:
    return prod(d for d, dim in zip(degrees, node.dims) if dim.soap is Soap.SAMPLE)
