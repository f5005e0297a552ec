"""joined_parts: a strategy whose micro-batches are not split, for those who take each as a whole."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from taskflow.graph import Node, OperatorGraph
from taskflow.mapper.config import OpConfig
from taskflow.mapper.pipeline import Pipeline, in_micro_batches, sample_dim
from taskflow.mapper.strategy import Strategy


def joined_parts(graph: OperatorGraph, strategy: Strategy) -> Strategy:
    """Return a strategy without `Pipeline.split`: the pieces of the parts of a micro-batch become one each, on the same device. It
    is the strategy itself if nothing is split. Raises ValueError that names an operator whose parts are not cut and placed
    alike."""
    pipeline = strategy.pipeline
    if pipeline is None or pipeline.split == 1:
        return strategy
    configs = {node.name: _joined(node, strategy[node.name], pipeline) for node in graph}
    ordered = pipeline.micro_batches > 1 or pipeline.count > 1
    return replace(
        strategy, configs=configs, pipeline=replace(pipeline, split=1) if ordered else None,
        name=f"{strategy.name} (parts joined)", plan=replace(strategy.plan, split=1) if strategy.plan is not None else None,
    )


def _joined(node: Node, config: OpConfig, pipeline: Pipeline) -> OpConfig:
    dim, parts = sample_dim(node), pipeline.parts
    if dim is None or pipeline.part(node, config, 0) is None:
        return config
    degrees = (*config.degrees[:dim], config.degrees[dim] // parts, *config.degrees[dim + 1 :])
    inner = prod(degrees[dim:]) * config.copies
    processors = [p for start in range(0, len(config.processors), inner * parts) for p in config.processors[start : start + inner]]
    weights = tuple(of[: degrees[dim]] if i == dim else of for i, of in enumerate(config.weights))
    one = OpConfig(degrees, tuple(processors), weights, config.copies)
    if in_micro_batches(node, one, parts) != config:
        raise ValueError(f"operator {node.name}: its parts of a micro-batch are not cut and placed alike; leave split= out")
    return in_micro_batches(node, one, pipeline.micro_batches)
