"""Alike: one operator cut as another one is (`cut_like`), and a strategy made for a graph carried over to a part of it (`alike`).

A `Match` says which dimensions of the two operators belong together. There are several rules for that, since operators that
go together differ in what they have in common: names (`by_name`), names or sizes (`by_name_or_size`), classes of
dimensions (`by_class`), only the samples (`by_samples`), or the tensor between them (`taskflow.optimizer.space.layers`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, product
from operator import mul

from taskflow.graph import Node, OperatorGraph
from taskflow.mapper.config import OpConfig
from taskflow.mapper.strategy import Strategy
from taskflow.operators.operator import Dim, Soap

Match = tuple[int | None, ...]  # for each dimension of an operator the dimension of the other one that it goes with
Cut = tuple[tuple[int, ...], tuple[int, ...]]  # degrees, and for each piece the number of the other operator's piece


def cut_like(dims: Sequence[Dim], match: Match, degrees: Sequence[int]) -> Cut:
    """The cut of an operator with these ``dims`` if the other one has these ``degrees``. A piece goes with the other one's piece
    of the same place in the dimensions that match, and with the first in dimensions that only the other one has."""
    own = degrees_like(dims, match, degrees)
    weights = list(accumulate(reversed(degrees), mul, initial=1))[-2::-1]  # pieces between two neighbours in each dimension
    # Of two dimensions that go with the same one, the last says which piece.
    steps = [weights[j] if j is not None and j not in match[i + 1 :] else 0 for i, j in enumerate(match)]
    return own, tuple([sum(c * s for c, s in zip(color, steps)) for color in product(*map(range, own))])


def degrees_like(dims: Sequence[Dim], match: Match, degrees: Sequence[int]) -> tuple[int, ...]:
    """The degrees of `cut_like`: those of the other operator as far as the sizes allow, and 1 where nothing matches."""
    return tuple([
        min(degrees[j], max(1, dim.size)) if j is not None and dim.divisible else 1 for dim, j in zip(dims, match)
    ])


def config_like(dims: Sequence[Dim], match: Match, config: OpConfig, fill: bool = False) -> OpConfig:
    """`cut_like`, each piece on the processor of the piece that it goes with. ``fill``: if that makes fewer pieces than the other
    operator has, the first dimension is cut further to give its other processors work, unless it is contracted."""
    degrees, places = cut_like(dims, match, config.degrees)
    if fill and degrees and len(places) < len(config.processors) and dims[0].soap is not Soap.REDUCTION:
        return _filled(dims, match, config, degrees)
    return OpConfig(degrees, tuple([config.processors[k] for k in places]))


def _filled(dims: Sequence[Dim], match: Match, config: OpConfig, degrees: tuple[int, ...]) -> OpConfig:
    """Each piece is divided among the processors of all pieces of the other operator that it goes with."""
    pools: dict[tuple[int, ...], list[int]] = {}
    for color, processor in zip(product(*map(range, config.degrees)), config.processors):
        place = tuple([min(color[j], d - 1) if j is not None else 0 for j, d in zip(match, degrees)])
        pool = pools.setdefault(place, [])
        if processor not in pool:
            pool.append(processor)
    room = dims[0].size if dims[0].divisible else 1
    more = max(1, min(room // degrees[0], min(map(len, pools.values()))))
    finer = (degrees[0] * more, *degrees[1:])
    places = [pools[(color[0] // more, *color[1:])][color[0] % more] for color in product(*map(range, finer))]
    return OpConfig(finer, tuple(places))


def by_name(dims: Sequence[Dim], others: Sequence[Dim]) -> Match:
    """Dimensions of one name go together. So do the first ones, the samples of all that is trained."""
    names = {dim.name: j for j, dim in enumerate(others)}
    return tuple([names.get(dim.name, 0 if i == 0 and others else None) for i, dim in enumerate(dims)])


def by_name_or_size(dims: Sequence[Dim], others: Sequence[Dim]) -> Match:
    """Dimensions of one name go together; else those in one place with one size; else the first of that size that is not the
    samples (a state holds one value for each channel). Contracted ones of the other operator go with none, since its
    output does not have them."""
    kept = [j for j, dim in enumerate(others) if dim.soap is not Soap.REDUCTION]
    names = {others[j].name: j for j in kept}
    found: list[int | None] = []
    for i, dim in enumerate(dims):
        same = [j for j in kept if others[j].size == dim.size and j not in found]
        j = names.get(dim.name)
        if j is None:
            j = i if i in same else next((j for j in same if others[j].soap is not Soap.SAMPLE), None)
        found.append(j if j not in found else None)
    return tuple(found)


def by_class(dims: Sequence[Dim], others: Sequence[Dim]) -> Match:
    """Dimensions of one class go together in their order: layers one after another have other names and sizes."""
    left: dict[Soap, list[int]] = {}
    for j, dim in enumerate(others):
        left.setdefault(dim.soap, []).append(j)
    return tuple([left[dim.soap].pop(0) if dim.divisible and left.get(dim.soap) else None for dim in dims])


def by_samples(dims: Sequence[Dim], others: Sequence[Dim]) -> Match:
    """Only the samples go together, if both begin with them."""
    both = bool(dims and others) and dims[0].soap is others[0].soap is Soap.SAMPLE
    return tuple([0 if both and i == 0 else None for i in range(len(dims))])


def alike(strategy: Strategy, trained: OperatorGraph, graph: OperatorGraph) -> Strategy:
    """What ``strategy``, made for ``trained``, comes to for ``graph``: a part of it in other sizes, such as the decoder of a
    trained network.

    An operator that both have, by name and kind, keeps its degrees as far as its sizes allow, and every piece its
    processor. Another one is cut by samples as the operator that feeds it, on the same processors; one that nothing
    feeds, by samples over all processors.
    """
    there = {node.name: node for node in trained}
    everyone = OpConfig((strategy.processors,), tuple(range(strategy.processors)))
    samples = (Dim("samples", strategy.processors, Soap.SAMPLE),)
    configs: dict[str, OpConfig] = {}
    for node in graph:
        twin = there.get(node.name)
        if twin is not None and twin.operator.kind == node.operator.kind and len(twin.dims) == len(node.dims):
            configs[node.name] = config_like(node.dims, tuple(range(len(node.dims))), strategy[node.name])
        elif node.inputs:
            feeder = graph.nodes[node.inputs[0].node]
            configs[node.name] = config_like(node.dims, by_samples(node.dims, feeder.dims), configs[feeder.name])
        else:
            configs[node.name] = config_like(node.dims, by_samples(node.dims, samples), everyone)
    # Evaluation has no passes.
    return Strategy(strategy.processors, configs, strategy.syncs, strategy.name, strategy.sums, exchange=strategy.exchange)


def follow(source: Node, config: OpConfig, target: Node) -> OpConfig:
    """``target`` cut as ``source`` is in the dimensions that they both have (`by_name`), each piece where the matching piece of
    ``source`` runs. With equal dimensions it has the same configuration, uneven pieces included."""
    if source.dims == target.dims:
        return config
    return config_like(target.dims, by_name(target.dims, source.dims), config)
