"""Alike: cuts one operator like another (`cut_like`), and carries a strategy over from a graph to a part of it (`alike`).

A `Match` says which dimensions of the two operators correspond. There are several rules, since pairs of operators have
different things in common: names (`by_name`), names or sizes (`by_name_or_size`), classes of dimensions (`by_class`), only the
samples (`by_samples`), or the tensor between them (`taskflow.optimizer.space.layers`).
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
    """Return the cut of an operator with these ``dims``, given the other one's ``degrees``. A piece goes with the other
    operator's piece at the same place in the dimensions that match, and at the first place in dimensions that only the other
    one has."""
    own = degrees_like(dims, match, degrees)
    weights = list(accumulate(reversed(degrees), mul, initial=1))[-2::-1]  # pieces between two neighbours in each dimension
    # Of two dimensions that go with the same one, the last says which piece.
    steps = [weights[j] if j is not None and j not in match[i + 1 :] else 0 for i, j in enumerate(match)]
    return own, tuple([sum(c * s for c, s in zip(color, steps)) for color in product(*map(range, own))])


def degrees_like(dims: Sequence[Dim], match: Match, degrees: Sequence[int]) -> tuple[int, ...]:
    """Return the degrees of `cut_like`: the other operator's as far as the sizes allow, and 1 where nothing matches."""
    return tuple([
        min(degrees[j], max(1, dim.size)) if j is not None and dim.divisible else 1 for dim, j in zip(dims, match)
    ])


def config_like(dims: Sequence[Dim], match: Match, config: OpConfig, fill: bool = False) -> OpConfig:
    """Return the cut of `cut_like` with each piece on the processor of the piece that it goes with. ``fill``: if there are
    fewer pieces than the other operator has, cut the first dimension further (unless it is contracted) to give work to its
    other processors."""
    degrees, places = cut_like(dims, match, config.degrees)
    if fill and degrees and len(places) < len(config.processors) and dims[0].soap is not Soap.REDUCTION:
        return _filled(dims, match, config, degrees)
    return OpConfig(degrees, tuple([config.processors[k] for k in places]))


def _filled(dims: Sequence[Dim], match: Match, config: OpConfig, degrees: tuple[int, ...]) -> OpConfig:
    """Divide each piece among the processors of all the other operator's pieces that it goes with."""
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
    """Match dimensions with the same name. First dimensions also match, since they are the samples of everything that is
    trained."""
    names = {dim.name: j for j, dim in enumerate(others)}
    return tuple([names.get(dim.name, 0 if i == 0 and others else None) for i, dim in enumerate(dims)])


def by_name_or_size(dims: Sequence[Dim], others: Sequence[Dim]) -> Match:
    """Match dimensions with the same name; else those at the same place with the same size; else the first of that size, except
    samples (a state holds one value for each channel). Contracted dimensions of the other operator match nothing, since its
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
    """Match dimensions of the same class in order, since consecutive layers differ in the names and sizes of their dimensions."""
    left: dict[Soap, list[int]] = {}
    for j, dim in enumerate(others):
        left.setdefault(dim.soap, []).append(j)
    return tuple([left[dim.soap].pop(0) if dim.divisible and left.get(dim.soap) else None for dim in dims])


def by_samples(dims: Sequence[Dim], others: Sequence[Dim]) -> Match:
    """Match only the samples, if both operators begin with them."""
    both = bool(dims and others) and dims[0].soap is others[0].soap is Soap.SAMPLE
    return tuple([0 if both and i == 0 else None for i in range(len(dims))])


def alike(strategy: Strategy, trained: OperatorGraph, graph: OperatorGraph) -> Strategy:
    """Return the strategy for ``graph`` that follows from ``strategy``, made for ``trained``. ``graph`` is a part of
    ``trained`` in other sizes, such as the decoder of a trained network.

    An operator that both have, by name and kind, keeps its degrees as far as its sizes allow, and every piece its processor.
    Any other operator is cut by samples like the operator that feeds it, on the same processors; without such an operator, by
    samples over all processors.
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
    """Return ``target`` cut like ``source`` in the dimensions that they share (`by_name`), each piece where the matching piece
    of ``source`` runs. If all dimensions are equal, so is the configuration, including uneven pieces."""
    if source.dims == target.dims:
        return config
    return config_like(target.dims, by_name(target.dims, source.dims), config)
