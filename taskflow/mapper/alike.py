"""alike: a strategy for a graph that is a part of another one in other sizes, such as the decoder of a trained network."""

from __future__ import annotations

from itertools import product
from math import prod

from taskflow.graph import Node, OperatorGraph
from taskflow.mapper.config import OpConfig
from taskflow.mapper.strategy import Strategy
from taskflow.operators.operator import Soap


def alike(strategy: Strategy, trained: OperatorGraph, graph: OperatorGraph) -> Strategy:
    """What ``strategy``, made for ``trained``, comes to for ``graph``.

    An operator that both have, by name and kind, keeps its degrees as far as its sizes allow, and every piece its
    processor. Another one is cut by samples as the operator that feeds it, on the same processors; one that nothing
    feeds, by samples over all processors.
    """
    there = {node.name: node for node in trained}
    configs: dict[str, OpConfig] = {}
    for node in graph:
        twin = there.get(node.name)
        if twin is not None and twin.operator.kind == node.operator.kind and len(twin.dims) == len(node.dims):
            configs[node.name] = _shrunk(strategy[node.name], node)
        elif node.inputs:
            feeder = graph.nodes[node.inputs[0].node]
            configs[node.name] = _by_samples(node, _samples(configs[feeder.name], feeder))
        else:
            configs[node.name] = _by_samples(node, tuple(range(strategy.processors)))
    return Strategy(strategy.processors, configs, strategy.syncs, strategy.name, strategy.sums)


def _shrunk(config: OpConfig, node: Node) -> OpConfig:
    """The config with no degree above a size; a piece has the processor of the old piece of its color."""
    degrees = tuple(min(k, d.size) if d.divisible else 1 for k, d in zip(config.degrees, node.dims))
    colors = product(*(range(k) for k in degrees))
    return OpConfig(degrees, tuple(config.processors[_number(color, config.degrees)] for color in colors))


def _samples(config: OpConfig, node: Node) -> tuple[int, ...]:
    """The processor of the first piece of every part of the samples."""
    if not node.dims or node.dims[0].soap is not Soap.SAMPLE:
        return config.processors[:1]
    return config.processors[:: prod(config.degrees[1:])]


def _by_samples(node: Node, processors: tuple[int, ...]) -> OpConfig:
    cut = bool(node.dims) and node.dims[0].soap is Soap.SAMPLE and node.dims[0].divisible
    degree = min(len(processors), node.dims[0].size) if cut else 1
    return OpConfig(tuple(1 if i else degree for i in range(len(node.dims))), processors[:degree])


def _number(color: tuple[int, ...], degrees: tuple[int, ...]) -> int:
    """The row-major number of a piece."""
    number = 0
    for at, degree in zip(color, degrees):
        number = number * degree + at
    return number
