"""Stages of a pipeline: which of a network's operators each has."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from taskflow.graph import OperatorGraph
from taskflow.mapper.blocks import block_numbers, block_of


def stages_of(graph: OperatorGraph, count: int, layers: Sequence[int] = (), who: str = "plan") -> dict[str, int]:
    """Return the operators of each of ``count`` stages along the graph. Layers (operators whose names share a number, as
    ``h.3``) are not divided. ``layers``: how many each stage has; if not given, they are dealt evenly, with fewer for the first
    and last stage. Operators before the first layer go with it, those after the last with that one; with a stage or two more than
    layers, the one of these with more flops, or each, has a stage of its own. Without enough layers, operators are divided by their
    flops. Operators without inputs, and what is made of weights alone, go where they are read
    first. Raises ValueError that begins with ``who`` if ``layers`` do not sum to the number of layers, or if there are more
    stages than operators."""
    if count == 1:
        return {node.name: 0 for node in graph}
    numbers = block_numbers(graph)
    many = max(numbers.values(), default=-1) + 1
    if layers and (sum(layers) != many or min(layers) < 1):
        raise ValueError(
            f"{who}: stages= needs 1 layer or more a stage and {many} in all, got {','.join(map(str, layers))}, which add up to "
            f"{sum(layers)}"
        )
    if many >= count:
        ends = list(accumulate(layers or _dealt(many, count)))
        found = {name: next(s for s, end in enumerate(ends) if layer < end) for name, layer in numbers.items()}
    else:
        found = _beside_layers(graph, numbers, count - many) or _by_flops(graph, count, who)
    readers: dict[int, list[str]] = {}
    for node in graph:
        for tensor in node.inputs:
            readers.setdefault(tensor.node, []).append(node.name)
    for node in reversed(graph.nodes):
        if (node.of_weights or not node.inputs) and node.number in readers:
            found[node.name] = min(found[name] for name in readers[node.number])
    return found


def _dealt(layers: int, stages: int) -> list[int]:
    """Layers by stage. If they do not divide evenly, stages in the middle get one more, since the first and the last have extra
    work."""
    whole, extra = divmod(layers, stages)
    first = (stages - extra) // 2
    return [whole + (first <= s < first + extra) for s in range(stages)]


def _beside_layers(graph: OperatorGraph, numbers: dict[str, int], more: int) -> dict[str, int]:
    """A stage for each layer, and ``more`` for what is before the first and after the last; empty if these are not so many."""
    inside = [node.number for node in graph if block_of(node.name)]
    if not inside or more > 2:
        return {}
    groups = [{node.name: node for node in graph.nodes[: inside[0]]}, {node.name: node for node in graph.nodes[inside[-1] + 1 :]}]
    flops = [sum(node.operator.flops(node.specs, node.space) for node in of.values() if node.inputs) for of in groups]
    before, after = (any(node.inputs for node in of.values()) for of in groups)
    if before + after < more:
        return {}
    before, after = (before, after) if more == 2 else (flops[0] > flops[1], flops[0] <= flops[1])
    found = {name: layer + (before and name not in groups[0]) for name, layer in numbers.items()}
    return found | (dict.fromkeys(groups[1], max(found.values()) + 1) if after else {})


def _by_flops(graph: OperatorGraph, count: int, who: str) -> dict[str, int]:
    """Non-empty stretches of the graph with about equal flops. Operators without inputs do not count."""
    nodes = [node for node in graph if node.inputs]
    if len(nodes) < count:
        raise ValueError(f"{who}: {count} stages need as many operators with inputs, {graph.name} has {len(nodes)}")
    flops = [node.operator.flops(node.specs, node.space) for node in nodes]
    total, before, stage = max(1, sum(flops)), 0, 0
    found: dict[str, int] = {node.name: 0 for node in graph}
    for number, (node, own) in enumerate(zip(nodes, flops)):
        full, scarce = (before + own / 2) * count >= (stage + 1) * total, len(nodes) - number < count - stage
        if number and stage < count - 1 and (full or scarce):
            stage += 1
        found[node.name] = stage
        before += own
    return found
