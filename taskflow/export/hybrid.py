"""hybrid_of: converts a strategy to the plan in tensor, pipeline and data parallelism that it is, or that is near it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from taskflow.export.difference import Difference, again_differences
from taskflow.export.mesh import Mesh, data_dims, mesh_of, sharing_of
from taskflow.graph import OperatorGraph
from taskflow.machine import host
from taskflow.mapper import (
    Exchange,
    HybridParallel,
    HybridPlan,
    Strategy,
    again_words,
    block_numbers,
    default_bucket,
    map_graph,
    placed_devices,
    plan_of,
    samples,
    stages_of,
    sync_words,
)


@dataclass(frozen=True, slots=True)
class Hybrid:
    """Complete ``plan``, with its ``strategy`` here. ``differences``: where the given strategy differs from it."""

    plan: HybridPlan
    strategy: Strategy
    differences: Sequence[Difference]

    @property
    def ranks(self) -> int:
        """Number of its ranks."""
        return self.plan.tensor * self.plan.context * self.plan.pipeline * (self.plan.data or 1)


def hybrid_of(
    graph: OperatorGraph, strategy: Strategy, levels: Sequence[str] = ("selective", "full", "whole"),
    by_layer: Callable[[HybridPlan], bool] = lambda plan: False,
) -> Hybrid:
    """Return the `HybridPlan` of a strategy, or the one that differs from it in the fewest operators. ``levels``: the words for
    recomputation that it may have, the last one for all of a layer; ``by_layer``: whether it may recompute by layer as a plan does.
    Raises ValueError if its devices form no pipeline of equal ranks, or no degrees divide."""
    strategy.verify(graph)
    known = plan_of(graph, strategy)
    if known is not None and known.recompute_layers and not by_layer(known):
        known = replace(known, recompute_layers=())
    if known is not None and not known.shares and not known.devices:  # of which a mesh says nothing more
        group = known.tensor * known.context * (known.data or 1), known.pipeline
        degrees = known.data or 1, known.context, known.experts
        return _hybrid(graph, strategy, group, degrees, range(prod(group)), levels, known)
    mesh = mesh_of(graph, strategy)
    group = prod(mesh.sizes), len(mesh.orders)
    if known is not None:
        devices = placed_devices(known, host(strategy.processors))
        return _hybrid(graph, strategy, group, (known.data or 1, known.context, known.experts), devices, levels, known)
    least, refused = None, None
    for degrees in _degrees(graph, mesh):
        try:
            ascending = tuple(device for order in mesh.orders for device in sorted(order))
            found = _hybrid(graph, strategy, group, degrees, mesh.devices if degrees[1:] == (1, 1) else ascending, levels)
        except ValueError as error:
            refused = refused or error
            continue
        if least is None or len(found.differences) < len(least.differences):
            least = found
        if not found.differences:
            break
    if least is None:
        raise refused or ValueError("no degrees divide")
    return least


def _degrees(graph: OperatorGraph, mesh: Mesh) -> Iterator[tuple[int, int, int]]:
    """Replicas, devices that share sequences, and replicas that share experts, as far as cuts leave open which these are."""
    size = prod(mesh.sizes)
    data = prod(mesh.sizes[j] for j in data_dims(graph, mesh))
    yield data, 1, 1
    for context in range(2, size // data + 1):
        if size // data % context == 0:
            yield data, context, 1
    routed = any(node.operator.kind == "expert_linear" for node in graph)
    for replicas in range(2, size + 1) if routed else ():
        if size % replicas == 0:
            yield from ((replicas, 1, experts) for experts in range(2, replicas + 1) if replicas % experts == 0)


def _hybrid(
    graph: OperatorGraph, strategy: Strategy, group: tuple[int, int], degrees: tuple[int, int, int], devices: Sequence[int],
    levels: Sequence[str], known: HybridPlan | None = None,
) -> Hybrid:
    """The plan of these degrees, of data, context and experts, whose other words are the strategy's; on these devices. ``group``:
    the number of devices of a rank of its pipeline, and of these ranks. What the strategy's parts do not say, and words of single
    layers and replicas, are as in ``known`` and as without them."""
    pipeline, (size, places), (data, context, experts) = strategy.pipeline, group, degrees
    ranks, many = (pipeline.ranks, pipeline.micro_batches) if pipeline is not None else (1, 1)
    virtual = pipeline.count // ranks if pipeline is not None else 1
    in_sequence = size == data or not any(config.copies > 1 for config in strategy.configs.values())
    products = "" if strategy.plan is None else strategy.plan.products
    plan = replace(
        known or HybridPlan(products=products), zero_layers=(), shares=(), split=1, devices=(),
        tensor=size // (data * context), pipeline=ranks, data=data, context=context, experts=experts,
        ring=context > 1 and strategy.exchange is Exchange.RING, micro_batch=max(1, samples(graph) // (data * many)),
        virtual=virtual, sequence_parallel=in_sequence, **sync_words(sharing_of(graph, strategy)),
        schedule=pipeline.schedule if pipeline is not None else HybridPlan().schedule, stages=_layers(graph, strategy),
        **again_words(graph, strategy.again, levels, in_sequence and size > data * context),
    )
    if plan.sharers == 1 or plan.bucket == default_bucket(plan.zero, plan.sharers):
        plan = replace(plan, bucket=None)
    ranks_of_it = map_graph(HybridParallel(plan), graph, host(size * places))
    in_order = tuple(devices) == tuple(range(strategy.processors))
    placed = replace(plan, devices=() if in_order else tuple(devices))
    found = replace(ranks_of_it, processors=strategy.processors, plan=placed, configs=ranks_of_it.configs if in_order else {
        name: replace(config, processors=tuple(devices[rank] for rank in config.processors))  # each rank where the plan has it
        for name, config in ranks_of_it.configs.items()
    })
    return Hybrid(plan, found, _differences(graph, strategy, found))


def _layers(graph: OperatorGraph, strategy: Strategy) -> tuple[int, ...]:
    """Layers of each stage where they are not dealt evenly; empty if they are, or if stages are not whole layers."""
    pipeline = strategy.pipeline
    if pipeline is None or pipeline.count == 1:
        return ()
    even = stages_of(graph, pipeline.count)
    if all(even[node.name] == pipeline.stage(node.name) for node in graph if node.inputs):
        return ()
    numbers = block_numbers(graph)
    counts = [0] * pipeline.count
    first: dict[int, int] = {}
    for node in graph:
        if node.inputs:
            first.setdefault(numbers.get(node.name, 0), pipeline.stage(node.name))
    for stage in first.values():
        counts[stage] += 1
    return tuple(counts) if min(counts) else ()


def _differences(graph: OperatorGraph, wanted: Strategy, found: Strategy) -> list[Difference]:
    differences = []
    for node in graph:
        a, b = wanted[node.name], found[node.name]
        if a == b or not node.inputs:
            continue
        one, two = (pipeline.stage(node.name) if pipeline is not None else 0 for pipeline in (wanted.pipeline, found.pipeline))
        why = f"would be {b.describe(node)}" if one == two else f"is in stage {one}, and would be in stage {two}"
        differences.append(Difference(node.name, a.describe(node), why))
    for layer in sorted({parameter.layer for parameter in graph.parameters}):
        stages = [wanted.sync(layer).zero, found.sync(layer).zero]
        if stages[0] != stages[1]:
            differences.append(Difference(layer, f"zero{stages[0]}", f"would be zero{stages[1]}, as most layers"))
    return differences + again_differences(wanted.again, found.again)
