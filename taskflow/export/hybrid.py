"""hybrid_of: converts a strategy to the plan in tensor, pipeline and data parallelism that it is, or that is near it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from taskflow.export.difference import Difference, regather_differences
from taskflow.export.mesh import data_dims, mesh_of, sharing_of
from taskflow.graph import OperatorGraph
from taskflow.machine import host
from taskflow.mapper import (
    HybridParallel,
    HybridPlan,
    Strategy,
    layer_numbers,
    map_graph,
    recomputed,
    samples,
    stages_of,
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
        return self.plan.tensor * self.plan.pipeline * (self.plan.data or 1)


def hybrid_of(graph: OperatorGraph, strategy: Strategy) -> Hybrid:
    """Return the `HybridPlan` of a strategy. Raises ValueError if its devices form no pipeline of equal ranks, or no degrees
    divide."""
    strategy.verify(graph)
    mesh, pipeline = mesh_of(graph, strategy), strategy.pipeline
    data = prod(mesh.sizes[j] for j in data_dims(graph, mesh))
    ranks, many = (pipeline.ranks, pipeline.micro_batches) if pipeline is not None else (1, 1)
    virtual = pipeline.count // ranks if pipeline is not None else 1
    sharing = sharing_of(graph, strategy)
    together = prod(mesh.sizes) == data or not any(config.copies > 1 for config in strategy.configs.values())
    plan = HybridPlan(
        tensor=prod(mesh.sizes) // data, pipeline=ranks, data=data, micro_batch=max(1, samples(graph) // (data * many)),
        virtual=virtual, zero=sharing.zero, shard_group=sharing.group, prefetch=sharing.prefetch,
        recompute=_recompute(graph, strategy),
        schedule=pipeline.schedule if pipeline is not None else HybridPlan().schedule, stages=_layers(graph, strategy),
        sequence_parallel=together, regather=bool(strategy.regather) and together and prod(mesh.sizes) > data,
    )
    ranks_of_it = map_graph(HybridParallel(plan), graph, host(mesh.ranks))
    found = replace(ranks_of_it, processors=strategy.processors, configs={  # each rank where the plan has it
        name: replace(config, processors=tuple(mesh.devices[rank] for rank in config.processors))
        for name, config in ranks_of_it.configs.items()
    })
    return Hybrid(plan, found, _differences(graph, strategy, found))


def _recompute(graph: OperatorGraph, strategy: Strategy) -> str:
    """The rule that recomputes what the strategy does, or most of it."""
    if not strategy.recompute:
        return "none"
    for rule in ("selective", "full"):
        try:
            if recomputed(graph, rule) == strategy.recompute:
                return rule
        except ValueError:
            continue
    return "selective" if strategy.recompute <= recomputed(graph, "selective") else "full"


def _layers(graph: OperatorGraph, strategy: Strategy) -> tuple[int, ...]:
    """Layers of each stage where they are not dealt evenly; empty if they are, or if stages are not whole layers."""
    pipeline = strategy.pipeline
    if pipeline is None or pipeline.count == 1:
        return ()
    even = stages_of(graph, pipeline.count)
    if all(even[node.name] == pipeline.stage(node.name) for node in graph if node.inputs):
        return ()
    numbers = layer_numbers(graph)
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
    for name in sorted(wanted.recompute ^ found.recompute):
        kept = name in found.recompute
        differences.append(Difference(name, "kept" if kept else "recomputed", f"would be {'recomputed' if kept else 'kept'}"))
    return differences + regather_differences(wanted.regather, found.regather)
