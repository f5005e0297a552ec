"""Ranks as a mesh: which mesh dimensions each operator's cuts lie along.

A plan places every piece by itself. Other frameworks have a mesh of ranks, and cut tensors along its dimensions. Here the ranks
of a stage become a mesh of prime sizes. Each operator's cut becomes an assignment: for each mesh dimension one of the
operator's dimensions, or none (the same on all ranks along it). Neighbouring mesh dimensions that all operators use alike are
joined.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from taskflow.graph import Node, OperatorGraph
from taskflow.mapper import CollectiveSync, OpConfig, Pipeline, Strategy, Sync, in_micro_batches, sample_dim, sync_words
from taskflow.operators.operator import Soap

Assignment = tuple[int | None, ...]  # for each mesh dimension the operator's dimension that is cut along it


@dataclass(frozen=True, slots=True)
class Mesh:
    """Mesh of a plan. ``sizes``: of the dimensions within one pipeline rank, the slowest first. ``orders``: for each pipeline
    rank the plan's processors in the order of the mesh. ``assignments``: operator -> how it is cut. ``refused``: operators that
    no assignment describes, with the reason. ``redundant``: operators that the plan computes on some ranks, and a mesh on all.
    ``copied``: operators that the plan too computes on several ranks."""

    sizes: tuple[int, ...]
    orders: tuple[tuple[int, ...], ...]
    assignments: Mapping[str, Assignment]
    refused: Mapping[str, str]
    redundant: tuple[str, ...]
    copied: frozenset[str] = frozenset()

    @property
    def ranks(self) -> int:
        """Number of ranks of the whole plan."""
        return prod(self.sizes) * len(self.orders)

    @property
    def devices(self) -> tuple[int, ...]:
        """Return the plan's processor for each rank, in the order of the mesh."""
        return tuple(processor for order in self.orders for processor in order)

    def coordinates(self) -> list[tuple[int, ...]]:
        """Return the coordinates of the ranks of one pipeline rank, in order."""
        return list(product(*(range(size) for size in self.sizes)))

    def config(self, node: Node, assignment: Assignment, pipeline: Pipeline | None) -> OpConfig:
        """Return the configuration that an assignment stands for. An operator that is on all ranks along a dimension is
        computed by the first of them."""
        degrees = [1] * len(node.dims)
        for size, dim in zip(self.sizes, assignment):
            if dim is not None:
                degrees[dim] *= size
        rank = pipeline.rank(node.name) if pipeline is not None else 0
        places: dict[tuple[int, ...], list[int]] = {}
        for processor, at in zip(self.orders[rank], self.coordinates()):
            places.setdefault(_color(at, self.sizes, assignment, len(degrees)), []).append(processor)
        copies = prod(size for size, dim in zip(self.sizes, assignment) if dim is None) if node.name in self.copied else 1
        colors = product(*(range(d) for d in degrees))
        config = OpConfig(tuple(degrees), tuple(p for color in colors for p in places[color][:copies]), copies=copies)
        return config if pipeline is None else in_micro_batches(node, config, pipeline.micro_batches)


def mesh_of(graph: OperatorGraph, strategy: Strategy) -> Mesh:
    """Return the mesh of a plan. Raises ValueError unless its pipeline's ranks are disjoint sets of equally many devices."""
    pipeline = strategy.pipeline
    groups = _groups(graph, strategy)
    size = len(groups[0])
    if len({*map(len, groups)}) > 1 or len({p for group in groups for p in group}) < size * len(groups):
        words = "; ".join(f"rank {i}: {list(group)}" for i, group in enumerate(groups))
        raise ValueError(f"the pipeline's ranks must be equally many devices each, and share none; got {words}")
    nodes = {node.name: node for node in graph}
    configs: dict[str, OpConfig] = {}
    refused: dict[str, str] = {}
    one: dict[tuple[OpConfig, int | None, int], OpConfig] = {}  # layers that are alike are looked at once
    for node in graph:
        dim = sample_dim(node)
        key = strategy[node.name], dim, node.dims[dim].size if dim is not None else 0
        try:
            if key not in one:
                one[key] = one_micro_batch(node, strategy[node.name], pipeline)
            configs[node.name] = one[key]
        except ValueError as error:
            refused[node.name] = str(error)
    primes = _primes(size)
    at = {node.name: pipeline.rank(node.name) if pipeline is not None else 0 for node in graph}
    orders = tuple(
        _order(group, [config for name, config in configs.items() if at[name] == number], primes)
        for number, group in enumerate(groups)
    )
    assignments: dict[str, Assignment] = {}
    known: dict[tuple[OpConfig, int], Assignment | None] = {}
    for name, config in configs.items():
        if (why := _why_not(nodes[name], config)) is not None:
            refused[name] = why
            continue
        if (config, at[name]) not in known:
            known[config, at[name]] = assigned(config, orders[at[name]], primes)
        found = known[config, at[name]]
        if found is None:
            refused[name] = "its pieces do not lie along the dimensions of a mesh of ascending ranks"
        else:
            assignments[name] = found
    redundant = tuple(name for name, found in assignments.items() if len(configs[name].processors) < size)
    copied = frozenset(name for name in assignments if configs[name].copies > 1)
    sizes, assignments = _merged(primes, assignments)
    return Mesh(sizes, orders, assignments, refused, redundant, copied)


def data_dims(graph: OperatorGraph, mesh: Mesh) -> tuple[int, ...]:
    """Return the mesh dimensions of replicas: those along which every operator that has samples is cut by samples, and no other
    operator is cut."""

    def replicas(j: int) -> bool:
        cut = False
        for node in graph:
            assignment = mesh.assignments.get(node.name)
            if assignment is None:
                continue
            dim, own = sample_dim(node), assignment[j]
            if own is not None and own != dim and node.dims[own].soap is not Soap.REDUCTION:
                return False
            if dim is not None and own != dim and node.inputs:
                return False
            if dim is not None and own is not None and dim != own:
                return False
            cut = cut or own == dim
        return cut

    return tuple(j for j in range(len(mesh.sizes)) if replicas(j))


def sharing_of(graph: OperatorGraph, strategy: Strategy) -> Sync:
    """Return how most weights are synchronised, as far as plans say it."""
    counted, kinds = Counter[str](), dict[str, Sync]()
    for p in graph.parameters:
        words = str(sync_words(sync := strategy.sync(p.layer)))
        counted[words] += prod(p.shape)
        kinds.setdefault(words, sync)
    return kinds[max(counted, key=lambda words: counted[words])] if counted else CollectiveSync()


def one_micro_batch(node: Node, config: OpConfig, pipeline: Pipeline | None) -> OpConfig:
    """Return how one micro-batch of an operator is cut and placed. Raises ValueError if micro-batches differ in that."""
    dim = sample_dim(node)
    if pipeline is None or pipeline.micro_batches == 1 or dim is None or config.degrees[dim] % pipeline.micro_batches:
        return config
    many = pipeline.micro_batches
    degrees = tuple(d // many if i == dim else d for i, d in enumerate(config.degrees))
    places = tuple(
        config.processors[number] for number in range(len(config.processors)) if pipeline.micro_batch(node, config, number) == 0
    )
    found = OpConfig(degrees, places, copies=config.copies)
    if in_micro_batches(node, found, many).processors != config.processors:
        raise ValueError("its micro-batches are cut or placed in different ways")
    return found


def assigned(config: OpConfig, order: Sequence[int], sizes: Sequence[int]) -> Assignment | None:
    """Return the assignment that a configuration is on processors in this order; None if it is none."""
    at = dict(zip(order, product(*(range(size) for size in sizes))))
    if any(processor not in at for processor in config.processors) or len(set(config.processors)) < len(config.processors):
        return None
    colors = [color for color in product(*(range(d) for d in config.degrees)) for _ in range(config.copies)]

    def fits(found: Assignment) -> bool:
        return all(
            _color(at[processor], sizes, found, len(config.degrees)) == color
            for processor, color in zip(config.processors, colors)
        )

    def search(found: Assignment, left: tuple[int, ...]) -> Assignment | None:
        if len(found) == len(sizes):
            return found if prod(left) == 1 and fits(found) else None
        size = sizes[len(found)]
        for dim in [i for i, degree in enumerate(left) if degree % size == 0]:
            rest = tuple(d // size if i == dim else d for i, d in enumerate(left))
            if (complete := search((*found, dim), rest)) is not None:
                return complete
        if prod(left) <= prod(sizes[len(found) + 1 :]):
            return search((*found, None), left)
        return None

    return search((), config.degrees)


def _color(at: Sequence[int], sizes: Sequence[int], assignment: Assignment, dims: int) -> tuple[int, ...]:
    """The piece of the rank at these coordinates."""
    color = [0] * dims
    for number, size, dim in zip(at, sizes, assignment):
        if dim is not None:
            color[dim] = color[dim] * size + number
    return tuple(color)


def _why_not(node: Node, config: OpConfig) -> str | None:
    """Why no framework can cut an operator so."""
    if any(config.weights):
        return "its pieces have proportions (weights); frameworks cut evenly"
    for dim, degree in zip(node.dims, config.degrees):
        if degree > 1 and dim.size % degree:
            return f"{dim.name}/{degree} does not divide its {dim.size} elements; frameworks then cut otherwise than here"
    if len(set(config.processors)) < len(config.processors):
        return "a device has several of its pieces"
    return None


def _groups(graph: OperatorGraph, strategy: Strategy) -> list[tuple[int, ...]]:
    """The devices of each pipeline rank, ascending."""
    pipeline = strategy.pipeline
    found: list[set[int]] = [set() for _ in range(pipeline.ranks if pipeline is not None else 1)]
    for node in graph:
        rank = pipeline.rank(node.name) if pipeline is not None else 0
        found[rank].update(strategy[node.name].processors)
    return [tuple(sorted(group)) for group in found]


def _order(group: tuple[int, ...], configs: Sequence[OpConfig], sizes: Sequence[int]) -> tuple[int, ...]:
    """The order of a group's devices under which most operators lie along a mesh: ascending, or that of some operator."""
    counted = Counter(configs)
    orders = dict.fromkeys([group, *(c.processors for c, _ in counted.most_common() if set(c.processors) == set(group))])

    def lost(order: tuple[int, ...]) -> int:
        return sum(count for config, count in counted.items() if assigned(config, order, sizes) is None)

    return min(list(orders)[:64], key=lost)


def _primes(number: int) -> tuple[int, ...]:
    found, divisor = [], 2
    while number > 1:
        while number % divisor == 0:
            found.append(divisor)
            number //= divisor
        divisor += 1
    return tuple(found)


def _merged(sizes: Sequence[int], assignments: Mapping[str, Assignment]) -> tuple[tuple[int, ...], dict[str, Assignment]]:
    """Neighbouring mesh dimensions that all operators use alike, as one."""
    kept: list[int] = []
    merged: list[int] = []
    for number, size in enumerate(sizes):
        if kept and all(found[number] == found[kept[-1]] for found in assignments.values()):
            merged[-1] *= size
        else:
            kept.append(number)
            merged.append(size)
    return tuple(merged), {name: tuple(found[i] for i in kept) for name, found in assignments.items()}
