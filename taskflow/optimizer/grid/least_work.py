"""LayerWork: the least that one device computes and keeps of each layer for a micro-batch, for bounds.

As the tables of prices, but everything is left out that not every plan needs: adding the gradients of weights up over
micro-batches, tasks that wait for the host, collectives. What a micro-batch keeps is counted once, for the layer of an operator
that needs it for its backward pass, so that sums over any stages are what their devices keep at least.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from taskflow.mapper import HybridPlan, sample_dim, samples
from taskflow.optimizer.grid.layered import LayeredPlan
from taskflow.optimizer.grid.plans import PlanAxes
from taskflow.optimizer.grid.stages import PlanSums
from taskflow.optimizer.grid.tables import Array, NodeTable, corner
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
        self.whole = not PlanAxes(graph, self.tables.machine).divided  # some operators may take all parts of a micro-batch at once
        self._in_order = layers == sorted(layers)  # a layer's tasks follow one another
        trained = gradient_flow(graph)[2]
        self._trained = np.array([parameter.name in trained for node in graph for parameter in node.parameters], bool)
        self._known: dict[tuple[int, int, int, int], LayerWork] = {}

    def of(self, plan: HybridPlan) -> LayerWork:
        """Return the work for a plan's t, c, e and ``micro_batch``. Raises ValueError if the network cannot be cut so."""
        key = plan.tensor, plan.context, plan.experts, plan.micro_batch or 1
        if key not in self._known:
            self._known[key] = self._make(plan)
        return self._known[key]

    def _make(self, plan: HybridPlan) -> LayerWork:
        table, layer = self.tables.of(plan), self.sums.layer_of
        seconds = self._seconds(plan)

        def by_layer(values: Array) -> Array:
            return np.bincount(layer, values, self.layers)

        masks, sums = list(self.sums.masks.values()), self.sums
        once = np.zeros(len(self.tables.weight_node), bool)
        once[np.unique(self.tables.weight_name, return_index=True)[1]] = True
        own, buffers = layer[self.tables.weight_node], sums.rule.buffers if sums.rule else 0
        elements, nbytes = table.weight_elements * once, table.weight_bytes * once
        masters = np.where(sums.wide * elements > nbytes, sums.wide, 0)
        weights, gradients, state, touched = (
            np.bincount(own, values / table.weight_holders, self.layers) for values in (
                nbytes, elements * sums.wide, elements * (sums.wide * buffers + masters), elements * sums.touched
            )
        )  # fmt: skip
        of_all = table.weight_holders == plan.tensor * plan.context * plan.experts
        of_experts = table.weight_holders < plan.context * plan.experts
        trained = self._trained
        moved = {
            name: np.array([np.bincount(own, values * (trained & which), self.layers) for values in (nbytes, elements * sums.wide)])
            for name, which in (("all", of_all), ("tensor", ~of_all & ~of_experts), ("expert", ~of_all & of_experts))
        }
        whole = np.array([np.bincount(own, values, self.layers) for values in (nbytes, elements * sums.wide)])
        passes = np.array([by_layer(seconds[:, 0]), by_layer(seconds[:, 1])])
        waits = np.zeros((len(masks), self.layers))
        if self._in_order and plan.experts == 1 and table.read_seconds.any():
            passes = self._with_exchanges(table, seconds)
            waits = np.array([self._waits(table, again, seconds[:, 0]) for again in masks])
        wanted = [[True] * len(node.inputs) for node in sums.graph]
        return LayerWork(
            by_layer(seconds[:, 0]), by_layer(seconds[:, 1]), passes, self._begins(seconds[:, 0], layer, self.layers, wanted),
            self._begins(seconds[:, 1], layer, self.layers, [
                [bool(active) and wants for wants in wanted] for wanted, active in zip(self.tables.wanted, self.tables.active)
            ]),
            np.array([by_layer(seconds[:, 0] * again) for again in masks]),
            np.array([self._kept(table, again) for again in masks]), weights, gradients, state, touched, whole, moved,
            waits, by_layer(np.maximum(0.0, table.seconds[:, 2] - table.alone[:, 2])),
        )

    def of_stages(self, plan: HybridPlan, micro_batches: int) -> float:
        """Return the seconds that the slowest stage takes at least, if there are fewer layers than stages: these are the same then
        in all plans."""
        stage, seconds = self.sums.stages(LayeredPlan(plan)), self._seconds(plan)
        wanted = [[True] * len(node.inputs) for node in self.sums.graph]
        begins = self._begins(seconds[:, 0], stage, plan.pipeline, wanted)
        takes: Array = begins + micro_batches * np.bincount(stage, seconds.sum(axis=1), plan.pipeline)
        return float(takes.max())

    def _seconds(self, plan: HybridPlan) -> Array:
        """(nodes, 2): seconds of the kernels of each node's forward and backward task. Where pieces are unequal, of the first
        or the last device of a group, whichever has more to do in all."""
        tables = self.tables
        t, c, e, mb = plan.tensor, plan.context, plan.experts, plan.micro_batch or 1
        cuts, count = tables.group_cuts(t, c, e), samples(tables.graph) // (e * mb)
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

    def _with_exchanges(self, table: NodeTable, seconds: Array) -> Array:
        """(2, layers): seconds of a layer's tasks forward and backward, one after the other, each once what it waits for within the
        layer has come: a collective begins when the task ends that makes the last part of what it moves."""
        tables, layer = self.tables, self.sums.layer_of
        active, reads, place = tables.active.tolist(), table.read_seconds.tolist(), 0
        sources: list[list[int]] = [[] for _ in seconds]
        readers: list[list[int]] = [[] for _ in seconds]
        incoming: list[list[tuple[int, float]]] = [[] for _ in seconds]  # of each node: source, seconds
        returning: list[list[tuple[int, float]]] = [[] for _ in seconds]  # of each node: reader, seconds
        for node in self.sums.graph:
            for tensor in node.inputs:
                ahead, back = reads[place]
                place += 1
                if layer[tensor.node] == layer[node.number]:
                    sources[node.number].append(tensor.node)
                    if active[node.number]:
                        readers[tensor.node].append(node.number)
                    if ahead > 0:
                        incoming[node.number].append((tensor.node, ahead))
                    if back > 0 and active[node.number]:
                        returning[tensor.node].append((node.number, back))
        found = np.zeros((2, self.layers))
        both = (range(len(seconds)), incoming, sources), (range(len(seconds))[::-1], returning, readers)
        for i, (order, waits, before) in enumerate(both):
            ends, now = [0.0] * len(seconds), [0.0] * self.layers
            for number in order:
                own, takes = int(layer[number]), float(seconds[number, i])
                ready = max((ends[other] + moves for other, moves in waits[number] if ends[other] > 0), default=0.0)
                if takes > 0:
                    ends[number] = now[own] = max(now[own], ready) + takes
                else:  # perhaps no task of the chain
                    ends[number] = max(ready, *(ends[other] for other in before[number]), 0.0)
            found[i] = now
        return found

    def _waits(self, table: NodeTable, again: Array, seconds: Array) -> Array:
        """By layer, the seconds between operators that are computed again, of which one reads what an exchange brings from the one
        before it. Only those count that are neighbours, and are computed at once for whatever backward task wants them first."""
        found = np.zeros(self.layers)
        batches = [self._batches(table, again, alone) for alone in (True, False)]
        last: dict[int, int] = {}  # by layer, the operator before
        place = 0
        for node in self.sums.graph:
            own = int(self.sums.layer_of[node.number])
            for tensor in node.inputs:
                ahead = float(table.read_seconds[place, 0])
                place += 1
                if ahead > 0 and again[node.number] and last.get(own) == tensor.node and seconds[tensor.node] > 0:
                    both = [of.get(node.number, -1) for of in batches] == [of.get(tensor.node, -2) for of in batches]
                    found[own] += ahead * (both and seconds[node.number] > 0)
            if again[node.number]:
                last[own] = node.number
        return found

    def _batches(self, table: NodeTable, again: Array, alone: bool) -> dict[int, int]:
        """Of each operator that is computed again, for which backward task of its layer that is, as in ``tasks.lower.recompute``. If
        not ``alone``, what other layers read comes first."""
        tables, graph, layer = self.tables, self.sums.graph, self.sums.layer_of
        found: dict[int, int] = {}

        def compute(number: int, batch: int) -> None:
            left = [number]
            while left:
                one = left.pop()
                if again[one] and one not in found and (one != number or batch >= 0):
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
                if again[node.number] and (keeps.outputs or table.saved[node.number] > 0):
                    compute(node.number, node.number)
                elif keeps.inputs:
                    for tensor in node.inputs:
                        if again[tensor.node] and layer[tensor.node] == layer[node.number]:
                            compute(tensor.node, node.number)
        return found

    def _begins(self, seconds: Array, layer: Array, count: int, wanted: Sequence[Sequence[bool]]) -> Array:
        """By layer, the seconds until what its first operator that needs an earlier layer reads is there, less what may be done
        before that. A layer's operators are run one after the other, those of different layers perhaps beside each other.
        ``wanted``: which inputs are waited for. With backward seconds, the time of a step runs backwards. The result does not fall
        along the layers."""
        ends = np.zeros(len(seconds))
        at, before, found = np.zeros(count), np.zeros(count), np.full(count, -1.0)
        for node in self.sums.graph:
            number = node.number
            own = layer[number]
            needs = [x.node for x, waits in zip(node.inputs, wanted[number]) if waits]
            there = max((ends[x] for x in needs), default=0.0)
            if found[own] < 0 and any(layer[x] < own for x in needs):
                found[own] = max(0.0, there - before[own])
            before[own] += seconds[number]
            at[own] = ends[number] = max(at[own], there) + seconds[number]
        begins: Array = np.minimum.accumulate(np.maximum(found, 0.0)[::-1])[::-1]
        return begins

    def _kept(self, table: NodeTable, again: Array) -> Array:
        """Bytes by layer of what a micro-batch keeps; of operators without samples nothing counts."""
        tables, layer = self.tables, self.sums.layer_of
        tensor, reader, source = tables.read_tensor, tables.read_node, tables.output_node[tables.read_tensor]
        fresh = ~again[tables.output_node] & self._varying
        wanted = (tables.read_kept | again[reader]) & self._varies[source]
        here = wanted & table.read_local
        at = np.full(len(tables.output_node), -1)
        places = np.flatnonzero(here)
        at[tensor[places[::-1]]] = layer[reader[places[::-1]]]  # of the first reader
        at[tables.output_kept] = layer[tables.output_node[tables.output_kept]]
        needed = fresh & (at >= 0)
        found: Array = np.bincount(at[needed], table.outputs[needed], self.layers)
        found += np.bincount(layer, table.saved * ~again * tables.active * self._varies, self.layers)
        chosen = np.flatnonzero(wanted & ~table.read_local & ~again[source])
        first = chosen[np.unique(table.read_rect[chosen], return_index=True)[1]]
        found += np.bincount(layer[reader[first]], table.read_bytes[first], self.layers)
        return found
