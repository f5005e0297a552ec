"""Mappers that follow a rule: data parallel, model parallel, the experts' hybrids, round-robin and random."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from types import MappingProxyType
from zlib import crc32

from taskflow.graph import Node, OperatorGraph
from taskflow.machine import Machine
from taskflow.mapper.mapper import Mapper
from taskflow.mapper.strategy import SUMS
from taskflow.mapper.sync import CollectiveSync, MessageSync, Sync, SyncAlgorithm, UpdatePlacement
from taskflow.operators.operator import Soap


def cut_only(node: Node, soap: Soap, degree: int) -> tuple[int, ...]:
    """Return degree ``degree`` (as far as the size allows) in the first divisible dimension of this class, 1 in the others."""
    degrees, done = [], False
    for dim in node.dims:
        take = not done and dim.soap is soap and dim.divisible
        degrees.append(min(degree, dim.size) if take else 1)
        done = done or take
    return tuple(degrees)


def homes(graph: OperatorGraph, processors: int) -> dict[str, int]:
    """Choose processors for state that cannot be cut by samples, such as running statistics, and for the operators that make
    its next value: each processor in turn. If all of it were on one processor, that one would send everything to everybody in
    evaluation (ResNet-101 on 64: 13,104 messages) and would compute all the next values."""
    found: dict[str, int] = {}
    turn: dict[int, int] = {}  # by the operator that makes the next value, in the order of the states
    for carried, becomes in graph.carries:
        nodes = graph.producer(carried), graph.producer(becomes)
        if not any(node.parameters or any(d.soap is Soap.SAMPLE and d.divisible for d in node.dims) for node in nodes):
            place = turn.setdefault(becomes.node, len(turn) % processors)
            found.update((node.name, place) for node in nodes)
    return found


class DataParallel(Mapper):
    """Data parallelism: every operator is cut in the sample dimension over all processors, and every processor holds all
    weights. What is made of weights alone is computed on each. State without samples lies on one processor, a different one for
    each layer (`homes`)."""

    name = "data"
    _homes: Mapping[str, int] = MappingProxyType({})

    def prepare(self, graph: OperatorGraph, machine: Machine) -> None:
        self._homes = homes(graph, len(machine.processors))

    def slice_task(self, node: Node, machine: Machine) -> Sequence[int]:
        return cut_only(node, Soap.SAMPLE, len(machine.processors))

    def map_task(self, node: Node, piece: int, degrees: Sequence[int], machine: Machine) -> int:
        return self._homes.get(node.name, piece)

    def select_copies(self, node: Node, machine: Machine) -> int:
        return len(machine.processors) if node.of_weights and node.name not in self._homes else 1

    def map_tasks(self, node: Node, count: int, degrees: Sequence[int], machine: Machine) -> Sequence[int]:
        if node.name in self._homes or type(self).map_task is not DataParallel.map_task:  # somebody places pieces in another way
            return super().map_tasks(node, count, degrees, machine)
        return range(count)


class ModelParallel(Mapper):
    """Model parallelism: no operator is cut; each layer depth has a processor. Operators that share weights (the steps of a
    recurrent layer) have the same depth."""

    name = "model"

    def prepare(self, graph: OperatorGraph, machine: Machine) -> None:
        self._depth = depths(graph)
        self._count = max(self._depth.values(), default=0) + 1

    def slice_task(self, node: Node, machine: Machine) -> Sequence[int]:
        return (1,) * len(node.dims)

    def map_task(self, node: Node, piece: int, degrees: Sequence[int], machine: Machine) -> int:
        return self._depth[node.name] * len(machine.processors) // max(self._count, len(machine.processors))


class RoundRobin(Mapper):
    """Data-parallel cuts whose pieces are assigned to the processors in turn; each operator starts one processor further on."""

    name = "round-robin"

    def slice_task(self, node: Node, machine: Machine) -> Sequence[int]:
        return cut_only(node, Soap.SAMPLE, len(machine.processors))

    def map_task(self, node: Node, piece: int, degrees: Sequence[int], machine: Machine) -> int:
        return (node.number + piece) % len(machine.processors)


class RandomMapper(Mapper):
    """Random degrees in every divisible dimension (at most as many pieces as processors), on random processors. Answers depend
    only on the seed and the operator's name."""

    name = "random"

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed

    def slice_task(self, node: Node, machine: Machine) -> Sequence[int]:
        random, left = Random(f"{self._seed} cut {node.name}"), len(machine.processors)
        degrees = [1] * len(node.dims)
        order = list(range(len(node.dims)))
        random.shuffle(order)
        for i in order:
            dim = node.dims[i]
            if dim.divisible and dim.soap is not Soap.REDUCTION:
                degrees[i] = random.randint(1, min(left, dim.size))
                left //= degrees[i]
        return degrees

    def map_task(self, node: Node, piece: int, degrees: Sequence[int], machine: Machine) -> int:
        return Random(f"{self._seed} place {node.name} {piece}").randrange(len(machine.processors))

    def select_reduction(self, layer: str, nbytes: int, holders: Sequence[int], machine: Machine) -> Sync:
        random = Random(crc32(f"{self._seed} {layer}".encode()))
        travel = random.choice(list(SyncAlgorithm))
        if travel is SyncAlgorithm.COLLECTIVE:
            return CollectiveSync(random.choice((UpdatePlacement.REPLICATED, UpdatePlacement.SHARDED)))
        return MessageSync(travel, random.choice(list(UpdatePlacement)), random.randint(0, len(holders)))

    def select_sums(self, processors: Sequence[int], machine: Machine) -> SyncAlgorithm:
        return Random(f"{self._seed} sums").choice(SUMS)


def depths(graph: OperatorGraph) -> dict[str, int]:
    """Return the layer depth of every operator: the number of layers with parameters before it on the longest path.

    Operators that share parameters form one layer with one depth, so that a recurrent layer's steps stay together; an operator
    without parameters takes the depth of the layer that feeds it.
    """
    layer_of = {node.name: node.parameters[0].layer for node in graph if node.parameters}
    first: dict[str, int] = {}
    result: dict[str, int] = {}
    after_layer: set[int] = set()  # nodes at or behind some parameterised operator
    for node in graph:
        above = [result[graph.producer(t).name] for t in node.inputs]
        fed_by_layer = any(t.node in after_layer for t in node.inputs)
        if node.parameters or fed_by_layer:
            after_layer.add(node.number)
        depth = max(above, default=0) + (1 if node.parameters and fed_by_layer else 0)
        layer = layer_of.get(node.name)
        if layer is not None:
            # A later operator of a recurrent layer is fed by the layer itself (its state): it keeps the layer's depth.
            depth = first.setdefault(layer, depth)
        result[node.name] = depth
    return result
