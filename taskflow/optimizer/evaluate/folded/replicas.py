"""Replicas: which processors do the same, each replica having an equal share of the samples of every operator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from taskflow.graph import Node, OperatorGraph
from taskflow.machine import Machine
from taskflow.mapper import OpConfig, Strategy, sample_dim
from taskflow.operators.operator import Soap

Permutations = np.ndarray  # (replica, processor) -> processor of that replica  # type: ignore[type-arg]


@dataclass(frozen=True, slots=True)
class Replicas:
    """Groups of processors that do the same: ``count`` replicas. ``images``: for each processor of the first replica, all
    processors that do the same, itself first. ``spread``: the operators that replicas divide along another dimension than
    samples, as experts are."""

    count: int
    images: dict[int, tuple[int, ...]]
    spread: frozenset[str] = frozenset()


def replicas(graph: OperatorGraph, strategy: Strategy, machine: Machine) -> Iterator[Replicas]:
    """Return the ways of seeing a strategy as replicas, those with the most replicas first and one replica last. Samples of
    each micro-batch are divided among replicas in equal shares. For every operator, each other replica has a processor that
    does what processor p does in the first. A constant without samples is taken to be in each replica. Operators whose samples
    have fewer shares may be divided along another dimension, too."""
    micro_batches = 1 if strategy.pipeline is None else strategy.pipeline.parts
    shares: dict[str, int] = {}
    for node in graph:
        dim = sample_dim(node)
        if dim is None and node.operator.kind == "constant":
            continue
        degree = 1 if dim is None else strategy[node.name].degrees[dim]
        even = dim is not None and degree % micro_batches == 0 and node.dims[dim].size % degree == 0
        shares[node.name] = degree // micro_batches if even and not strategy[node.name].weights else 1
    most = max(shares.values(), default=1)
    for count in (n for n in range(most, 0, -1) if most % n == 0):
        found = _images(graph, strategy, micro_batches, count, shares)
        if found is not None and _alike(machine, found.images):
            yield found


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
        if count > 1 and dim is None and node.operator.kind == "constant":
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
    known: dict[tuple[int, int | None], bool] = {}
    for node in others:
        key = id(strategy[node.name]), sample_dim(node)
        if key not in known:
            known[key] = _is_spread(node, strategy[node.name], key[1], micro_batches, column, table)
        if not known[key]:
            return None
    images = {int(p): tuple(table[:, column[p]].tolist()) for p in np.flatnonzero(column >= 0)}
    everybody = [image for of_one in images.values() for image in of_one]
    return Replicas(count, images, spread) if len(set(everybody)) == len(everybody) else None


def _is_spread(
    node: Node, config: OpConfig, dim: int | None, micro_batches: int, column: np.ndarray, table: np.ndarray  # type: ignore[type-arg]
) -> bool:
    """True if replicas divide an operator's samples and one other dimension of its results together, in equal shares."""
    count, degrees = len(table), config.degrees
    if dim is None or config.weights or any(d.size % n for d, n in zip(node.dims, degrees)) or degrees[dim] % micro_batches:
        return False
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
                return True
    return False


def _by_replica(config: OpConfig, dim: int | None, micro_batches: int, count: int) -> np.ndarray:  # type: ignore[type-arg]
    """The processors of an operator's pieces, one row for each replica."""
    processors = np.asarray(config.processors)
    if count == 1 or dim is None:
        return processors.reshape(1, -1)
    degrees, degree = config.degrees, config.degrees[dim]
    outer, inner = int(np.prod(degrees[:dim], dtype=int)), int(np.prod(degrees[dim + 1 :], dtype=int)) * config.copies
    apart = processors.reshape(outer, micro_batches, count, degree // micro_batches // count, inner)
    return np.moveaxis(apart, 2, 0).reshape(count, -1)


def _alike(machine: Machine, images: dict[int, tuple[int, ...]]) -> bool:
    """True if processors that do the same are of the same kind, and replicas are placed in nodes alike: two processors of one
    replica share a node if and only if the corresponding ones of the next replica do."""
    processors = machine.processors
    following: dict[int, int] = {}
    for of in images.values():
        if len({processors[i].device for i in of}) > 1:
            return False
        for here, there in zip(of, (*of[1:], of[0])):
            if following.setdefault(processors[here].node, processors[there].node) != processors[there].node:
                return False
    return len(set(following.values())) == len(following)
