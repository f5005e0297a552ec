"""Megatron: how experts train Transformers: tensor parallelism within groups of neighbours, samples divided among the groups.

Shoeybi et al., "Megatron-LM", arXiv 1909.08053, section 3: of two layers in a row the first is cut by its outputs and the
second by its inputs. So everything between them (attention heads, activations) stays where it is made, and only the second's
partial sums travel. Operators between such pairs (sums, normalisation, dropout) are cut by samples over all processors;
Korthikanti et al., arXiv 2205.05198, cut them along the sequence, to the same end.
"""

from __future__ import annotations

from collections.abc import Sequence

from taskflow.graph import Node, OperatorGraph
from taskflow.machine import Machine
from taskflow.mapper.mapper import Mapper
from taskflow.mapper.rules import cut_only
from taskflow.operators.operator import Soap, Work

CONVOLVED = 0.05
"""Part of a network's arithmetic that convolutions may need where plans are made of matrix products (an estimate: those of patches
need a hundredth)."""


class Megatron(Mapper):
    """Tensor parallelism within groups, data parallelism between them. ``size``: processors of a group; None: a node's. It is
    lowered to the next number that divides the number of processors."""

    name = "megatron"

    def __init__(self, size: int | None = None) -> None:
        if size is not None and size < 1:
            raise ValueError(f"megatron: size must be at least 1, got {size}")
        self._wanted = size

    def prepare(self, graph: OperatorGraph, machine: Machine) -> None:
        count = len(machine.processors)
        wanted = min(self._wanted or node_size(machine), count)
        self._size = max(n for n in range(1, wanted + 1) if count % n == 0)
        self._shared: dict[str, int] = {}  # operator -> which of its dimensions a group shares
        self._places: dict[tuple[tuple[int, ...], int | None, bool], tuple[int, ...]] = {}
        axes: dict[tuple[int, int], int] = {}  # tensor -> the axis along which it lies cut in a group
        for operator in graph:
            dim = self._choice(operator, axes)
            if dim is None:
                continue
            self._shared[operator.name] = dim
            for tensor in operator.outputs:
                axis = operator.written_axis(dim, tensor.index)
                if axis is not None:
                    axes[tensor.node, tensor.index] = axis

    def slice_task(self, node: Node, machine: Machine) -> Sequence[int]:
        count, shared = len(machine.processors), self._shared.get(node.name)
        if shared is None:
            return cut_only(node, Soap.SAMPLE, count)
        degrees = list(cut_only(node, Soap.SAMPLE, count // self._size))
        degrees[shared] = self._size
        return degrees

    def map_task(self, node: Node, piece: int, degrees: Sequence[int], machine: Machine) -> int:
        """Choose a piece's processor. Processors are numbered group after group. An operator that is not shared has each sample
        in the group that has the sample elsewhere."""
        shared, count, member = self._shared.get(node.name), len(machine.processors), 0
        group, groups = 0, 1
        if node.of_weights:
            piece, group = divmod(piece, self.select_copies(node, machine))
            return group if shared is None else group * self._size + piece
        for i in reversed(range(len(degrees))):
            piece, at = divmod(piece, degrees[i])
            if i == shared:
                member = at
            elif degrees[i] > 1:
                group, groups = at, degrees[i]
        if shared is not None:
            return group * self._size + member
        return group * (count // groups)

    def select_copies(self, node: Node, machine: Machine) -> int:
        if not node.of_weights:
            return 1
        return len(machine.processors) // (1 if node.name not in self._shared else self._size)

    def map_tasks(self, node: Node, count: int, degrees: Sequence[int], machine: Machine) -> Sequence[int]:
        if type(self).map_task is not Megatron.map_task:  # somebody places pieces in another way
            return super().map_tasks(node, count, degrees, machine)
        key = tuple(degrees), self._shared.get(node.name), node.of_weights
        if key not in self._places:  # other operators' pieces lie as this one's do
            self._places[key] = tuple([self.map_task(node, piece, degrees, machine) for piece in range(count)])
        return self._places[key]

    def shared(self, node: Node) -> int | None:
        """Return the dimension of an operator along which a group shares it; None if it is not shared. Call after `prepare`."""
        return self._shared.get(node.name)

    def _choice(self, node: Node, axes: dict[tuple[int, int], int]) -> int | None:
        """The dimension that a group shares: one that reads an input as it lies; else of a table its rows (of what reads no numbers
        but words), and of another layer with a matrix of weights its outputs. None if it shares nothing."""
        if self._size == 1:
            return None
        long = [
            i for i, dim in enumerate(node.dims)
            if dim.divisible and dim.size >= self._size and dim.soap is not Soap.SAMPLE
        ]
        if not node.parameters and node.operator.work is Work.MEMORY:
            # Sums over what lies apart cost more than fetching it, if neither weights nor products have to be shared.
            long = [i for i in long if node.dims[i].soap is not Soap.REDUCTION]
        for index, tensor in enumerate(node.inputs):
            lies = axes.get((tensor.node, tensor.index))
            for i in long if lies is not None else ():
                if node.read_axis(i, index) == lies:
                    return i
        words = bool(node.inputs) and not node.of_weights and not any(tensor.spec.differentiable for tensor in node.inputs)
        if not any(len(p.shape) > 1 for p in node.parameters) or not (words or node.operator.work is Work.CONTRACTION):
            return None  # nothing to share, or positions that are added: cutting these would cut all that follows by words
        wanted = (Soap.REDUCTION, Soap.PARAMETER) if words else (Soap.PARAMETER,)
        return next((i for soap in wanted for i in long if node.dims[i].soap is soap), None)


def suits(graph: OperatorGraph) -> bool:
    """True if tensor parallelism suits a network: it has matrix products, but no convolutions and no recurrence."""
    works = {node.operator.work for node in graph}
    return Work.CONTRACTION in works and not works & {Work.CONVOLUTION, Work.RECURRENT}


def multiplies(graph: OperatorGraph) -> bool:
    """True if the work of a network is matrix products: it has no recurrence, and its convolutions, such as that of an image's
    patches, need no more than `CONVOLVED` of the arithmetic of both."""
    flops = dict.fromkeys(Work, 0)
    for node in graph:
        flops[node.operator.work] += node.operator.flops(node.specs, node.space)
    both = flops[Work.CONTRACTION] + flops[Work.CONVOLUTION]
    return flops[Work.CONTRACTION] > 0 == flops[Work.RECURRENT] and flops[Work.CONVOLUTION] <= CONVOLVED * both


def attends(graph: OperatorGraph) -> bool:
    """True if `suits`, and activations are multiplied with each other, as in attention."""
    return suits(graph) and has_attention(graph)


def has_attention(graph: OperatorGraph) -> bool:
    """True if activations are multiplied with each other."""
    return any(node.operator.kind in ("matmul", "flash_attention", "attention_blocks") for node in graph)


def is_attention(node: Node) -> bool:
    """True for attention that is one operator, the third dimension of whose queries, keys and values are heads."""
    return node.operator.kind == "flash_attention"


def heads_dealt(graph: OperatorGraph) -> int:
    """Return to how many devices the heads of all such attention can be dealt; 0 if there is none."""
    return min((node.inputs[0].spec.shape[2] for node in graph if is_attention(node)), default=0)


def node_size(machine: Machine) -> int:
    """Return the number of processors of the first node."""
    return sum(p.node == machine.processors[0].node for p in machine.processors)
