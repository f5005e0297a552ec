"""Additive costs: a step as the sum of its parts, as if nothing overlapped (OptCNN's cost model; paper, section 8.2.3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from taskflow.graph import Node
from taskflow.mapper import OpConfig, follow
from taskflow.operators.tensor import Tensor
from taskflow.optimizer.cost import Pieces
from taskflow.optimizer.evaluate import Evaluator
from taskflow.optimizer.traffic.edges import (
    Accesses,
    Matrix,
    Vector,
    alternatives,
    common,
    corners_of,
    makers,
    needed,
    sent,
)
from taskflow.optimizer.traffic.messages import Links
from taskflow.optimizer.traffic.synchronisation import holders, share_bytes


class Additive:
    """Additive cost of a graph whose ``groups`` of operators are decided about together. ``configs``: the choices of each
    group's first operator; the others are cut like it. ``vertices``: for each group, by choice, the seconds of its operators
    and of synchronising their weights. ``edges``: for each pair of groups that exchange data, by both choices, the seconds of
    that exchange. Equal groups share arrays. Raises TypeError if the costs are only known for whole tasks, TimeoutError if
    ``over`` returns true."""

    def __init__(
        self, evaluator: Evaluator, groups: Sequence[Sequence[Node]], configs: Sequence[Sequence[OpConfig]],
        over: Callable[[], bool] = lambda: False,
    ) -> None:
        self.graph, self.groups, self.configs, self._over = evaluator.graph, groups, configs, over
        self._links = Links(evaluator.machine, evaluator.costs, self._hurry)
        self._processors = len(evaluator.machine.processors)
        self._training = evaluator.rule is not None
        self._pieces = Pieces(self.graph, evaluator.costs, self._training)
        self._accesses = Accesses(self.graph)
        self._group = {node.number: i for i, group in enumerate(groups) for node in group}
        self._seconds: dict[object, float] = {}
        self.vertices = self._vertices()
        self.edges = self._edges()

    def _hurry(self) -> None:
        if self._over():
            raise TimeoutError("dynamic programming (no time)")

    def _vertices(self) -> list[Vector]:
        """One vector for each group of operators; equal groups with the same choices share theirs."""
        known: dict[object, Vector] = {}
        found: list[Vector] = []
        for group, configs in zip(self.groups, self.configs):
            key = (
                id(configs), tuple((n.operator, n.specs, n.number in self._pieces.active) for n in group),
                tuple(p.spec for p in group[0].parameters),
            )
            if key not in known:
                known[key] = np.array([self._vertex(group, config) for config in configs])
            found.append(known[key])
        return found

    def _vertex(self, group: Sequence[Node], config: OpConfig) -> float:
        self._hurry()
        total = sum(self._operator(node, follow(group[0], config, node)) for node in group)
        return total + (self._synchronisation(group[0], config) if self._training else 0.0)

    def _operator(self, node: Node, config: OpConfig) -> float:
        """Seconds of the busiest processor for the operator's forward and backward tasks."""
        key = (node.operator, node.specs, node.number in self._pieces.active, config)
        if key not in self._seconds:
            self._seconds[key] = max(self._pieces.busy(node, config).values())
        return self._seconds[key]

    def _synchronisation(self, node: Node, config: OpConfig) -> float:
        """Seconds of the busiest link for a layer's gradients, and then for its new weights."""
        if not node.parameters:
            return 0.0
        held = holders([(self._accesses(node, config), config)])
        return 2 * float(self._links.busiest(share_bytes(held, node.parameters, self._processors)[None])[0])

    def _edges(self) -> dict[tuple[int, int], Matrix]:
        edges: dict[tuple[int, int], Matrix] = {}
        known: dict[object, Matrix] = {}
        for node in self.graph:
            for i, tensor in enumerate(node.inputs):
                u, v = self._group[tensor.node], self._group[node.number]
                giver = self.graph.producer(tensor)
                # How operators are cut depends on what the first of their group chooses from and on its dimensions.
                key = (giver.operator, giver.specs, tensor.index, node.operator, node.specs, i,
                       id(self.configs[u]), self.groups[u][0].dims, id(self.configs[v]), self.groups[v][0].dims,
                       (tensor.node, tensor.index) in self._pieces.needs_gradient)
                if key not in known:
                    self._hurry()
                    known[key] = self._transfers(giver, tensor, node, i)
                edges[u, v] = edges[u, v] + known[key] if (u, v) in edges else known[key]
        return edges

    def _transfers(self, giver: Node, tensor: Tensor, taker: Node, index: int) -> Matrix:
        """Seconds of the busiest link to bring a tensor from each cut of its producer to each cut of its reader, and its
        gradient back. All who have a partial value send it. Two messages there and back count as one of twice the size."""
        ways = 2 if (tensor.node, tensor.index) in self._pieces.needs_gradient else 1
        read = alternatives([needed([(self._accesses(taker, c), c, index)]) for c in self._cuts(taker)])
        rows = []
        for config in self._cuts(giver):
            self._hurry()
            held = corners_of(makers(self._accesses(giver, config), config, tensor.index))
            elements = sent(common(read, held), read, held, self._processors)
            rows.append(self._links.busiest(elements * (ways * tensor.dtype.itemsize)))
        return np.array(rows)

    def _cuts(self, node: Node) -> list[OpConfig]:
        """Cuts of an operator for each choice of its group."""
        at = self._group[node.number]
        return [follow(self.groups[at][0], config, node) for config in self.configs[at]]
