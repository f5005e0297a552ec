"""Layer groups: samples are cut between groups of neighbouring processors, weights and activations within them.

The plans that people usually write may not fit the memory. Then stored data have to be cut as well: a group of processors
shares one copy of the weights, and of the activations of a part of the samples. Megatron-LM combines tensor and data
parallelism in this way (Shoeybi et al., arXiv 1909.08053, section 3); here every layer is cut by its outputs, none by its
inputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from taskflow.graph import Node, OperatorGraph
from taskflow.machine import Machine
from taskflow.mapper import OpConfig, Strategy, node_size
from taskflow.operators.operator import Soap
from taskflow.optimizer.algorithms.initial import with_syncs
from taskflow.optimizer.space import place


def groups(graph: OperatorGraph, machine: Machine) -> Iterator[Strategy]:
    """Return a plan for each size of group that divides the processors evenly: first those of the nodes' own size, in which the
    most traffic is where links are fastest; then from small to large."""
    count, node = len(machine.processors), node_size(machine)
    sizes = [size for size in range(2, count + 1) if count % size == 0 and size & (size - 1) == 0]
    for size in sorted(sizes, key=lambda size: (size != node, size)):
        configs = {n.name: _placed(_cut(n, count, size), count, size) for n in graph}
        yield with_syncs(Strategy(count, configs, {}, f"groups of {size}"), graph, machine)


def _placed(degrees: tuple[int, ...], count: int, size: int) -> OpConfig:
    """Group after group; what is cut by samples only is done by the first of each."""
    return place(degrees, count, stride=size if prod(degrees) * size <= count else 1)


def _cut(node: Node, count: int, size: int) -> tuple[int, ...]:
    """Samples in one piece a group; of what is left the first dimension that has a piece for each processor of a group:
    one that cuts weights, if there are any. Pieces are numbered with samples slowest, so a group's are neighbours."""
    wanted = (Soap.PARAMETER, Soap.ATTRIBUTE) if node.parameters else (Soap.ATTRIBUTE,)
    fits = [
        i for soap in wanted for i, dim in enumerate(node.dims)
        if dim.soap is soap and dim.divisible and dim.size >= size
    ]
    degrees = [1] * len(node.dims)
    for i, dim in enumerate(node.dims):
        if dim.soap is Soap.SAMPLE and dim.divisible:
            degrees[i] = min(dim.size, count // size)
        elif i in fits[:1]:
            degrees[i] = size
    return tuple(degrees)
