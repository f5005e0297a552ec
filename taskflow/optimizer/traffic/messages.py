"""Messages: about how many messages a plan needs between operators, estimated from a few pieces of each.

On a thousand processors, a layer whose pieces each read what all others write needs a million messages for each tensor. Such a
plan takes minutes and gigabytes to simulate, and would be refused anyway. So a search asks here first.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from taskflow.graph import Node, OperatorGraph
from taskflow.mapper import OpConfig, Sync
from taskflow.operators.tensor import Tensor
from taskflow.optimizer.traffic.edges import Corners, common, corners
from taskflow.optimizer.traffic.synchronisation import sync_messages

LOOKS = 5  # pieces of a reader that are looked at, at least


class Messages:
    """Counts of messages of one graph. Placement is ignored: pieces count as if each were on a processor of its own."""

    def __init__(self, graph: OperatorGraph) -> None:
        self.graph = graph
        self._written: dict[object, Corners] = {}
        self._counts: dict[object, int] = {}
        self._users: dict[str, Node] = {}
        for node in graph:
            for parameter in node.parameters:
                self._users.setdefault(parameter.layer, node)
        self._readers: dict[int, list[Node]] = {node.number: [] for node in graph}
        for node in graph:
            for giver in dict.fromkeys(t.node for t in node.inputs):
                self._readers[giver].append(node)

    def around(self, configs: Mapping[str, OpConfig], changes: Mapping[str, OpConfig]) -> int:
        """Count the messages of all tensors, forward and backward, read or written by operators in which ``changes`` differs
        from ``configs``."""
        edges: dict[tuple[int, int], None] = {}
        for name, config in changes.items():
            if configs.get(name) != config:
                node = self.graph.node(name)
                edges.update(dict.fromkeys((node.number, r.number) for r in self._readers[node.number]))
                edges.update(dict.fromkeys((t.node, node.number) for t in node.inputs))
        total = 0
        for source, target in edges:
            giver, taker = self.graph.nodes[source], self.graph.nodes[target]
            cuts = [changes.get(node.name) or configs[node.name] for node in (giver, taker)]
            for index, tensor in enumerate(taker.inputs):
                if tensor.node == source:
                    total += 2 * self._count(giver, cuts[0], tensor, taker, cuts[1], index)
        return total

    def synchronising(self, configs: Mapping[str, OpConfig], syncs: Mapping[str, Sync]) -> int:
        """Count the messages of layers that are synchronised in these ways, given the cut of each layer's first operator."""
        users = [(self._users[layer], sync) for layer, sync in syncs.items() if layer in self._users]
        return sum(sync_messages(node, configs[node.name], sync) for node, sync in users)

    def _count(
        self, giver: Node, source: OpConfig, tensor: Tensor, taker: Node, target: OpConfig, index: int
    ) -> int:
        """Number of messages from the pieces that write a tensor to those that read it."""
        written = (giver.operator, giver.specs, tensor.index, source.degrees, source.weights)
        key = (written, taker.operator, taker.specs, index, target.degrees, target.weights)
        if key not in self._counts:
            if written not in self._written:
                self._written[written] = corners(
                    (giver.writes(rect)[tensor.index], 0) for rect in source.partition(giver).rects()
                )
            pieces = target.partition(taker).rects()
            some = pieces[:: max(1, len(pieces) // LOOKS)]
            read = corners((taker.reads(rect).inputs[index], k) for k, rect in enumerate(some))
            met = np.count_nonzero(common(read, self._written[written]))
            self._counts[key] = int(met) * len(pieces) // len(some)
        return self._counts[key]
