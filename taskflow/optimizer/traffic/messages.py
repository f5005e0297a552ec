"""Messages: about how many messages a plan needs between operators, estimated from a few pieces of each.

On a thousand processors, a layer whose pieces each read what all others write needs a million messages for each tensor. Such a
plan takes minutes and gigabytes to simulate, and would be refused anyway. So a search asks here first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from taskflow.graph import Node, OperatorGraph
from taskflow.machine import Machine
from taskflow.mapper import OpConfig, Sync
from taskflow.operators.tensor import Tensor
from taskflow.optimizer.cost import Costs
from taskflow.optimizer.traffic.edges import Corners, Vector, common, corners
from taskflow.optimizer.traffic.synchronisation import sync_messages

LARGE = 1 << 24  # bytes of the message that, beside an empty one, says how fast a route is


class Links:
    """Links of a machine. Messages are given as bytes by source x processors + target; what stays on a processor is free. The
    seconds of a message are assumed to be linear in its bytes, and equal for all routes of a class. ``count``: number of links
    that any route uses, numbered in the order of their first use. ``look_up`` is called now and then, and may raise."""

    def __init__(self, machine: Machine, costs: Costs, look_up: Callable[[], None] = lambda: None) -> None:
        n = len(machine.processors)
        self._start, self._each = np.zeros(n * n), np.zeros(n * n)
        rates: dict[object, tuple[float, float]] = {}
        numbers: dict[int, int] = {}
        pairs: list[int] = []
        links: list[int] = []
        for source in range(n):
            look_up()
            for target in range(n):
                if source == target:
                    continue
                pair, alike = source * n + target, costs.route_class(source, target)
                if alike not in rates:
                    start = costs.copy(source, target, 0)
                    rates[alike] = (start, (costs.copy(source, target, LARGE) - start) / LARGE)
                self._start[pair], self._each[pair] = rates[alike]
                for link in machine.route(source, target):
                    pairs.append(pair)
                    links.append(numbers.setdefault(link.number, len(numbers)))
        self.count = len(numbers)
        self._pairs, self._links = np.array(pairs, dtype=np.int64), np.array(links, dtype=np.int64)
        order = np.argsort(self._links, kind="stable")  # pairs of one link side by side
        self._grouped, self._first = self._pairs[order], np.flatnonzero(np.diff(self._links[order], prepend=-1))

    def busy(self, nbytes: Vector) -> Vector:
        """Return the busy seconds of every link."""
        if not self.count:
            return np.zeros(0)
        return np.asarray(np.bincount(self._links, self._seconds(nbytes)[self._pairs], self.count), np.float64)

    def busiest(self, nbytes: Vector) -> Vector:
        """Return the seconds of the busiest link for each row of messages."""
        if not self.count:
            return np.zeros(len(nbytes))
        found: Vector = np.add.reduceat(self._seconds(nbytes)[:, self._grouped], self._first, axis=1).max(axis=1)
        return found

    def _seconds(self, nbytes: Vector) -> Vector:
        return np.where(nbytes > 0, self._start + self._each * nbytes, 0.0)


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
