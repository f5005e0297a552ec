"""LayerWork: the least that one device computes and keeps of each layer for a micro-batch, for bounds.

As the tables of prices, but everything is left out that not every plan needs: adding the gradients of weights up over
micro-batches, tasks that wait for the host, collectives. What a micro-batch keeps is counted once, for the layer of an operator
that needs it for its backward pass, so that sums over any stages are what their devices keep at least.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from taskflow.mapper import HybridPlan, sample_dim, samples
from taskflow.optimizer.grid.node_table import Array, NodeTable
from taskflow.optimizer.grid.stages import PlanSums
from taskflow.optimizer.grid.tables import corner
from taskflow.tasks.lower import gradient_flow


@dataclass(frozen=True, slots=True)
class LayerWork:
    """Arrays by layer, for one micro-batch on one device of a group. ``forward``, ``backward``: seconds of kernels.
    ``passes`` (2, layers): the same with exchanges within the layer that its own kernels wait for, if micro-batches are not split.
    ``begins``: seconds before which a device can begin none of its work, if a layer is the first that it has; ``ends``: seconds
    that a step still takes at least when it has done all of it. ``again`` (levels, layers): seconds of what each level of
    recomputation computes once more; ``kept`` (levels, layers): bytes that live from forward to backward. ``weights``,
    ``gradients``, ``state``: bytes, divided by the number of a group's devices that have the same of them; ``touched``: bytes that
    updates read and write, divided likewise. ``moved``: by which devices hold the same weights (`WeightGroups`), the bytes of
    these on one device, and of their gradients. ``whole`` (2, layers): bytes of weights and gradients on one device. ``waits``
    (levels, layers): seconds that a device waits for exchanges between operators that are computed again. ``adds``: seconds more
    that a backward task takes if it adds gradients of weights to earlier ones."""

    forward: Array
    backward: Array
    passes: Array
    begins: Array
    ends: Array
    again: Array
    kept: Array
    weights: Array
    gradients: Array
    state: Array
    touched: Array
    whole: Array
    moved: dict[str, Array]
    waits: Array
    adds: Array


class LayerWorks:
    """These for all t, c, e and micro-batches, each worked out once."""

    def __init__(self, sums: PlanSums) -> None:
        self.sums, self.tables = sums, sums.tables
        self.layers = max(1, sums.layers)
        graph = sums.graph
        varies = [bool(node.inputs) and sample_dim(node) is not None for node in graph]
        self._varies = np.array(varies, bool)
        self._varying = self._varies[self.tables.output_node]
        layers = [int(sums.layer_of[node.number]) for node in graph if node.inputs]
        self.axes = sums.axes
        self.whole = not self.axes.divided  # some operators may take all parts of a micro-batch at once
        self._in_order = layers == sorted(layers)  # a layer's tasks follow one another
        trained = gradient_flow(graph)[2]
        self._trained = np.array([parameter.name in trained for node in graph for parameter in node.parameters], bool)
        self._known: dict[Hashable, LayerWork] = {}
        self.weights: dict[object, Array] = {}  # on conditions of bounds (`LeastProgram`), which made a good one of some plan
        self.pass_seconds: dict[Hashable, tuple[Array, Array]] = {}  # (`pass_seconds`)
        self.link_seconds: dict[Hashable, Array] = {}  # of gradients and weights (`layer_kinds`)
        self._pairs: dict[tuple[str, bytes], Array] = {}
        self._timed: dict[Hashable, Array] = {}
        self._needed = [[x.node for x in node.inputs] for node in graph], [  # forward; and backward, in reversed time
            [x.node for x, wants in zip(node.inputs, wanted) if wants and active]
            for node, wanted, active in zip(graph, self.tables.wanted, self.tables.active.tolist())
        ]
        self._index_layers()
        self.levels = self._levels()

    def of(self, plan: HybridPlan) -> LayerWork:
        """Return the work for a plan's cuts and ``micro_batch``. Raises ValueError if the network cannot be cut so."""
        key = plan.passes_alike
        if key not in self._known:
            self._known[key] = self._make(plan)
        return self._known[key]

    def _make(self, plan: HybridPlan) -> LayerWork:
        table, layer = self.tables.of(plan), self.sums.layer_of
        seconds = self._seconds(plan)

        def by_layer(values: Array) -> Array:
            return np.bincount(layer, values, self.layers)

        sums, of = self.sums, self.sums.bytes_of(plan)
        once = np.zeros(len(self.tables.weight_node), bool)
        once[np.unique(self.tables.weight_name, return_index=True)[1]] = True
        own = layer[self.tables.weight_node]
        weights, gradients, state, touched = (
            np.bincount(own, values * once / table.weight_holders, self.layers)
            for values in (of.weights, of.gradients, of.state, of.touched)
        )
        of_all = table.weight_holders == plan.tensor * plan.context * plan.experts
        of_experts = table.weight_holders < plan.context * plan.experts
        trained = self._trained & once
        moved = {
            name: np.array([np.bincount(own, values * (trained & which), self.layers) for values in (of.weights, of.sent)])
            for name, which in (("all", of_all), ("tensor", ~of_all & ~of_experts), ("expert", ~of_all & of_experts))
        }
        whole = np.array([np.bincount(own, values * once, self.layers) for values in (of.weights, of.gradients)])
        passes = np.array([by_layer(seconds[:, 0]), by_layer(seconds[:, 1])])
        waits = np.zeros((len(self.levels), self.layers))
        if self._in_order and plan.experts == 1 and table.read_seconds.any():
            passes = self._with_exchanges(plan, table, seconds)
            waits = np.array([self._waits(table, level, seconds[:, 0]) for level in self.levels])
        spared = self.tables.gathered(plan)
        return LayerWork(
            by_layer(seconds[:, 0]), by_layer(seconds[:, 1]), passes,
            self._begins(seconds[:, 0], layer, self.layers, self._needed[0]),
            self._begins(seconds[:, 1], layer, self.layers, self._needed[1]),
            np.array([by_layer(seconds[:, 0] * sums.masks[level]) for level in self.levels]),
            np.array([self._kept(table, level, spared) for level in self.levels]), weights, gradients, state, touched, whole, moved,
            waits, by_layer(np.maximum(0.0, table.seconds[:, 2] - table.alone[:, 2])),
        )

    def _levels(self) -> tuple[str, ...]:
        """The levels of recomputation that plans choose among. ``whole`` takes longer than ``full``, and keeps less only if an
        operator whose results are kept for others, the last of a layer, has something for its own backward pass."""
        masks, dropped = self.sums.masks, self.sums.dropped
        if not {"full", "whole"} <= masks.keys():
            return tuple(masks)
        last = [node for node in self.sums.graph if masks["whole"][node.number] and not dropped["whole"][node.number]]
        less = any(node.operator.keeps(node.specs).outputs or node.operator.saves(node.specs, node.space) for node in last)
        return tuple(level for level in masks if less or level != "whole")

    def of_stages(self, plan: HybridPlan, micro_batches: int, enough: float) -> float:
        """Return the seconds that the slowest stage takes at least, if there are fewer layers than stages: these are the same then
        in all plans. Or return ``enough`` if it takes no less."""
        stage, seconds = self.sums.stages(plan), self._seconds(plan)
        takes: Array = micro_batches * np.bincount(stage, seconds.sum(axis=1), plan.pipeline)
        if takes.max() < enough:
            takes = takes + self._begins(seconds[:, 0], stage, plan.pipeline, self._needed[0])
        return min(enough, float(takes.max()))

    def _seconds(self, plan: HybridPlan) -> Array:
        """(nodes, 2): seconds of the kernels of each node's forward and backward task. Where pieces are unequal, of the first
        or the last device of a group, whichever has more to do in all."""
        key = plan.passes_alike
        if key not in self._timed:
            self._timed[key] = self._make_seconds(plan)
        return self._timed[key]

    def _make_seconds(self, plan: HybridPlan) -> Array:
        tables = self.tables
        cuts, count = tables.group_cuts(plan), samples(tables.graph) // (plan.experts * (plan.micro_batch or 1))
        found = np.zeros((2, len(cuts.first), 2))
        for i, (node, adds) in enumerate(cuts.first):
            if not node.inputs or sample_dim(node) is None:  # what is not in micro-batches runs once, and counts nothing
                continue
            degrees = tables.degrees(node, cuts.cuts[node.number], count)
            ends = corner(node, degrees, False), corner(node, degrees, True)
            for k, rect in enumerate(ends):
                if k and rect == ends[0]:
                    found[1, i] = found[0, i]
                else:
                    spent = tables.piece_seconds(node, rect, adds, False)
                    found[k, i] = spent[0], spent[2]
        both: Array = found[:, cuts.which]
        chosen: Array = both[int(np.argmax(both.sum(axis=(1, 2))))]
        return chosen

    def _with_exchanges(self, plan: HybridPlan, table: NodeTable, seconds: Array) -> Array:
        """(2, layers): seconds of a layer's tasks forward and backward, one after the other. Each waits for what comes from within
        the layer. A collective begins when the task ends that makes the last part of what it moves."""
        which = self.tables.group_cuts(plan).which
        known: dict[object, tuple[float, float]] = {}
        found = []
        for nodes, edges in self._edges:
            key = tuple(edges), which[nodes].tobytes()
            if key not in known:
                places = np.array([place for place, _, _ in edges], np.int64) + self._first_read[nodes[0]]
                known[key] = self._through(nodes, edges, seconds[nodes].tolist(), table.read_seconds[places].tolist())
            found.append(known[key])
        return np.array(found).T

    def _through(
        self, nodes: Array, edges: Sequence[tuple[int, int, int]], seconds: Sequence[Sequence[float]],
        moves: Sequence[Sequence[float]],
    ) -> tuple[float, float]:
        """The two of a layer whose nodes are numbered from its first. ``moves``: seconds of each edge, forward and backward."""
        active, found = self.tables.active[nodes].tolist(), []
        for back in (0, 1):
            before: list[list[tuple[int, float]]] = [[] for _ in seconds]
            for (_, source, reader), takes in zip(edges, moves):
                if not back:
                    before[reader].append((source, takes[0]))
                elif active[reader]:
                    before[source].append((reader, takes[1]))
            ends, now = [0.0] * len(seconds), 0.0
            for number in reversed(range(len(seconds))) if back else range(len(seconds)):
                takes_own = seconds[number][back]
                if takes_own > 0:
                    ready = max((ends[other] + moved for other, moved in before[number] if moved > 0 < ends[other]), default=0.0)
                    ends[number] = now = max(now, ready) + takes_own
                else:  # perhaps no task of the chain
                    ends[number] = max((ends[other] + moved for other, moved in before[number]), default=0.0)
            found.append(now)
        return found[0], found[1]

    def _index_layers(self) -> None:
        """Of each layer the nodes, and what they read of each other: the place among the reads of the layer, source and reader, all
        numbered from its first."""
        graph, of = self.sums.graph, self.sums.layer_of.tolist()
        nodes: list[list[int]] = [[] for _ in range(self.layers)]
        edges: list[list[tuple[int, int, int]]] = [[] for _ in range(self.layers)]
        self._first_read: list[int] = []
        place = 0
        for node in graph:
            own = of[node.number]
            nodes[own].append(node.number)
            self._first_read.append(place)
            first = nodes[own][0]
            for tensor in node.inputs:
                if of[tensor.node] == own:
                    edges[own].append((place - self._first_read[first], nodes[own].index(tensor.node), len(nodes[own]) - 1))
                place += 1
        self._edges = [(np.array(of_layer, np.int64), tuple(some)) for of_layer, some in zip(nodes, edges)]

    def _waits(self, table: NodeTable, level: str, seconds: Array) -> Array:
        """By layer, the seconds between operators that are computed again, of which one reads what an exchange brings from the one
        before it. Only those count that are neighbours, and are computed at once for whatever backward task wants them first."""
        saves = table.saved > 0
        key = level, saves.tobytes()
        if key not in self._pairs:
            self._pairs[key] = self._neighbours(level, saves)
        places, sources, readers = self._pairs[key]
        moves = table.read_seconds[places, 0] * (seconds[sources] > 0) * (seconds[readers] > 0)
        return np.bincount(self.sums.layer_of[readers], moves, self.layers)

    def _neighbours(self, level: str, saves: Array) -> Array:
        """(3, pairs): places of reads, with sources and readers, of all such neighbours."""
        again = self.sums.masks[level]
        batches = [self._batches(level, saves, alone) for alone in (True, False)]
        last: dict[int, int] = {}  # by layer, the operator before
        pairs, place = [], 0
        for node in self.sums.graph:
            own = int(self.sums.layer_of[node.number])
            for tensor in node.inputs:
                if again[node.number] and last.get(own) == tensor.node:
                    of = [(some.get(node.number, -1), some.get(tensor.node, -2)) for some in batches]
                    if all(one == other for one, other in of):
                        pairs.append((place, tensor.node, node.number))
                place += 1
            if again[node.number]:
                last[own] = node.number
        return np.array(pairs, np.int64).reshape(-1, 3).T

    def _batches(self, level: str, saves: Array, alone: bool) -> dict[int, int]:
        """Of each operator that is computed again, for which backward task of its layer that is, as in
        ``tasks.lower.again``. If not ``alone``, what other layers read comes first."""
        tables, graph, layer = self.tables, self.sums.graph, self.sums.layer_of
        again, always = self.sums.dropped[level], self.sums.rerun[level]
        found: dict[int, int] = {}

        def compute(number: int, batch: int) -> None:
            left = [number]
            while left:
                one = left.pop()
                if (again[one] or always[one]) and one not in found and (one != number or batch >= 0):
                    found[one] = batch
                elif one != number:
                    continue
                left += [x.node for x in graph.nodes[one].inputs if again[x.node] and layer[x.node] == layer[one]]

        if not alone:
            for node in graph:
                for tensor in node.inputs:
                    if again[tensor.node] and layer[tensor.node] != layer[node.number]:
                        compute(tensor.node, len(graph))
        for node in reversed(graph.nodes):
            if tables.active[node.number]:
                keeps = node.operator.keeps(node.specs)
                if always[node.number] or (again[node.number] and (keeps.outputs or saves[node.number])):
                    compute(node.number, node.number)
                elif keeps.inputs:
                    for tensor in node.inputs:
                        if again[tensor.node] and layer[tensor.node] == layer[node.number]:
                            compute(tensor.node, node.number)
        return found

    def _begins(self, seconds: Array, layer: Array, count: int, needed: Sequence[Sequence[int]]) -> Array:
        """By layer, the seconds until what its first operator that needs an earlier layer reads is there, less what may be done
        before that. A layer's operators are run one after the other, those of different layers perhaps beside each other.
        ``needed``: by operator, the others that it waits for. With backward seconds, the time of a step runs backwards. The
        result does not fall along the layers."""
        of, ends = layer.tolist(), [0.0] * len(seconds)
        at, before, found = [0.0] * count, [0.0] * count, [-1.0] * count
        for number, (needs, own, takes) in enumerate(zip(needed, of, seconds.tolist())):
            there = 0.0
            for other in needs:
                if ends[other] > there:
                    there = ends[other]
            if found[own] < 0 and any(of[other] < own for other in needs):
                found[own] = max(0.0, there - before[own])
            before[own] += takes
            if at[own] > there:
                there = at[own]
            at[own] = ends[number] = there + takes
        begins: Array = np.minimum.accumulate(np.maximum(np.array(found), 0.0)[::-1])[::-1]
        return begins

    def _kept(self, table: NodeTable, level: str, spared: Array) -> Array:
        """Bytes by layer of what a micro-batch keeps; of operators without samples nothing counts. ``spared``: reads that a plan
        may bring a second time and not keep."""
        tables, layer = self.tables, self.sums.layer_of
        tensor, reader, source = tables.read_tensor, tables.read_node, tables.output_node[tables.read_tensor]
        again, dropped = self.sums.masks[level], self.sums.dropped[level]
        fresh = ~dropped[tables.output_node] & self._varying
        wanted = (tables.read_kept | again[reader]) & self._varies[source]
        here = wanted & table.read_local
        at = np.full(len(tables.output_node), -1)
        places = np.flatnonzero(here)
        at[tensor[places[::-1]]] = layer[reader[places[::-1]]]  # of the first reader
        own = tables.output_kept & ~again[tables.output_node]
        at[own] = layer[tables.output_node[own]]
        needed = fresh & (at >= 0)
        found: Array = np.bincount(at[needed], table.outputs[needed], self.layers)
        found += np.bincount(layer, table.saved * ~again * tables.active * self._varies, self.layers)
        kept = wanted & ~(spared & ~again[reader])
        chosen = np.flatnonzero(kept & ~table.read_local & ~dropped[source])
        first = chosen[np.unique(table.read_rect[chosen], return_index=True)[1]]
        found += np.bincount(layer[reader[first]], table.read_bytes[first], self.layers)
        return found
