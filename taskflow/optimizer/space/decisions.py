"""Decisions: which operators of a graph choose their configurations in an exact search, and which follow another one's choice.

The paper counts a network's layers; its graphs have no operators for inputs, carried state, views and scalars. If the
``passive`` ones follow, an input, a state and a view (no arithmetic) take the configuration with which the fewest bytes
move to the operator that reads them first, and a scalar the one with which the fewest move from its producer. If the
``weightless`` ones follow, so do all others without parameters, with their producer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from taskflow.graph import Node, OperatorGraph
from taskflow.mapper import OpConfig
from taskflow.operators.tensor import Tensor
from taskflow.optimizer.space.followers import followed
from taskflow.optimizer.space.space import SearchSpace
from taskflow.regions import Rect


@dataclass(frozen=True, slots=True)
class Decision:
    """Operators that are decided about together, the one that chooses first; ``choices``: their configurations, in the same
    order, for each of its choices."""

    nodes: tuple[Node, ...]
    choices: tuple[tuple[OpConfig, ...], ...]


def decisions(graph: OperatorGraph, space: SearchSpace, order: Sequence[Node], follow: str) -> list[Decision]:
    """What is to be decided, in the order of the operators that choose; passive ones come last, since little depends on them.
    ``order``: all operators. ``follow``: which operators follow (`space.FOLLOW`)."""
    leader = {node.number: _leader(graph, node, follow) for node in order}
    chooses = [node for node in order if leader.get(node.number) is None]
    result = []
    for node in sorted(chooses, key=lambda node: _leader(graph, node, "passive") is not None):
        group = _group(graph, node, leader)
        choices = []
        for config in space[node]:
            chosen = {node.number: config}
            for other in group[1:]:
                towards = leader[other.number]
                assert towards is not None
                chosen[other.number] = nearest(other, list(space[other]), graph.nodes[towards], chosen[towards])
            choices.append(tuple(chosen[member.number] for member in group))
        result.append(Decision(tuple(group), tuple(choices)))
    return result


def joined(found: Sequence[Decision], most: int) -> list[Decision]:
    """The same, with operators that share a layer's weights decided about together, as long as that gives at most ``most``
    choices: only together do they say how the layer is synchronised, and few of their choices can pay for it."""
    result: list[Decision] = []
    place: dict[str, int] = {}  # layer -> where in the result
    for decision in found:
        layers = list(dict.fromkeys(p.layer for node in decision.nodes for p in node.parameters))
        at = next((place[layer] for layer in layers if layer in place), None)
        if at is not None and len(result[at].choices) * len(decision.choices) <= most:
            before = result[at]
            both = tuple((*a, *b) for a, b in product(before.choices, decision.choices))
            result[at] = Decision((*before.nodes, *decision.nodes), both)
        else:
            at = len(result)
            result.append(decision)
        for layer in layers:
            place.setdefault(layer, at)
    return result


def strategies(found: Sequence[Decision]) -> int:
    """How many strategies there are to choose from."""
    return prod(len(decision.choices) for decision in found)


def _leader(graph: OperatorGraph, node: Node, follow: str) -> int | None:
    """The operator that one follows; None for one that chooses."""
    if follow == "elementwise":
        return followed(graph, follow).get(node.number)
    if node.parameters or follow == "none":
        return None
    if node.inputs and node.space.volume == 1:
        return node.inputs[0].node
    if not node.inputs or node.operator.flops(node.specs, node.space) == 0:
        readers = [other.number for other in graph if any(t.node == node.number for t in other.inputs)]
        # One that is read by a scalar only would follow what follows it.
        return next((number for number in readers if graph.nodes[number].space.volume > 1), None)
    return node.inputs[0].node if follow == "weightless" else None


def _group(graph: OperatorGraph, node: Node, leader: dict[int, int | None]) -> list[Node]:
    """A choosing operator, those that follow it, those that follow them, and so on."""
    group = [node]
    for member in group:
        group.extend(graph.nodes[number] for number, towards in leader.items() if towards == member.number)
    return group


def nearest(node: Node, configs: Sequence[OpConfig], leader: Node, chosen: OpConfig) -> OpConfig:
    """The configuration of ``node`` with which the fewest bytes move between it and its ``leader``; of several, the one whose
    busiest pair of processors moves fewest, then one that starts where the leader does, then the first."""
    best, least = configs[0], None
    for config in configs:
        moved = _moved(node, config, leader, chosen)
        key = (sum(moved.values()), max(moved.values(), default=0), config.processors[0] != chosen.processors[0])
        if least is None or key < least:
            best, least = config, key
    return best


def _moved(node: Node, config: OpConfig, leader: Node, chosen: OpConfig) -> Counter[tuple[int, int]]:
    """Bytes that go from one operator to the other, by source and target."""
    if any(t.node == node.number for t in leader.inputs):
        return _sent(node, config, leader, chosen)
    return _sent(leader, chosen, node, config)


def _sent(source: Node, given: OpConfig, target: Node, taken: OpConfig) -> Counter[tuple[int, int]]:
    """Each processor gets a Rect of a tensor once."""
    instances: dict[tuple[int, int, Rect], Tensor] = {}
    for rect, processor in taken.pieces(target):
        for tensor, read in zip(target.inputs, target.reads(rect).inputs):
            if tensor.node == source.number:
                instances[tensor.index, processor, read] = tensor
    owned: list[dict[Rect, int]] = [{} for _ in source.outputs]
    for rect, processor in given.pieces(source):
        for table, written in zip(owned, source.writes(rect)):
            table.setdefault(written, processor)
    moved: Counter[tuple[int, int]] = Counter()
    for (index, processor, read), tensor in instances.items():
        for written, owner in owned[index].items():
            if owner != processor and written.overlaps(read):
                moved[owner, processor] += written.intersect(read).volume * tensor.dtype.itemsize
    return moved
