"""Tables: what one device computes, moves and keeps of each operator for one micro-batch, computed once for all that are alike.

The sizes of an operator's pieces follow from t, c, e and the samples of a micro-batch. Pipelines, replicas, recomputation and
sharding only determine where and how often pieces run. So a table serves all plans that agree in these four numbers, and each
operator is computed once for all layers that are alike. The device is the first of its group. If a cut makes pieces unequal
(causal attention along the sequence), the longer of the first and the last piece counts, and what the last one reads.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from taskflow.graph import Node, OperatorGraph
from taskflow.machine import Cluster, Machine, PartOfMachine, collective, exchange, host, ring_bytes
from taskflow.mapper import HybridParallel, HybridPlan, is_attention, sample_dim, samples
from taskflow.operators.operator import Soap
from taskflow.optimizer.cost import AnalyticCosts, TokenRoute, crossing_bytes, kept_bytes, token_routes
from taskflow.optimizer.grid.node_table import Array, GroupTransfer, NodeTable
from taskflow.regions import Rect
from taskflow.tasks.lower import gradient_flow


@dataclass(frozen=True, slots=True)
class _PieceWork:
    """Work of one node's piece. ``seconds``: of device and host, forward and backward; ``alone``: the same where gradients of
    weights are not added to earlier ones. ``weights``: (elements, bytes, how many of a group's devices hold them) by parameter."""

    seconds: tuple[float, float, float, float]
    alone: tuple[float, float, float, float]
    outputs: tuple[int, ...]
    saved: int
    more: int
    weights: tuple[tuple[int, int, int], ...]
    reads: tuple[GroupTransfer, ...]
    rects: tuple[Rect, ...]


@dataclass(frozen=True, eq=False)
class _GroupCuts:
    """Cuts of all nodes within a group of t x c x e, however many samples a micro-batch has. ``which``: of each node the kind;
    nodes of a kind, and what they read, are cut alike. ``first``: of each kind the first node, and for each input whether its
    gradient is added to another reader's. ``sizes``: one of all nodes with the same operator and cut, in the order of the graph.
    ``outputs``, ``reads`` and ``weights``: for those of all nodes, the places among those of the kinds."""

    cuts: list[tuple[int, ...]]
    which: Array
    first: tuple[tuple[Node, tuple[bool, ...]], ...]
    sizes: tuple[Node, ...]
    outputs: Array
    reads: Array
    weights: Array


def _rows(which: Array, counts: Array) -> Array:
    """Return the places, among ``counts[k]`` rows of each kind k one after the other, of the rows of nodes of these kinds."""
    many = counts[which]
    begins = (np.cumsum(counts) - counts)[which]
    return np.repeat(begins - (np.cumsum(many) - many), many) + np.arange(int(many.sum()))


class GraphTables:
    """The tables of a graph on a machine, by how a plan cuts layers and by samples of a micro-batch."""

    def __init__(self, graph: OperatorGraph, machine: Cluster | PartOfMachine) -> None:
        self.graph, self.machine = graph, machine
        self.costs = AnalyticCosts(machine)
        self.device = machine.processors[0].device
        active, needs, _ = gradient_flow(graph)
        self.active = np.array([node.number in active for node in graph])
        self._routes = token_routes(graph, machine)
        self.wanted = [tuple((t.node, t.index) in needs for t in node.inputs) for node in graph]
        first: dict[Hashable, int] = {}
        self.like = [first.setdefault((n.operator, n.specs, tuple(p.spec for p in n.parameters)), n.number) for n in graph]
        self._index_reads()
        self._tables: dict[Hashable, NodeTable] = {}
        self._mappers: dict[Hashable, tuple[HybridParallel, Machine]] = {}
        self._gathered: dict[Hashable, Array] = {}
        self._groups: dict[Hashable, _GroupCuts] = {}
        self._collectives: dict[tuple[range, bool], Any] = {}

    def _index_reads(self) -> None:
        """The places of outputs, reads and parameters in the tables, and what does not depend on the plan."""
        self.output_of: dict[tuple[int, int], int] = {}
        keeps = [node.operator.keeps(node.specs) for node in self.graph]
        output_node: list[int] = []
        output_kept: list[bool] = []
        for node in self.graph:
            for tensor in node.outputs:
                self.output_of[tensor.node, tensor.index] = len(output_node)
                output_node.append(node.number)
                output_kept.append(keeps[node.number].outputs and bool(self.active[node.number]))
        reads = [(self.output_of[t.node, t.index], node.number) for node in self.graph for t in node.inputs]
        last = {tensor: node for tensor, node in reads}
        self.output_node, self.output_kept = np.array(output_node), np.array(output_kept)
        self.read_tensor = np.array([tensor for tensor, _ in reads], np.int64)
        self.read_node = np.array([node for _, node in reads], np.int64)
        self.read_kept = np.array([keeps[node].inputs and bool(self.active[node]) for _, node in reads], bool)
        self.read_adds = [last[tensor] != node for tensor, node in reads]  # to a gradient that a later reader has put
        names: dict[str, int] = {}
        parameters = [(node.number, names.setdefault(p.name, len(names))) for node in self.graph for p in node.parameters]
        self.weight_node = np.array([node for node, _ in parameters], np.int64)
        self.weight_name = np.array([name for _, name in parameters], np.int64)

    # ---- one table ---------------------------------------------------------------------------------------------------
    def of(self, plan: HybridPlan) -> NodeTable:
        """Return the table for a plan with ``micro_batch`` set. Raises ValueError if the network cannot be cut so."""
        key = plan.passes_alike
        if key not in self._tables:
            self._tables[key] = self._make(plan)
        return self._tables[key]

    def seconds(self, plan: HybridPlan) -> Array:
        """Return a table's seconds for a plan: with stages 2 and 3 of ZeRO each pass has gradients of its own."""
        table = self.of(plan)
        return table.alone if plan.zero > 1 else table.seconds

    def _mapper(self, plan: HybridPlan) -> tuple[HybridParallel, Machine]:
        """A prepared mapper of one group, and the machine that it is prepared for."""
        if plan.cuts not in self._mappers:
            mapper, machine = HybridParallel(plan.of_group), host(plan.tensor * plan.context * plan.experts)
            mapper.prepare(self.graph, machine)
            self._mappers[plan.cuts] = mapper, machine
        return self._mappers[plan.cuts]

    def brought_again(self, plan: HybridPlan) -> Array:
        """Return, by read, whether a plan brings the tensor again for the backward pass, if it comes from another device."""
        return self.gathered(plan) & plan.regather

    def gathered(self, plan: HybridPlan) -> Array:
        """Return, by read, whether a tensor group gathers the tensor along the sequence for a product, so that a plan may bring
        it again."""
        if not plan.along:
            return np.zeros(len(self.read_node), bool)
        if plan.cuts not in self._gathered:
            mapper, _ = self._mapper(plan)
            shared = [bool(node.parameters) and not mapper.between(node) for node in self.graph]
            self._gathered[plan.cuts] = np.array(shared, bool)[self.read_node]
        return self._gathered[plan.cuts]

    def group_cuts(self, plan: HybridPlan) -> _GroupCuts:
        """Return how a group cuts the nodes, found once for all sizes of micro-batches."""
        if plan.cuts not in self._groups:
            self._groups[plan.cuts] = self._cut(*self._mapper(plan))
        return self._groups[plan.cuts]

    def _cut(self, mapper: HybridParallel, machine: Machine) -> _GroupCuts:
        cuts = [tuple(mapper.slice_task(node, machine)) for node in self.graph]
        kinds: dict[Hashable, int] = {}
        which: list[int] = []
        first: list[tuple[Node, tuple[bool, ...]]] = []
        place = 0
        for node in self.graph:
            adds = tuple(self.read_adds[place : place + len(node.inputs)])
            sources = tuple((self.like[x.node], cuts[x.node], x.index) for x in node.inputs)
            key = self.like[node.number], cuts[node.number], sources, adds, self.wanted[node.number]
            if key not in kinds:
                kinds[key] = len(kinds)
                first.append((node, adds))
            which.append(kinds[key])
            place += len(node.inputs)
        sizes = {(self.like[node.number], cuts[node.number]): node for node in reversed(self.graph.nodes)}
        kind_of = np.array(which, np.int64)
        counts = np.array([(len(node.outputs), len(node.inputs), len(node.parameters)) for node, _ in first], np.int64)
        return _GroupCuts(
            cuts, kind_of, tuple(first), tuple(reversed(sizes.values())), *(_rows(kind_of, counts[:, i]) for i in range(3))
        )

    def _make(self, plan: HybridPlan) -> NodeTable:
        e, mb, cuts = plan.experts, plan.micro_batch or 1, self.group_cuts(plan)
        count, group = samples(self.graph) // (e * mb), (plan.tensor, plan.context, e)
        for node in cuts.sizes:
            self.degrees(node, cuts.cuts[node.number], count)
        works = [
            self._work(node, {
                n: self.degrees(self.graph.nodes[n], cuts.cuts[n], count) for n in (node.number, *(x.node for x in node.inputs))
            }, adds, count, group, mb / samples(self.graph) if samples(self.graph) % (e * mb) else None)
            for node, adds in cuts.first
        ]  # fmt: skip
        outputs = np.array([n for work in works for n in work.outputs], np.int64)
        reads = [read for work in works for read in work.reads]
        weights = np.array([weight for work in works for weight in work.weights], np.int64).reshape(-1, 3)[cuts.weights]
        known: dict[Rect, int] = {}
        rects = np.array([known.setdefault(rect, len(known)) for work in works for rect in work.rects], np.int64)
        same = self.read_tensor * max(1, len(known)) + rects[cuts.reads]
        _, first, number = np.unique(same, return_index=True, return_inverse=True)
        seconds = np.zeros((len(same), 2))
        seconds[first] = np.array([(read.forward, read.backward) for read in reads], float).reshape(-1, 2)[cuts.reads][first]
        members = np.array([read.members for read in reads], np.int64)[cuts.reads]
        more = np.array([(read.beside, read.together) for read in reads], float).reshape(-1, 2)[cuts.reads]
        beside = np.bincount(number.reshape(-1), more[:, 0], len(first))[number.reshape(-1)]
        hidden, occupied = np.minimum(seconds[:, 1], beside), seconds[:, 1] * (beside > 0)
        members = members[:, None] * (seconds > 0)
        seconds[:, 1] -= hidden
        return NodeTable(
            _and_alone(np.array([work.seconds for work in works])[cuts.which]),
            _and_alone(np.array([work.alone for work in works])[cuts.which]),
            np.array([work.saved for work in works], np.int64)[cuts.which],
            np.array([work.more for work in works], np.int64)[cuts.which], outputs[cuts.outputs],
            np.array([r.nbytes for r in reads], np.int64)[cuts.reads], np.array([r.local for r in reads], bool)[cuts.reads],
            number.reshape(-1), seconds, members, hidden, occupied, more[:, 1],
            *(np.ascontiguousarray(weights[:, i]) for i in range(3)),
        )

    @staticmethod
    def degrees(node: Node, cut: Sequence[int], micro_batches: int) -> tuple[int, ...]:
        """The degrees of all pieces of a step. Raises ValueError if there are fewer samples than micro-batches."""
        dim, degrees = sample_dim(node), list(cut)
        if dim is not None:
            degrees[dim] *= micro_batches
            if degrees[dim] > node.dims[dim].size:
                raise ValueError(f"operator {node.name}: has {node.dims[dim].size} samples, {degrees[dim]} pieces are too many")
        return tuple(degrees)

    def _work(
        self, node: Node, degrees: Mapping[int, tuple[int, ...]], adds: Sequence[bool], count: int, group: tuple[int, int, int],
        part: float | None,
    ) -> _PieceWork:
        own = degrees[node.number]
        first, last = corner(node, own, False, part), corner(node, own, True, part)
        reads, writes = node.reads(last), node.writes(first)  # under a causal mask the last one reads most
        seconds = alone = (0.0, 0.0, 0.0, 0.0)
        if node.inputs:
            both = [(self.piece_seconds(node, rect, adds, count > 1), rect) for rect in dict.fromkeys((first, last))]
            seconds, slower = max(both, key=lambda one: one[0][0] + one[0][2])
            alone = self.piece_seconds(node, slower, adds, False) if count > 1 and node.parameters else seconds
        devices = group[0] * group[1] * group[2]
        weights = tuple(
            (r.volume, r.volume * p.spec.dtype.itemsize, max(1, round(devices * r.volume / p.spec.rect.volume)))
            for r, p in zip(reads.weights, node.parameters)
        )
        found = []
        for tensor, rect, wanted in zip(node.inputs, reads.inputs, self.wanted[node.number]):
            source = self.graph.nodes[tensor.node]
            from_ = degrees[tensor.node]
            there = source.writes(corner(source, from_, True, part))[tensor.index]
            partial = any(k > 1 and dim.soap is Soap.REDUCTION for k, dim in zip(from_, source.dims))
            summed = wanted and group[0] > 1 and rect.volume == there.volume and _gives_partial(node, own, tensor.index, from_)
            one = self._transfer(rect, there, partial, tensor.spec.dtype.itemsize, wanted, source, node, group)
            one = self._summed_back(one, group[0]) if one.local and summed else one
            if group[0] > 1 and rect == there and prod(from_) * group[0] <= count * devices:
                one = replace(one, together=self.collective_seconds(range(group[0]), one.nbytes, 1))
            given = wanted and _gives_partial(node, own, tensor.index, from_)
            if given and self.device.hides_sums and node.operator.splits_backward:
                one = replace(one, beside=self._of_weights(node, last, count > 1))
            found.append(one)
        return _PieceWork(
            seconds, alone, tuple(r.volume * x.dtype.itemsize for r, x in zip(writes, node.outputs)),
            sum(spec.nbytes for spec in node.operator.saves(node.specs, first)), self._kept_more(node, first, group[0]), weights,
            tuple(found), tuple(reads.inputs),
        )

    def _of_weights(self, node: Node, piece: Rect, several: bool) -> float:
        """Seconds of the device for the gradients of a piece's weights alone."""
        apart = (False,) * len(node.inputs)
        plain, summed = (self.piece_seconds(node, piece, apart, adds)[2] for adds in (False, several))
        return summed - plain / 2

    def _kept_more(self, node: Node, piece: Rect, tensor: int) -> int:
        """Bytes that the program that drives the device keeps of a piece beyond what its forward task saves."""
        program = self.device.program
        return kept_bytes(program, node.operator, node.specs, piece, tensor) if program is not None else 0

    def piece_seconds(
        self, node: Node, rect: Rect, adds: Sequence[bool], several: bool
    ) -> tuple[float, float, float, float]:
        """Return the device and host seconds of a piece's forward and backward tasks, as the analytic model has them. ``adds``:
        for each input, whether its gradient is added to another reader's; ``several``: whether gradients of weights are added
        to those of earlier micro-batches."""
        wanted = self.wanted[node.number]
        ahead = self._ask(node, rect, False, (), 0)
        if not self.active[node.number]:
            return (*ahead, 0.0, 0.0)
        reads = node.reads(rect)
        added = sum(r.volume * x.dtype.itemsize for r, x, a, w in zip(reads.inputs, node.inputs, adds, wanted) if a and w)
        if several:
            added += sum(r.volume * max(4, p.spec.dtype.itemsize) for r, p in zip(reads.weights, node.parameters))
        return (*ahead, *self._ask(node, rect, True, wanted, added))

    def _ask(self, node: Node, rect: Rect, backward: bool, wanted: tuple[bool, ...], added: int) -> tuple[float, float]:
        found = self.costs.spent(node.operator, node.specs, rect, backward, wanted, added, self.device)
        if found is not None:
            return found.device, found.host
        seconds = self.costs.compute_seconds(
            node.operator, node.specs, rect, backward, device=self.device, gradients=wanted if backward else None, added_bytes=added
        )
        return seconds, 0.0

    # ---- what crosses a group ----------------------------------------------------------------------------------------
    def _transfer(
        self, read: Rect, there: Rect, partial: bool, itemsize: int, wanted: bool, source: Node, node: Node,
        group: tuple[int, int, int],
    ) -> GroupTransfer:
        nbytes = read.volume * itemsize
        if read.empty:
            return GroupTransfer(0, True)
        t, c, e = group
        if partial and t > 1:
            members, whole = range(t), there.volume * itemsize
            halves = 1 if read.volume < there.volume else 2
            ahead = self.collective_seconds(members, whole, halves)
            return GroupTransfer(nbytes, False, ahead, ahead if wanted and halves == 1 else 0.0, t)
        if there.contains(read) or t * c * e == 1:
            return GroupTransfer(nbytes, True)
        both = read.intersect(there).volume if read.overlaps(there) else 0
        grows = read.volume / both if both else float(t * c * e)
        members = self._members(grows, t, c, e, is_attention(node))
        if not source.inputs:  # what comes from outside is put where it is read
            return GroupTransfer(nbytes, False)
        if read.volume <= there.volume or members.step == t * c:  # cut otherwise: each gives each a part
            ahead = self._exchange_seconds(members, nbytes, self._routes.get(source.name))
        else:
            ahead = self.collective_seconds(members, nbytes, 1)
        return GroupTransfer(nbytes, False, ahead, ahead if wanted else 0.0, len(members))

    def _summed_back(self, read: GroupTransfer, t: int) -> GroupTransfer:
        """What each of a tensor-parallel group has whole, and of whose gradient each makes a part."""
        return replace(read, backward=self.collective_seconds(range(t), read.nbytes, 2), members=t)

    @staticmethod
    def _members(grows: float, t: int, c: int, e: int, attends: bool) -> range:
        """The processors that hold a tensor together, each 1 / ``grows`` of it. Attention, of which a tensor group has cut heads
        before, reads it from those that share a sequence."""
        choices = [(t, range(t)), (c, range(0, t * c, t)), (t * c, range(t * c)), (e, range(0, t * c * e, t * c))]
        return min((one for one in choices[attends and c > 1 :] if one[0] > 1), key=lambda one: abs(one[0] - grows))[1]

    def collective_seconds(self, group: range, nbytes: int, halves: int) -> float:
        """Return the seconds of an all-reduce of an array of ``nbytes`` among processors, or of one of its halves."""
        if len(group) < 2:
            return 0.0
        if (group, True) not in self._collectives:
            self._collectives[group, True] = collective(self.machine, group)
        return float(self._collectives[group, True].seconds(ring_bytes(len(group), nbytes, halves), halves))

    def _exchange_seconds(self, group: range, nbytes: int, route: TokenRoute | None) -> float:
        """Seconds of an all-to-all in which each processor receives ``nbytes``, tokens with a ``route`` if they are for
        experts."""
        if (group, False) not in self._collectives:
            self._collectives[group, False] = exchange(self.machine, group)
        if route is not None:
            nbytes = crossing_bytes(nbytes, route, self.machine, group)
        return float(self._collectives[group, False].seconds(nbytes * (len(group) - 1), 0))


def _gives_partial(node: Node, degrees: Sequence[int], index: int, source: Sequence[int]) -> bool:
    """True if pieces that differ in their outputs read the same of an input that is not cut, so that each gives a part of its
    gradient."""
    cut = any(k > 1 and dim.soap is Soap.PARAMETER for k, dim in zip(degrees, node.dims))
    return cut and bool(node.parameters) and bool(source)


def corner(node: Node, degrees: Iterable[int], last: bool, part: float | None = None) -> Rect:
    """Return the first piece of an iteration space in even cuts, or the last one in all dimensions but the samples. ``part``: the
    part of all samples that a piece has, if these are not cut evenly."""
    ends = [
        (dim.size - dim.size // degree, dim.size) if last and dim.soap is not Soap.SAMPLE else (0, -(-dim.size // degree))
        for dim, degree in zip(node.dims, degrees)
    ]
    if part is not None and (samples_in := sample_dim(node)) is not None:
        ends[samples_in] = (0, max(1, round(node.dims[samples_in].size * part)))
    return Rect(tuple(low for low, _ in ends), tuple(high for _, high in ends))


def _and_alone(seconds: Array) -> Array:
    """Append what each task takes by itself: its kernels' seconds or those of launching them, whichever is longer."""
    return np.concatenate([seconds, np.maximum(seconds[:, :2:2], seconds[:, 1:2]), np.maximum(seconds[:, 2:3], seconds[:, 3:])], 1)
