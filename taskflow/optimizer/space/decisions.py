"""Decisions: which operators of a graph choose their configurations in an exact search, and which follow another operator's
choice.

The paper counts a network's layers; its graphs have no operators for inputs, carried state, views and scalars.
`taskflow.optimizer.space.followers.followed` defines who follows whom. A follower takes the configuration with which the fewest
bytes move between the two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np

from taskflow.graph import Node, OperatorGraph
from taskflow.mapper import OpConfig
from taskflow.operators.tensor import Tensor
from taskflow.optimizer.space.followers import followed
from taskflow.optimizer.space.space import SearchSpace
from taskflow.optimizer.traffic import Accesses, Corners, alternatives, common, makers, needed, owned, sent


@dataclass(frozen=True, slots=True)
class Decision:
    """Operators that are decided about together, the one that chooses first. ``choices``: for each choice, their configurations
    in the same order."""

    nodes: tuple[Node, ...]
    choices: tuple[tuple[OpConfig, ...], ...]


def decisions(graph: OperatorGraph, space: SearchSpace, order: Sequence[Node], follow: str) -> list[Decision]:
    """Return what has to be decided, in the order of the operators that choose; passive ones come last, since little depends on
    them. ``order``: all operators. ``follow``: which operators follow (`space.FOLLOW`)."""
    leader, passive = followed(graph, follow), followed(graph, "passive")
    chooses = [node for node in order if node.number not in leader]
    accesses, result = Accesses(graph), []
    for node in sorted(chooses, key=lambda node: node.number in passive):
        group = _group(node, order, leader)
        nearest = {
            other.number: Nearest(other, list(space[other]), graph.nodes[leader[other.number]], accesses)
            for other in group[1:]
        }
        choices = []
        for config in space[node]:
            chosen = {node.number: config}
            for other in group[1:]:
                chosen[other.number] = nearest[other.number](chosen[leader[other.number]])
            choices.append(tuple(chosen[member.number] for member in group))
        result.append(Decision(tuple(group), tuple(choices)))
    return result


def joined(found: Sequence[Decision], most: int) -> list[Decision]:
    """Return the decisions with operators that share a layer's weights decided together, as long as that gives at most ``most``
    choices. Only together do they determine how the layer is synchronised, and few of their choices can make that worth its
    cost."""
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
    """Return the number of strategies to choose from."""
    return prod(len(decision.choices) for decision in found)


def _group(node: Node, order: Sequence[Node], leader: Mapping[int, int]) -> list[Node]:
    """A choosing operator, those that follow it, those that follow them, and so on."""
    group = [node]
    for member in group:
        group.extend(other for other in order if leader.get(other.number) == member.number)
    return group


class Nearest:
    """Map from any configuration of ``leader``, the operator that a node follows, to the nearest of the node's ``configs``.

    `taskflow.mapper.alike.cut_like` does not serve here, since it makes a configuration by a rule about dimensions. An exact
    search has a list of all configurations and must stay within it; the best by bytes may be cut in another dimension.
    """

    def __init__(self, node: Node, configs: Sequence[OpConfig], leader: Node, accesses: Accesses) -> None:
        self._node, self._configs, self._leader, self._accesses = node, configs, leader, accesses
        self._first = np.array([config.processors[0] for config in configs])
        self._count = 1 + max(max(config.processors) for config in configs)
        self._gives = any(t.node == node.number for t in leader.inputs)
        giver, self._taker = (node, leader) if self._gives else (leader, node)
        self._tensors = [t for t in giver.outputs if t in self._taker.inputs]
        side = self._held if self._gives else self._read
        self._own = [alternatives([side(node, config, tensor) for config in configs]) for tensor in self._tensors]

    def __call__(self, chosen: OpConfig) -> OpConfig:
        """The configuration with which the fewest bytes move between the two if the leader has this one; of several, the one
        whose busiest pair of processors moves fewest, then one that starts where the leader does, then the first."""
        n = max(self._count, 1 + max(chosen.processors))
        moved = np.zeros((len(self._configs), n * n))
        for tensor, own in zip(self._tensors, self._own):
            other = (self._read if self._gives else self._held)(self._leader, chosen, tensor)
            held, read = (own, other) if self._gives else (other, own)
            moved += sent(common(read, held), read, held, n) * tensor.dtype.itemsize
        moved[:, :: n + 1] = 0  # what stays on a processor
        order = np.lexsort((self._first != chosen.processors[0], moved.max(axis=1), moved.sum(axis=1)))
        return self._configs[int(order[0])]

    def _held(self, node: Node, config: OpConfig, tensor: Tensor) -> Corners:
        return owned(makers(self._accesses(node, config), config, tensor.index))

    def _read(self, node: Node, config: OpConfig, tensor: Tensor) -> Corners:
        access = self._accesses(node, config)
        return needed((access, config, i) for i, read in enumerate(node.inputs) if read is tensor)
