"""ShardedPasses: seconds of a stage's passes under ZeRO's stages 2 and 3, in which weights are gathered and gradients reduced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from taskflow.mapper import HybridPlan, blocks_of
from taskflow.optimizer.grid.node_table import Array
from taskflow.optimizer.grid.shortened import GraphLists, Run, Walk, WalkMaker, shortened
from taskflow.optimizer.grid.stages import PlanSums
from taskflow.optimizer.grid.walk_tasks import Travel, Travels, Walked, WalkShape, WalkTasks, listed
from taskflow.optimizer.grid.weight_groups import WeightGroups

READS, ADDS = 2, 3  # arrays that a copy from a share, and an addition to one, pass over


@dataclass(frozen=True, slots=True)
class _Prepared:
    """Tasks of a walk, with the seconds of its collectives, and those that a forward and a backward pass wait for gathers and
    reductions, for each layer of the network, if they hide behind nothing (``meanwhile``)."""

    tasks: WalkTasks
    reads: Sequence[float]
    travels: Sequence[float]
    meanwhile: tuple[float, float]


class ShardedPasses:
    """Seconds of passes, cached. ``sums``: of the kind of device that a stage is on."""

    def __init__(self, sums: PlanSums) -> None:
        self.sums, self.tables, self.trained = sums, sums.tables, sums.bytes_of.trained
        device = sums.tables.device
        self.launch = device.launch_seconds
        self.memory = device.memory_rate
        self.exposed = device.program.exposed if device.program else 0.0
        self.lists = GraphLists(self.tables)
        self._walks: dict[object, tuple[Walk, int]] = {}
        self._layers: dict[object, list[list[int]]] = {}
        self._stages: dict[object, tuple[Walk, list[Run], int]] = {}
        self._prepared: dict[object, _Prepared] = {}
        self._tasks: dict[object, WalkTasks] = {}
        self._one: dict[object, Travel] = {}
        self._known: dict[object, Walked] = {}
        self._kinds: dict[tuple[int, ...], int] = {}
        self._places: dict[str, list[int]] = {}  # by layer with weights, and by block, those of its parameters in tables
        seen: set[int] = set()
        parameters = [parameter for node in sums.graph for parameter in node.parameters]
        blocks = blocks_of(sums.graph)
        for place, (name, parameter) in enumerate(zip(self.tables.weight_name.tolist(), parameters)):
            if name not in seen:
                seen.add(name)
                for of in {parameter.layer, blocks.get(parameter.layer, parameter.layer)}:
                    self._places.setdefault(of, []).append(place)

    def stage(
        self, plan: HybridPlan, number: int, alone: bool, groups: WeightGroups, starts: Array | float = 0.0, last: bool = False
    ) -> tuple[float, float, float]:
        """Return the seconds of a forward and a backward pass of a stage, and for how long reductions take the links after the
        latter. ``alone``: whether the step has no other passes, so that each task takes what it takes by itself. ``starts``:
        seconds in which the host of each pass starts collectives that are not of weights. ``last``: in the last micro-batch's
        passes, which also sum what is kept whole until then, by shares."""
        found = self.sums.sums(plan)
        layers = self._layers_of(plan, number)
        walk, runs, name = self._walk(plan, number, layers, last)
        of = name, plan.passes_alike, groups
        if of not in self._prepared:
            self._prepared[of] = self._prepare(walk, name, plan, groups)
        prepared = self._prepared[of]
        device, host, each = found.seconds[number, 0:4:2], found.seconds[number, 1:4:2], found.seconds[number, 4:6]
        weights = np.array(prepared.meanwhile) * len(layers)
        took = each if alone else np.maximum(device, host + starts - found.sums[number] - weights)
        # To a thousandth, so that stages which differ in length only need no walk of their own.
        scale = tuple(np.round((took + self.exposed * weights) / np.maximum(each, 1e-30), 3).tolist())
        key = of, scale
        if key not in self._known:
            tasks = prepared.tasks
            seconds = self.tables.seconds(plan)[tasks.nodes, 4 + tasks.back] * np.array(scale)[tasks.back | tasks.again]
            self._known[key] = tasks.seconds(seconds.tolist(), prepared.reads, prepared.travels)
        (ahead, back, after), each_run = self._known[key]
        for (more_ahead, more_back), run in zip(each_run, runs):
            ahead += run.more * more_ahead
            back += run.more * more_back
        return ahead, back, after

    def _prepare(self, walk: Walk, number: int, plan: HybridPlan, groups: WeightGroups) -> _Prepared:
        """What a walk, known by its number, takes under a plan, but for its steps."""
        gathers, reduces, meanwhile = self._travels_of(walk, plan, groups)
        of = self.tables.of(plan).read_seconds
        reads = [0.0 if isinstance(one, str) else float(of[one]) for one in walk.collectives]
        meets = (
            tuple([tuple([one.meets for one in travels[name]]) for name in walk.names]) for travels in (gathers, reduces)
        )
        shape = WalkShape(tuple([seconds > 0 for seconds in reads]), *meets)
        if (number, shape) not in self._tasks:
            self._tasks[number, shape] = WalkTasks(walk, shape)
        return _Prepared(self._tasks[number, shape], reads, listed(walk, gathers, reduces), meanwhile)

    # ---- walks -------------------------------------------------------------------------------------------------------
    def _layers_of(self, plan: HybridPlan, number: int) -> list[list[int]]:
        """The nodes of a stage by layer."""
        key = plan.pipeline * plan.virtual, plan.stages, number
        if key not in self._layers:
            of: dict[int, list[int]] = {}
            for node in np.flatnonzero(self.sums.stages(plan) == number).tolist():
                of.setdefault(int(self.sums.layer_of[node]), []).append(node)
            self._layers[key] = [of[layer] for layer in sorted(of)]
        return self._layers[key]

    def _walk(self, plan: HybridPlan, number: int, layers: Sequence[list[int]], last: bool) -> tuple[Walk, list[Run], int]:
        """The walk of a stage's layers, the runs of layers that it leaves out, and what it is known by: one walk is for all
        stages of the same layers."""
        count, number_of = max(1, self.sums.layers), self.sums.layer_of
        key = (
            plan.pipeline * plan.virtual, plan.stages, number, plan.has_again,
            plan.zero_layers or plan.zero, plan.in_blocks, plan.prefetch,
            plan.cuts, plan.data, last,
        )  # fmt: skip
        if key in self._stages:
            return self._stages[key]
        levels, zeros = plan.levels_of(count), plan.zeros_of(count)
        numbers = [number_of[nodes[0]] for nodes in layers]
        kinds = [(self._alike(nodes), levels[layer], zeros[layer]) for nodes, layer in zip(layers, numbers)]
        kept, runs = shortened(kinds)
        table = self.tables.of(plan)
        several = self._several(plan)
        holders = table.weight_holders.tolist() if several.any() and len(set(table.weight_holders.tolist())) > 1 else []
        ahead = plan.in_blocks, plan.prefetch
        anew = self.tables.brought_again(plan) & ~table.read_local
        name = (
            tuple([kinds[i] for i in kept]), tuple(run.first for run in runs), several.all() or several.tobytes(), *ahead,
            anew.any() and plan.cuts, _numbered(holders), last,
        )  # fmt: skip
        if name not in self._walks:
            unit = {
                node: (self.lists.blocks if plan.in_blocks and zeros[number_of[node]] > 1 else self.lists.layers)[node]
                for i in kept for node in layers[i]
            }
            zero = {weights: zeros[number_of[node]] for node, names in unit.items() for weights in names}
            sent, summed = (
                {layer: any(which[place] for place in self._places.get(layer, ())) for layer in zero}
                for which in (several, several & self.trained)
            )
            maker = WalkMaker(
                self.lists, [layers[i] for i in kept], frozenset(node for nodes in layers for node in nodes),
                self.sums.not_kept(plan), self.sums.always(plan), table.saved > 0, unit,
                lambda layer: self._parts(layer, several, table.weight_holders),
                lambda layer: sent[layer] and zero[layer] > 2, lambda layer: summed[layer] and (last or zero[layer] > 1),
                plan.prefetch if isinstance(plan.prefetch, int) else 1, anew,
            )
            self._walks[name] = maker.walk(runs), len(self._walks)
        walk, number = self._walks[name]
        self._stages[key] = walk, runs, number
        return self._stages[key]

    def _parts(self, name: str, several: Array, holders: Array) -> list[frozenset[int]]:
        """The nodes whose weights of a name as many devices hold, if these are trained, in the order of `_travels_of`."""
        found: dict[int, set[int]] = {}
        for place in self._places.get(name, ()):
            if several[place]:
                own = {int(self.tables.weight_node[place])} if self.trained[place] else set[int]()
                found.setdefault(int(holders[place]), set()).update(own)
        return [frozenset(nodes) for nodes in found.values() if nodes]

    def _alike(self, nodes: Sequence[int]) -> int:
        """A number that layers share whose operators are alike."""
        key = tuple([self.tables.like[node] for node in nodes])
        return self._kinds.setdefault(key, len(self._kinds))

    def _several(self, plan: HybridPlan) -> Array:
        """Which parameters no device holds alone."""
        return np.asarray(self.tables.of(plan).weight_holders * ((plan.data or 1) // plan.experts) > 1)

    # ---- weights -----------------------------------------------------------------------------------------------------
    def _travels_of(
        self, walk: Walk, plan: HybridPlan, groups: WeightGroups
    ) -> tuple[Travels, Travels, tuple[float, float]]:
        """By layer with weights, its gathers and its reductions: one for weights that as many devices hold. And the seconds
        that a forward and a backward pass wait for these, for each layer of the network, if they hide behind nothing."""
        table, several = self.tables.of(plan), self._several(plan).tolist()
        holders, of = table.weight_holders, self.sums.bytes_of(plan)
        of_expert = groups.inner // groups.tensor * groups.experts
        gathers: dict[str, list[Travel]] = {}
        reduces: dict[str, list[Travel]] = {}
        for layer in walk.names:
            held_by: dict[int, list[int]] = {}  # weights that as many of a replica's devices hold go together
            for place in self._places[layer]:
                if several[place]:
                    sizes = held_by.setdefault(int(holders[place]), [0, 0])
                    sizes[0] += int(of.weights[place])
                    sizes[1] += int(of.sent[place])
            steps = {count: groups.expert_step if count < of_expert else groups.tensor for count in held_by}
            gathers[layer] = [self._travel(groups, steps[count], sizes[0], READS) for count, sizes in held_by.items()]
            reduces[layer] = [self._travel(groups, steps[count], sizes[1], ADDS) for count, sizes in held_by.items() if sizes[1]]
        layers = len(walk.ends[1])
        each = sum(travel.seconds for name in walk.gathers for travel in gathers[name]) / (2 * layers + 1)
        summed = sum(travel.seconds for name in walk.reductions for travel in reduces[name]) / layers
        return gathers, reduces, (each, each + summed)

    def _travel(self, groups: WeightGroups, step: int, nbytes: int, arrays: int) -> Travel:
        key = groups, step, nbytes, arrays
        if key not in self._one:
            copy = self.launch + arrays * nbytes / groups.members(step) / self.memory
            self._one[key] = Travel(groups.seconds(step, nbytes, 1), copy, groups.meets(step))
        return self._one[key]


def _numbered(values: Sequence[int]) -> tuple[int, ...]:
    """The values, each as the number of the first one that equals it."""
    first: dict[int, int] = {}
    return tuple([first.setdefault(value, number) for number, value in enumerate(values)])
