"""Expert: how experts cut and place each kind of network by hand. A search has to beat it."""

from __future__ import annotations

from collections.abc import Sequence

from taskflow.graph import Node, OperatorGraph
from taskflow.machine import Machine
from taskflow.mapper.mapper import Mapper
from taskflow.mapper.megatron import Megatron, attends
from taskflow.mapper.rules import cut_only, depths, homes
from taskflow.operators.operator import Soap, Work


class Expert(Mapper):
    """Experts' strategies that the paper compares with (section 8.1), and today's for Transformers, which the paper does not
    have.

    Convolutional networks (Krizhevsky, "One weird trick", 2014): data parallelism, but dense layers cut in the channel
    dimension. Recurrent networks (Wu et al., GNMT, 2016): data parallelism between nodes and one processor a layer depth within
    each. Networks with attention (`attends`): `Megatron`. A network with an operator whose `work` is recurrent counts as
    recurrent. Operators say themselves whether they are dense layers (`Operator.dense_dim`). ``per_node``: processors of one
    node, for recurrent networks.
    """

    name = "expert"

    def __init__(self, per_node: int = 4) -> None:
        if per_node < 1:
            raise ValueError(f"expert: per_node must be at least 1, got {per_node}")
        self._wanted = per_node

    def prepare(self, graph: OperatorGraph, machine: Machine) -> None:
        self._megatron = Megatron() if attends(graph) else None
        if self._megatron is not None:
            self._megatron.prepare(graph, machine)
            return
        self._recurrent = any(node.operator.work is Work.RECURRENT for node in graph)
        count = len(machine.processors)
        # The largest node size up to the wanted one that divides the machine.
        self._per_node = max(n for n in range(1, min(self._wanted, count) + 1) if count % n == 0)
        self._depth = depths(graph)
        self._levels = max(self._depth.values(), default=0) + 1
        self._homes = {} if self._recurrent else homes(graph, count)

    def slice_task(self, node: Node, machine: Machine) -> Sequence[int]:
        count = len(machine.processors)
        if self._megatron is not None:
            return self._megatron.slice_task(node, machine)
        if self._recurrent:
            return cut_only(node, Soap.SAMPLE, count // self._per_node)
        if (dense := node.operator.dense_dim) is not None and not node.of_weights:
            return tuple(min(count, dim.size) if dim.name == dense and dim.divisible else 1 for dim in node.dims)
        return cut_only(node, Soap.SAMPLE, count)

    def map_task(self, node: Node, piece: int, degrees: Sequence[int], machine: Machine) -> int:
        if self._megatron is not None:
            return self._megatron.map_task(node, piece, degrees, machine)
        if not self._recurrent or node.of_weights:
            return self._homes.get(node.name, piece)
        level = self._depth[node.name] * self._per_node // max(self._levels, self._per_node)
        return piece * self._per_node + level

    def select_copies(self, node: Node, machine: Machine) -> int:
        if self._megatron is not None:
            return self._megatron.select_copies(node, machine)
        return len(machine.processors) if node.of_weights and node.name not in self._homes else 1

    def map_tasks(self, node: Node, count: int, degrees: Sequence[int], machine: Machine) -> Sequence[int]:
        if self._megatron is not None and type(self).map_task is Expert.map_task:
            return self._megatron.map_tasks(node, count, degrees, machine)
        return super().map_tasks(node, count, degrees, machine)
