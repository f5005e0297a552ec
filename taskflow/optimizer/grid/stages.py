"""StageSums: sums of a table's rows over the stages of a pipeline, including recomputation, and what a device keeps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from taskflow.mapper import (
    BucketLayer,
    HadAgain,
    HybridPlan,
    block_numbers,
    blocks_of,
    divided,
    level_again,
    stages_of,
    summed_last,
)
from taskflow.optimizer.grid.node_table import Array, NodeTable
from taskflow.optimizer.grid.plans import PlanAxes
from taskflow.optimizer.grid.tables import GraphTables
from taskflow.optimizer.grid.weight_bytes import WeightBytesOf
from taskflow.rules import UpdateRule
from taskflow.tasks.lower import runs_again


@dataclass(frozen=True, slots=True)
class StageSums:
    """Sums by stage, for one micro-batch on one device. ``seconds`` (stages, 6): as in a table, including recomputation.
    ``sums`` (stages, 2): seconds of collectives, forward and backward. ``members`` (stages, 2): how many members these have
    together. ``hidden``: seconds of backward collectives that ``sums`` does not have, since gradients of weights are computed
    meanwhile. ``kept``: bytes that live from its forward to its
    backward pass; ``more``: what a program keeps beyond that. ``passing``: a lower bound on the bytes that live within a pass.
    ``crossing``: bytes that the next stages
    read.
    """

    seconds: Array
    sums: Array
    members: Array
    hidden: Array
    kept: Array
    more: Array
    passing: Array
    crossing: float


LayerBytes = tuple[tuple[tuple[int, int, int, bool], int], ...]
"""Bytes of gradients of a layer, block or bucket that go through an all-reduce and through a reduce-scatter, and of its weights
that go through an all-gather; whether they are of experts, which fewer devices hold; and how many of these send as many."""


@dataclass(frozen=True, slots=True)
class StageWeights:
    """Bytes of each stage's weights on one device. ``held``, ``gradients`` and ``state`` are stored there. ``gathered``: the
    largest layer whose weights are gathered; of blocks those of two. ``reduced``: the largest whose gradients are whole until they
    are summed by shares. ``layers``: of each stage, what its layers send after
    the passes. ``each_pass``: whether some weights are gathered or reduced in every pass. ``updated``: bytes that the update
    reads and writes."""

    held: Array
    gradients: Array
    state: Array
    gathered: Array
    reduced: Array
    layers: tuple[LayerBytes, ...]
    each_pass: bool
    updated: Array


class PlanSums:
    """Sums of the tables of a graph for plans, cached. ``all_of_a_layer``: the word with which searches compute all of a layer
    again, ``full`` or ``whole``; ``levels``: all words that they choose among, as far as these differ."""

    def __init__(self, tables: GraphTables, rule: UpdateRule | None, all_of_a_layer: str = "full") -> None:
        self.tables, self.graph, self.rule, self.all_of_a_layer = tables, tables.graph, rule, all_of_a_layer
        numbers = block_numbers(self.graph)
        self.layers = max(numbers.values(), default=-1) + 1
        self.layer_of = np.array([numbers.get(node.name, 0) for node in self.graph], np.int64)
        self.masks: dict[str, Array] = {"none": np.zeros(len(self.graph), bool)}
        """By level, the operators that are computed again in fact: of those that a level names, whose results some backward task
        needs; and those that run again in any case."""
        self.dropped: dict[str, Array] = {"none": np.zeros(len(self.graph), bool)}
        """By level, those of them whose results are not kept."""
        self.rerun: dict[str, Array] = {"none": np.zeros(len(self.graph), bool)}
        """By level, those of them that run again before their own backward pass, whatever it reads."""
        active = set(np.flatnonzero(tables.active).tolist())
        known = {HadAgain()}
        for level in ("selective", "full", "light", "alternate", "linear", "whole"):
            if not self.layers and level != "selective":
                continue
            again = level_again(self.graph, level)
            if again not in known:
                known.add(again)
                self.masks[level] = np.array(runs_again(self.graph, active, again), bool)
                for masks, of in ((self.dropped, again.recompute), (self.rerun, again.rerun)):
                    masks[level] = self.masks[level] & np.array([node.name in of for node in self.graph], bool)
        other = {"full": "whole", "whole": "full"}[all_of_a_layer]
        self.levels = tuple(level for level in self.masks if level != other)
        self._stages: dict[tuple[int, tuple[int, ...]], Array] = {}
        self._sums: dict[object, StageSums] = {}
        self._adding: dict[object, Array] = {}
        self._weights: dict[object, StageWeights] = {}
        self._buckets: dict[object, Array] = {}
        blocks, units = blocks_of(self.graph), dict[str, int]()
        layers = [parameter.layer for node in self.graph for parameter in node.parameters]
        self._unit = np.array([units.setdefault(blocks.get(layer, layer), len(units)) for layer in layers], np.int64)
        self._first = np.unique(self._unit, return_index=True)[1]
        numbers = {name: number for number, name in enumerate(dict.fromkeys(layers))}
        self._layer = np.array([numbers[layer] for layer in layers], np.int64)
        self._blocks = [blocks.get(layer, layer) for layer in numbers]
        late = summed_last(self.graph)
        self._late = [layer in late for layer in numbers]
        self.bytes_of = WeightBytesOf(tables, rule)

    @cached_property
    def axes(self) -> PlanAxes:
        """The values of each degree, found when they are first needed."""
        return PlanAxes(self.graph, self.tables.machine, self.all_of_a_layer)

    def stages(self, plan: HybridPlan) -> Array:
        """Return the stage of each node."""
        key = plan.pipeline * plan.virtual, plan.stages
        if key not in self._stages:
            found: Mapping[str, int] = stages_of(self.graph, *key)
            self._stages[key] = np.array([found[node.name] for node in self.graph], np.int64)
        return self._stages[key]

    def again(self, plan: HybridPlan) -> Array:
        """Return the nodes that are computed again."""
        return self._mixed(plan, self.masks)

    def not_kept(self, plan: HybridPlan) -> Array:
        """Return those of them whose results are not kept for the backward pass."""
        return self._mixed(plan, self.dropped)

    def always(self, plan: HybridPlan) -> Array:
        """Return those of them that run again before their own backward pass, whatever it reads."""
        return self._mixed(plan, self.rerun)

    def _mixed(self, plan: HybridPlan, masks: Mapping[str, Array]) -> Array:
        if not plan.recompute_layers:
            return masks[plan.recompute]
        found = np.zeros(len(self.graph), bool)
        levels = np.array(plan.recompute_layers)[self.layer_of]
        for level, mask in masks.items():
            found |= mask & (levels == level)
        return found

    def sums(self, plan: HybridPlan) -> StageSums:
        """Return what the passes of a plan's stages take and keep."""
        key = (plan.cuts, plan.micro_batch, plan.pipeline, plan.virtual, plan.stages, plan.has_again,
               plan.schedule.rank(plan.pipeline, plan.pipeline),
               plan.zero > 1)  # fmt: skip
        if key not in self._sums:
            self._sums[key] = self._add_up(plan, self.tables.of(plan))
        return self._sums[key]

    def adding(self, plan: HybridPlan) -> Array:
        """Return the seconds that adding to the gradients of earlier micro-batches takes on the last stage: of device and host, and
        where each task is by itself."""
        key = plan.cuts, plan.micro_batch, plan.pipeline, plan.virtual, plan.stages
        if key not in self._adding:
            table, own = self.tables.of(plan), self.stages(plan) == plan.pipeline * plan.virtual - 1
            self._adding[key] = (table.seconds[own] - table.alone[own]).sum(axis=0)[[2, 3, 5]]
        return self._adding[key]

    def _add_up(self, plan: HybridPlan, table: NodeTable) -> StageSums:
        tables, plan = self.tables, plan
        count, stage = plan.pipeline * plan.virtual, self.stages(plan)
        again, dropped = self.again(plan), self.not_kept(plan)
        source = tables.output_node[tables.read_tensor]
        reader = tables.read_node
        rank = np.array([plan.schedule.rank(s, plan.pipeline) for s in range(count)])[stage]
        crosses = rank[source] != rank[reader]
        arrives = np.zeros(len(reader), bool)  # what several operators of a stage read comes once
        arrives[np.unique(table.read_rect * count + stage[reader], return_index=True)[1]] = True
        arrives &= crosses

        def by_stage(nodes: Array, values: Array) -> Array:
            return np.bincount(stage[nodes], values, count)

        everything = np.arange(len(stage))
        each = tables.seconds(plan)
        seconds = np.stack([by_stage(everything, each[:, i]) for i in range(6)], axis=1)
        read_again = dropped[source] & (again[reader] | tables.read_kept)
        sums, members = (
            np.stack([by_stage(reader, np.where(crosses, 0.0, of[:, i])) for i in range(2)], axis=1)
            for of in (table.read_seconds, table.read_members)
        )
        together = table.read_together * arrives
        sums += np.stack([by_stage(reader, together), by_stage(source, together)], axis=1)
        hidden = by_stage(reader, np.where(crosses, 0.0, table.read_hidden))
        program = tables.device.program
        if program is not None and program.sums_beside_weights:
            seconds[:, 2] += (1 - program.sums_beside_weights) * by_stage(reader, np.where(crosses, 0.0, table.read_beside))
        if again.any():
            for backward, forward in ((2, 0), (3, 1), (5, 4)):
                seconds[:, backward] += by_stage(everything, each[:, forward] * again)
            sums[:, 1] += by_stage(reader, table.read_seconds[:, 0] * (read_again & ~crosses))
            members[:, 1] += by_stage(reader, table.read_members[:, 0] * (read_again & ~crosses))
        anew = tables.brought_again(plan) & tables.read_kept & ~table.read_local & ~crosses & ~dropped[source] & ~again[reader]
        sums[:, 1] += by_stage(reader, table.read_seconds[:, 0] * anew)
        members[:, 1] += by_stage(reader, table.read_members[:, 0] * anew)
        kept, of_layer = self._kept(table, stage, again, dropped, crosses, anew, count)
        passing = np.zeros(count)
        own = np.bincount(tables.output_node, table.outputs, len(stage))
        own += np.bincount(reader, table.read_bytes * ~table.read_local, len(stage))
        np.maximum.at(passing, stage, own)
        if again.any():
            most = np.zeros(count)
            np.maximum.at(most, stage, of_layer[self.layer_of] if len(of_layer) else 0.0)
            passing = np.maximum(passing, most)
        in_shares = np.where(table.read_together > 0, 1 / plan.tensor, 1.0)
        crossing = by_stage(source[arrives], (table.read_bytes * in_shares)[arrives]).max() if arrives.any() else 0.0
        more = by_stage(everything, table.more * ~again * tables.active)
        return StageSums(seconds, sums, members, hidden, kept, more, passing, float(crossing))

    def _kept(
        self, table: NodeTable, stage: Array, again: Array, dropped: Array, crosses: Array, anew: Array, count: int
    ) -> tuple[Array, Array]:
        """Bytes that a micro-batch keeps from forward to backward, by stage; and those of recomputed values, by layer.
        ``dropped``: of the nodes that are computed ``again``, those whose results are not kept. ``anew``: reads that are brought a
        second time, and so not kept."""
        tables = self.tables
        source, reader = tables.output_node[tables.read_tensor], tables.read_node
        local = table.read_local & ~crosses
        needed = tables.output_kept & ~again[tables.output_node]
        needed[tables.read_tensor[local & (tables.read_kept | again[reader])]] = True
        whole = tables.output_kept.copy()
        whole[tables.read_tensor[local & tables.read_kept]] = True
        fresh = ~dropped[tables.output_node]
        kept = np.bincount(stage[tables.output_node], table.outputs * (needed & fresh), count)
        kept += np.bincount(stage, table.saved * ~again * tables.active, count)
        arrives = ~local & (tables.read_kept | again[reader]) & ~anew
        first = np.zeros(len(reader), bool)
        chosen = np.flatnonzero(arrives & ~dropped[source])
        first[chosen[np.unique(table.read_rect[chosen] * count + stage[reader[chosen]], return_index=True)[1]]] = True
        kept += np.bincount(stage[reader], table.read_bytes * first, count)
        layers = max(1, self.layers)
        result = np.bincount(self.layer_of[tables.output_node], table.outputs * (whole & ~fresh), layers)
        result += np.bincount(self.layer_of, table.saved * again * tables.active, layers)
        return kept, result

    def _two_units(self, stage: Array, nbytes: Array, count: int) -> Array:
        """Return, by stage, the most bytes of a block and the next one; of a stage of one block that one's. ``nbytes``: of each
        weight; ``stage``: where it is. An embedding, or another layer that is in no block, counts as one."""
        of_unit = np.bincount(self._unit, nbytes, len(self._first))
        stage, found = stage[self._first], np.zeros(count)
        np.maximum.at(found, stage, of_unit)
        np.maximum.at(found, stage[:-1], np.where(stage[:-1] == stage[1:], of_unit[:-1] + of_unit[1:], 0.0))
        return found

    def weights(self, plan: HybridPlan) -> StageWeights:
        """Return the weights that a plan's stages hold and exchange."""
        key = (self.bytes_of(plan).number, plan.tensor, plan.context, plan.experts, plan.pipeline, plan.virtual,
               plan.stages, plan.data, plan.shard_group, plan.zero_layers or plan.zero, plan.in_blocks, plan.bucket)  # fmt: skip
        if key not in self._weights:
            self._weights[key] = self._weigh(plan, self.tables.of(plan))
        return self._weights[key]

    def _weigh(self, plan: HybridPlan, table: NodeTable) -> StageWeights:
        tables, of = self.tables, self.bytes_of(plan)
        count, stage = plan.pipeline * plan.virtual, self.stages(plan)
        node = tables.weight_node
        once = np.zeros(len(node), bool)  # weights that two operators of a stage share are there once
        once[np.unique(tables.weight_name * count + stage[node], return_index=True)[1]] = True
        at, weights, summed = stage[node], of.weights * once, of.gradients * once
        replicas = (plan.data or 1) // plan.experts
        holders = np.maximum(1, table.weight_holders * replicas)
        zero = np.array(plan.zero_layers)[self.layer_of[node]] if plan.zero_layers else np.full(len(node), plan.zero)
        within = np.minimum(holders, plan.sharers)  # what several of a replica hold is shared within replicas
        share = np.where(zero > 1, np.minimum(within, plan.shard_group) if plan.shard_group else within, holders)
        held = weights / np.where(zero >= 3, share, 1)
        gradients = summed / np.where(zero >= 2, share, 1) if self.rule else summed * 0.0
        parts = np.where(zero >= 1, share, 1)
        alone = holders == 1
        gathered = np.zeros(count)
        if (zero >= 3).any():
            of_layer = np.bincount(self.layer_of[node], weights * (zero >= 3), max(1, self.layers))
            np.maximum.at(gathered, at, of_layer[self.layer_of[node]])
            if plan.in_blocks:
                gathered = self._two_units(at, weights * (zero >= 3), count)
        reduced = np.zeros(count)
        if (zero >= 2).any():
            which = self._unit if plan.in_blocks else self._layer
            whole = np.bincount(which * count + at, summed * ~alone * (zero >= 2))
            np.maximum.at(reduced, np.arange(len(whole)) % count, whole)

        def by_stage(values: Array) -> Array:
            return np.bincount(at, values, count)

        unit = np.where((zero >= 2) & plan.in_blocks, -1 - self._unit, self._in_buckets(plan, table, zero))
        unit -= unit.min(initial=0)
        sent, spread = of.sent * once * ~alone, self.bytes_of.trained & ((zero == 1) | (zero == 2))
        moved = sent * (zero == 0), sent * (zero >= 1), weights * ~alone * spread
        experts = table.weight_holders < plan.context * plan.experts
        each_pass = bool(((zero >= 2) & ~alone).any())
        return StageWeights(
            by_stage(held), by_stage(gradients), by_stage(of.state * once / parts), gathered, reduced,
            self._layer_bytes(at, count, unit, moved, experts), each_pass, by_stage(of.touched * once / parts),
        )

    def _in_buckets(self, plan: HybridPlan, table: NodeTable, zero: Array) -> Array:
        """Return a number for each weight that those of the same bucket have, or of the same layer if it has no bucket."""
        sizes = {stage: plan.bucket_of(stage) for stage in {int(one) for one in np.unique(zero)}}
        key = (plan.tensor, plan.context, plan.experts, plan.pipeline * plan.virtual, plan.stages, plan.zero_layers or plan.zero,
               *sizes.values())  # fmt: skip
        if key not in self._buckets:
            once = np.zeros(len(self._layer), bool)
            once[np.unique(self.tables.weight_name, return_index=True)[1]] = True
            many, at = len(self._blocks), self.stages(plan)[self.tables.weight_node]
            trained = table.weight_elements * once * self.bytes_of.trained
            elements = np.bincount(self._layer, trained, many).astype(np.int64).tolist()
            first, last, stage = np.full(many, len(at)), np.zeros(many, np.int64), np.zeros(many, np.int64)
            np.minimum.at(first, self._layer, at)
            np.maximum.at(last, self._layer, at)
            stage[self._layer] = zero
            kinds = list(zip(stage.tolist(), first.tolist(), last.tolist(), self._late))
            layers = [
                BucketLayer(str(i), self._blocks[i], elements[i], kinds[i], size)
                for i in sorted(reversed(range(many)), key=self._late.__getitem__) if elements[i] and (size := sizes[kinds[i][0]])
            ]
            numbers = np.arange(many)
            for number, bucket in enumerate(divided(layers)):
                numbers[[int(layer.name) for layer in bucket]] = many + number
            self._buckets[key] = numbers[self._layer]
        return self._buckets[key]

    @staticmethod
    def _layer_bytes(
        stage: Array, count: int, unit: Array, moved: Sequence[Array], experts: Array
    ) -> tuple[LayerBytes, ...]:
        """`StageWeights.layers`, of the bytes of each weight. ``unit``: weights that are sent together have the same number."""
        if not any(values.any() for values in moved):
            return ((),) * count
        place = (unit * count + stage) * 2 + experts
        rows = np.stack([np.bincount(place, values) for values in moved], axis=1).astype(np.int64)
        found: list[Counter[tuple[int, int, int, bool]]] = [Counter() for _ in range(count)]
        for at in np.flatnonzero(rows.any(axis=1)).tolist():
            reduced, scattered, spread = rows[at].tolist()
            found[at // 2 % count][reduced, scattered, spread, bool(at % 2)] += 1
        return tuple(tuple(counts.items()) for counts in found)
