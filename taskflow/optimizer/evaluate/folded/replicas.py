"""Replicas: which processors do the same, each replica having an equal share of the samples of every operator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from taskflow.graph import Node, OperatorGraph
from taskflow.machine import Machine
from taskflow.mapper import OpConfig, Strategy, sample_dim
from taskflow.operators.cost_key import cost_key
from taskflow.operators.operator import Soap

Permutations = np.ndarray  # (replica, processor) -> processor of that replica  # type: ignore[type-arg]


@dataclass(frozen=True, slots=True)
class Replicas:
    """Groups of processors that do the same: ``count`` replicas. ``images``: for each processor of the first replica, all
    processors that do the same, itself first. ``spread``: the operators that replicas divide along another dimension than
    samples, too, as experts are. ``blocks``: the numbers of replicas that follow each other and have something to themselves,
    each a multiple of the one before: a tensor-parallel group, experts, a node."""

    count: int
    images: dict[int, tuple[int, ...]]
    spread: frozenset[str] = frozenset()
    blocks: tuple[int, ...] = ()


def replicas(graph: OperatorGraph, strategy: Strategy, machine: Machine) -> Iterator[Replicas]:
    """Return the ways of seeing a strategy as replicas, those with the most replicas first and one replica last. Samples of
    each micro-batch are divided among replicas in equal shares. For every operator, each other replica has a processor that
    does what processor p does in the first. What is made of weights alone is in each replica, in copies; a constant is taken to be
    so anyway. Operators whose samples have fewer shares may be divided along another dimension, too; so may all, as in
    tensor-parallel groups."""
    micro_batches = 1 if strategy.pipeline is None else strategy.pipeline.parts
    shares: dict[str, int] = {}
    for node in graph:
        dim = sample_dim(node)
        if dim is None and (node.operator.kind == "constant" or strategy[node.name].is_local(node)):
            continue
        degree = 1 if dim is None else strategy[node.name].degrees[dim]
        even = dim is not None and degree % micro_batches == 0 and node.dims[dim].size % degree == 0
        shares[node.name] = degree // micro_batches if even and not strategy[node.name].weights else 1
    most = max(shares.values(), default=1)
    yield from _members_apart(graph, strategy, machine, most)
    for count in (n for n in range(most, 0, -1) if most % n == 0):
        found = _images(graph, strategy, micro_batches, count, shares)
        if found is not None and _in_each(graph, strategy, found) and (placed := _placed_alike(machine, found)) is not None:
            yield placed


def _members_apart(graph: OperatorGraph, strategy: Strategy, machine: Machine, shares: int) -> Iterator[Replicas]:
    """Yield the ways in which each member of a group that shares an operator's work is a replica, too, beside the ``shares`` of
    samples."""
    parts = 1 if strategy.pipeline is None else strategy.pipeline.parts
    if strategy.pipeline is not None and strategy.pipeline.split > 1:  # parts take turns after what members of a group exchange
        return
    nodes = [
        node for node in graph
        if sample_dim(node) is not None or not (node.operator.kind == "constant" or strategy[node.name].is_local(node))
    ]
    members = max((len(strategy[node.name].processors) for node in nodes), default=1) // (parts * shares)
    for inner in (n for n in range(members, 1, -1) if members % n == 0):
        found = _by_member(nodes, strategy, parts, shares, inner)
        if found is not None and _in_each(graph, strategy, found) and (placed := _placed_alike(machine, found)) is not None:
            yield placed


def _in_each(graph: OperatorGraph, strategy: Strategy, found: Replicas) -> bool:
    """True if of what is made of weights alone processors that do the same compute the same, at the same cost, or nothing."""
    known = {image for images in found.images.values() for image in images}
    seen: set[tuple[object, ...]] = set()
    for node in graph:
        config = strategy[node.name]
        if not config.is_local(node) or found.count == 1 or (key := (id(config), node.operator, node.specs)) in seen:
            continue
        seen.add(key)
        grid, held = config.partition(node), dict[int, list[object]]()
        for piece, color in enumerate(grid):
            cost = cost_key(node.operator, node.specs, grid.rect(color), False)
            for processor in config.processors[piece * config.copies : (piece + 1) * config.copies]:
                held.setdefault(processor, []).append(cost)
        if not known.issuperset(held) or any(held.get(p) != held.get(of[0]) for of in found.images.values() for p in of):
            return False
    return True


def _by_member(nodes: Sequence[Node], strategy: Strategy, parts: int, shares: int, inner: int) -> Replicas | None:
    """Replicas of which each is one of ``inner`` neighbours in a group that has one of the ``shares`` of samples. None unless
    all operators' pieces are dealt to these alike, and cost the same."""
    place = np.full((2, strategy.processors), -1)  # of each processor: which replica, and which of its processors
    columns: list[list[int]] = []
    count = shares * inner
    known: set[tuple[object, ...]] = set()
    for node in nodes:
        config, dim = strategy[node.name], sample_dim(node)
        if (key := (id(config), node.operator, node.specs)) in known:
            continue
        known.add(key)
        degrees = config.degrees
        if dim != 0 or config.copies > 1 or config.weights or any(d.size % n for d, n in zip(node.dims, degrees)):
            return None
        if degrees[0] != parts * shares or len(config.processors) % (parts * count):
            return None
        table = np.asarray(config.processors).reshape(parts, shares, -1)
        if (table != table[0]).any():
            return None
        if place[0, table[0, 0, 0]] < 0:
            new = np.moveaxis(table[0].reshape(shares, -1, inner), 1, 0).reshape(-1, count)  # (column, replica)
            if (place[0, new] >= 0).any() or len(np.unique(new)) < new.size:
                return None
            place[0, new], place[1, new] = np.arange(count), len(columns) + np.arange(len(new))[:, None]
            columns += new.tolist()
        if not _dealt_alike(node, config, table[0], place, inner):
            return None
    images = {of[0]: tuple(of) for of in columns}
    return Replicas(count, images, frozenset(node.name for node in nodes), (inner,))


def _dealt_alike(
    node: Node, config: OpConfig, table: np.ndarray, place: np.ndarray, inner: int  # type: ignore[type-arg]
) -> bool:
    """True if each replica's processors have as many pieces of an operator, at the same cost. ``table``: by share of samples;
    ``place``: of each processor its replica, and which of that's processors it is."""
    replica, column = place[:, table]
    if (replica // inner != np.arange(len(table))[:, None]).any():  # those without a place are in none
        return False
    order = np.lexsort((column.ravel(), replica.ravel()))
    each, of = replica.ravel()[order].reshape(len(table) * inner, -1), column.ravel()[order].reshape(len(table) * inner, -1)
    if (each != np.arange(len(each))[:, None]).any() or (of != of[0]).any():
        return False
    grid, costs = config.partition(node), dict[int, set[object]]()
    for index, of_one in enumerate(column[0].tolist()):
        rect = grid.rect((0, *(int(i) for i in np.unravel_index(index, config.degrees[1:]))))
        costs.setdefault(of_one, set()).add(cost_key(node.operator, node.specs, rect, False))
    return all(len(of_one) == 1 for of_one in costs.values())


def _images(
    graph: OperatorGraph, strategy: Strategy, micro_batches: int, count: int, shares: Mapping[str, int]
) -> Replicas | None:
    """For each processor of the first replica, those that do the same; None if operators disagree."""
    column = np.full(strategy.processors, -1)  # of each processor of the first replica: of all others there are many
    table = np.empty((count, 0), np.int64)
    seen: set[tuple[int, tuple[int, ...], int | None, int]] = set()
    others = [node for node in graph if count > 1 and shares.get(node.name, count) % count]
    spread = frozenset(node.name for node in others)
    for node in graph:
        if node.name in spread:
            continue
        config, dim = strategy[node.name], sample_dim(node)
        if count > 1 and dim is None and (node.operator.kind == "constant" or strategy[node.name].is_local(node)):
            continue
        if (placed := (id(config.processors), config.degrees, dim, config.copies)) in seen:
            continue
        seen.add(placed)
        found = _by_replica(config, dim, micro_batches, count)
        new = np.unique(found[0][column[found[0]] < 0])
        column[new] = np.arange(table.shape[1], table.shape[1] + len(new))
        table = np.concatenate([table, np.full((count, len(new)), -1)], axis=1)
        of = column[found[0]]
        now = table[:, of]
        if ((now != -1) & (now != found)).any():
            return None
        table[:, of] = found
        if (table[:, of] != found).any():  # one processor of the first replica has several images
            return None
    known: dict[tuple[int, int | None], int] = {}
    for node in others:
        key = id(strategy[node.name]), sample_dim(node)
        if key not in known:
            known[key] = _is_spread(node, strategy[node.name], key[1], micro_batches, column, table)
        if not known[key]:
            return None
    images = {int(p): tuple(table[:, column[p]].tolist()) for p in np.flatnonzero(column >= 0)}
    everybody = [image for of_one in images.values() for image in of_one]
    blocks = tuple({min(n, count) for n in known.values()})
    return Replicas(count, images, spread, blocks) if len(set(everybody)) == len(everybody) else None


def _is_spread(
    node: Node, config: OpConfig, dim: int | None, micro_batches: int, column: np.ndarray, table: np.ndarray  # type: ignore[type-arg]
) -> int:
    """If replicas divide an operator's samples and one other dimension of its results together, in equal shares, return how many
    share the latter; else 0."""
    count, degrees = len(table), config.degrees
    if dim is None or config.weights or any(d.size % n for d, n in zip(node.dims, degrees)) or degrees[dim] % micro_batches:
        return 0
    each, processors = degrees[dim] // micro_batches, np.asarray(config.processors)
    for i in range(dim + 1, len(degrees)):
        if node.dims[i].soap is Soap.REDUCTION or each * degrees[i] % count:
            continue
        for inner in (n for n in range(1, degrees[i] + 1) if degrees[i] % n == 0 and each * n % count == 0):
            shape = (
                int(np.prod(degrees[:dim], dtype=int)), micro_batches, each, int(np.prod(degrees[dim + 1 : i], dtype=int)),
                degrees[i] // inner, inner, int(np.prod(degrees[i + 1 :], dtype=int)) * config.copies,
            )
            found = np.moveaxis(processors.reshape(shape), (2, 5), (0, 1)).reshape(count, -1)
            of = column[found[0]]
            if (of >= 0).all() and (table[:, of] == found).all():
                return inner
    return 0


def _by_replica(config: OpConfig, dim: int | None, micro_batches: int, count: int) -> np.ndarray:  # type: ignore[type-arg]
    """The processors of an operator's pieces, one row for each replica."""
    processors = np.asarray(config.processors)
    if count == 1 or dim is None:
        return processors.reshape(1, -1)
    degrees, degree = config.degrees, config.degrees[dim]
    outer, inner = int(np.prod(degrees[:dim], dtype=int)), int(np.prod(degrees[dim + 1 :], dtype=int)) * config.copies
    apart = processors.reshape(outer, micro_batches, count, degree // micro_batches // count, inner)
    return np.moveaxis(apart, 2, 0).reshape(count, -1)


def _placed_alike(machine: Machine, found: Replicas) -> Replicas | None:
    """Replicas with all of their `blocks`, also those that share a node or what is above it. None unless processors that do the
    same are of the same kind, and blocks within each block can change places without changing what processors share."""
    processors, count = machine.processors, found.count
    if any(len({processors[i].device for i in of}) > 1 for of in found.images.values()):
        return None
    nodes = np.array([[processors[i].node for i in of] for of in found.images.values()], np.int64)  # column, replica -> node
    network = getattr(machine, "network", None)
    tables = [nodes, *(nodes // level.nodes for level in (() if network is None else network.levels))]
    near = {int(np.argmin(np.append(of[0] == of[0, 0], False))) for of in tables}  # how many replicas share one with the first
    blocks = tuple(sorted({*found.blocks, *near, count} - {1}))
    if any(large % small for small, large in pairwise(blocks)):
        blocks = (count,) if count > 1 else ()
    number = np.arange(count)
    for small, large in pairwise((1, *blocks)):
        following = number // large * large + (number + small) % large
        for of in tables:
            pairs = np.unique(np.stack([of.ravel(), of[:, following].ravel()]), axis=1)
            if any(len(np.unique(side)) < pairs.shape[1] for side in pairs):
                return None
    return replace(found, blocks=blocks)
