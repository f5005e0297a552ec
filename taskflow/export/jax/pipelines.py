"""without_stages: replaces a pipeline by a similar plan in which all devices run all operators."""

from __future__ import annotations

from dataclasses import replace

from taskflow.export.hybrid import hybrid_of
from taskflow.export.mesh import mesh_of
from taskflow.graph import OperatorGraph
from taskflow.machine import host
from taskflow.mapper import HybridParallel, HybridPlan, Strategy, map_graph, samples

STAGES = "is in stage {} of a pipeline; under GSPMD all devices run one program, in which all of them compute each operator"


def without_stages(graph: OperatorGraph, strategy: Strategy) -> Strategy:
    """Turn stages into replicas that keep shares of all weights (ZeRO's stage 3), so that a device keeps about as many as
    before. If there are too few samples for that, turn them into further members of the tensor-parallel groups. Raises
    ValueError if neither divides."""
    plan, devices, why = hybrid_of(graph, strategy).plan, mesh_of(graph, strategy).devices, ""
    data, many = plan.data or 1, strategy.pipeline.micro_batches if strategy.pipeline is not None else 1
    for tensor, replicas, zero in ((plan.tensor, data * plan.pipeline, 3), (plan.tensor * plan.pipeline, data, plan.zero)):
        if samples(graph) % replicas:
            why = f"{samples(graph)} samples cannot be dealt to {replicas} replicas"
            continue
        each = samples(graph) // replicas
        micro = next(size for size in range(max(1, each // many), each + 1) if each % size == 0)
        near = HybridPlan(tensor, 1, replicas, micro, zero=zero, recompute=plan.recompute)
        try:
            ranks = map_graph(HybridParallel(near), graph, host(len(devices)))
        except ValueError as error:
            why = str(error)
            continue
        return replace(ranks, processors=strategy.processors, plan=None, configs={
            name: replace(config, processors=tuple(devices[rank] for rank in config.processors))
            for name, config in ranks.configs.items()
        })
    raise ValueError(f"jax cannot have stages of a pipeline, and without them no plan is near: {why}")
