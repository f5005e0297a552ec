"""Annotated: the mapper that follows annotations; operators that they do not reach are cut like their neighbours."""

from __future__ import annotations

from collections.abc import Sequence

from taskflow.annotations.links import FREE, MIXED, Known, links
from taskflow.annotations.propagation import propagate
from taskflow.graph import Node, OperatorGraph
from taskflow.machine import Machine
from taskflow.mapper import Mapper, OpConfig


class Annotated(Mapper):
    """Mapper that cuts operators as the annotations of the graph's tensors say, after `propagate`. An operator that they do not
    reach takes the cut of a neighbour (the first whose cut is known: a producer of its inputs, else a reader), along the
    dimension that corresponds to it. Without such a dimension it is whole, on the neighbour's first processor; without such a
    neighbour, on processor 0. `prepare` raises ValueError if the graph has no annotations."""

    name = "annotated"

    def prepare(self, graph: OperatorGraph, machine: Machine) -> None:
        self.propagated = propagate(graph, len(machine.processors))
        if not self.propagated.annotations:
            raise ValueError(
                f"mapper annotated: {graph.name} has no annotations; say taskflow.annotations.split(tensor, dim, parts) or "
                "annotate(graph, {pattern: ...}) first"
            )
        self._configs = dict(self.propagated.configs)
        self._known: Known = {}
        left = [node for node in graph if node.name not in self._configs]
        for nodes in (left, left[::-1]):  # after what they read, then before what reads them
            for node in nodes:
                if node.name not in self._configs and (config := self._beside(graph, node)) is not None:
                    self._configs[node.name] = config
        for node in left:
            self._configs.setdefault(node.name, OpConfig((1,) * len(node.dims), (0,)))

    def slice_task(self, node: Node, machine: Machine) -> Sequence[int]:
        return self._configs[node.name].degrees

    def map_task(self, node: Node, piece: int, degrees: Sequence[int], machine: Machine) -> int:
        return self._configs[node.name].processors[piece]

    def _beside(self, graph: OperatorGraph, node: Node) -> OpConfig | None:
        """Return the configuration that follows from a neighbour's cut; None if no neighbour has one yet."""
        for number, tensor in enumerate(node.inputs):
            maker = graph.producer(tensor)
            if maker.name in self._configs:
                return self._cut(node, "inputs", number, maker, "outputs", tensor.index)
        for reader in graph:
            for number, tensor in enumerate(reader.inputs):
                if tensor.node == node.number and reader.name in self._configs:
                    return self._cut(node, "outputs", tensor.index, reader, "inputs", number)
        return None

    def _cut(self, node: Node, group: str, number: int, other: Node, its: str, its_number: int) -> OpConfig:
        config = self._configs[other.name]
        cuts = [i for i, k in enumerate(config.degrees) if k > 1]
        if len(cuts) == 1:
            (at,) = cuts
            degree = config.degrees[at]
            axis = getattr(links(other, at, degree, self._known), its)[its_number]
            for i, dim in enumerate(node.dims):
                if axis in (FREE, MIXED) or not dim.divisible or dim.size < degree:
                    continue
                if getattr(links(node, i, degree, self._known), group)[number] == axis:
                    return OpConfig(tuple(degree if j == i else 1 for j in range(len(node.dims))), config.processors)
        return OpConfig((1,) * len(node.dims), config.processors[:1])
