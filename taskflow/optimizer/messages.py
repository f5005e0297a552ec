"""Messages: about how many a plan needs between operators, found from a few pieces of each.

On a thousand processors a layer of which every piece reads what all others write needs a million messages for each tensor: such
a plan takes minutes and gigabytes to simulate, and would be refused anyway. So a search asks here first.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from taskflow.graph import Node, OperatorGraph
from taskflow.mapper import OpConfig, Sync, SyncAlgorithm, UpdatePlacement
from taskflow.operators.tensor import Tensor
from taskflow.tasks.lower import SMALLEST_CHUNK_BYTES

LOOKS = 5  # pieces of a reader that are looked at


class Messages:
    """Of one graph. Placement is not looked at: pieces count as if each were on a processor of its own."""

    def __init__(self, graph: OperatorGraph) -> None:
        self.graph = graph
        self._places: dict[object, np.ndarray] = {}  # type: ignore[type-arg]
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
        """Of all tensors, there and back, that operators read or write of which ``changes`` differs from ``configs``."""
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
        """Of layers that are synchronised in these ways, by the cut of each layer's first operator."""
        total = 0
        for layer, sync in syncs.items():
            if layer in self._users:
                node = self._users[layer]
                rects = configs[node.name].partition(node).rects()
                cells = len({tuple(node.reads(rect).weights) for rect in rects})
                holders = len(rects) // cells
                divided = (
                    sync.place is UpdatePlacement.SPREAD or sync.travel is SyncAlgorithm.RING
                ) and sync.travel is not SyncAlgorithm.COLLECTIVE
                chunks = sync.chunks or sum(p.spec.nbytes for p in node.parameters) // cells // SMALLEST_CHUNK_BYTES
                total += 2 * (holders - 1) * cells * (min(holders, max(1, chunks)) if divided else 1)
        return total

    def _count(
        self, giver: Node, source: OpConfig, tensor: Tensor, taker: Node, target: OpConfig, index: int
    ) -> int:
        """From the pieces that write a tensor to those that read it."""
        written = (giver.operator, giver.specs, tensor.index, source.degrees, source.weights)
        key = (written, taker.operator, taker.specs, index, target.degrees, target.weights)
        if key not in self._counts:
            if written not in self._places:
                rects = [giver.writes(rect)[tensor.index] for rect in source.partition(giver).rects()]
                self._places[written] = np.array([[rect.lo, rect.hi] for rect in dict.fromkeys(rects)])
            low, high = self._places[written][:, 0], self._places[written][:, 1]
            pieces = target.partition(taker).rects()
            some = pieces[:: max(1, len(pieces) // LOOKS)]
            reads = [taker.reads(rect).inputs[index] for rect in some]
            met = sum(int(((low < rect.hi) & (high > rect.lo)).all(axis=1).sum()) for rect in reads)
            self._counts[key] = met * len(pieces) // len(some)
        return self._counts[key]
