"""LayerWork: the least that one device computes and keeps of each layer for a micro-batch, for bounds.

As the tables of prices, but everything is left out that not every plan needs: adding the gradients of weights up over
micro-batches, tasks that wait for the host, collectives. What a micro-batch keeps is counted once, for the layer of an operator
that needs it for its backward pass, so that sums over any stages are what their devices keep at least.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from taskflow.mapper import HybridPlan, sample_dim, samples
from taskflow.optimizer.grid.layered import LayeredPlan
from taskflow.optimizer.grid.stages import PlanSums
from taskflow.optimizer.grid.tables import Array, NodeTable, corner


@dataclass(frozen=True, slots=True)
class LayerWork:
    """Arrays by layer, for one micro-batch on one device of a group. ``forward``, ``backward``: seconds of kernels. ``begins``:
    seconds before which a device can begin none of its work, if a layer is the first that it has. ``again``
    (levels, layers): seconds of what each level of recomputation computes once more; ``kept`` (levels, layers): bytes that live
    from forward to backward. ``weights``, ``gradients``, ``state``: bytes, divided by the number of a group's devices that have
    the same of them; ``touched``: bytes that updates read and write, divided likewise."""

    forward: Array
    backward: Array
    begins: Array
    again: Array
    kept: Array
    weights: Array
    gradients: Array
    state: Array
    touched: Array


class LayerWorks:
    """These for all t, c, e and micro-batches, each worked out once."""

    def __init__(self, sums: PlanSums) -> None:
        self.sums, self.tables = sums, sums.tables
        self.layers = max(1, sums.layers)
        graph = sums.graph
        varies = [bool(node.inputs) and sample_dim(node) is not None for node in graph]
        self._varies = np.array(varies, bool)
        self._varying = self._varies[self.tables.output_node]
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
        return LayerWork(
            by_layer(seconds[:, 0]), by_layer(seconds[:, 1]), self._begins(seconds[:, 0], layer, self.layers),
            np.array([by_layer(seconds[:, 0] * again) for again in masks]),
            np.array([self._kept(table, again) for again in masks]), weights, gradients, state, touched,
        )

    def of_stages(self, plan: HybridPlan, micro_batches: int) -> float:
        """Return the seconds that the slowest stage takes at least, if there are fewer layers than stages: these are the same then
        in all plans."""
        stage, seconds = self.sums.stages(LayeredPlan(plan)), self._seconds(plan)
        begins = self._begins(seconds[:, 0], stage, plan.pipeline)
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
            if not node.inputs:
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

    def _begins(self, seconds: Array, layer: Array, count: int) -> Array:
        """By layer, the seconds until what its first operator that needs an earlier layer reads is there, less what may be done
        before that. A layer's operators are run one after the other, those of different layers perhaps beside each other."""
        ends = np.zeros(len(seconds))
        at, before, found = np.zeros(count), np.zeros(count), np.full(count, -1.0)
        for node in self.sums.graph:
            number = node.number
            own = layer[number]
            there = max((ends[x.node] for x in node.inputs), default=0.0)
            if found[own] < 0 and any(layer[x.node] < own for x in node.inputs):
                found[own] = max(0.0, there - before[own])
            before[own] += seconds[number]
            at[own] = ends[number] = max(at[own], there) + seconds[number]
        begins: Array = np.maximum(found, 0.0)
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
