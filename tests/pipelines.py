"""Random strategies with micro-batches, stages, schedules, recomputation and sharded state, for the tests."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from random import Random
from typing import Any

import numpy as np
from language_model import random_strategy

from taskflow.graph import OperatorGraph
from taskflow.mapper import (
    OpConfig,
    Pipeline,
    PipelineSchedule,
    Strategy,
    Sync,
    SyncAlgorithm,
    UpdatePlacement,
    in_micro_batches,
)
from taskflow.mapper.pipeline import sample_dim
from taskflow.models.gpt import GPTConfig, gpt

GPT = replace(GPTConfig.small(), batch=6, layers=3)


def decoder(dtype: str = "float64") -> OperatorGraph:
    return gpt(GPT, dtype)


def tokens(step: int) -> dict[str, Any]:
    """A batch for `decoder`, the same for the same step."""
    random = np.random.default_rng(step)
    return {name: random.integers(0, GPT.vocabulary, (GPT.batch, GPT.steps)) for name in ("tokens", "targets")}


def fitting(graph: OperatorGraph, processors: int, random: Random) -> Strategy:
    """The first `random_pipeline` that fits the graph."""
    while True:
        strategy = random_pipeline(graph, processors, random)
        try:
            strategy.verify(graph)
        except ValueError:
            continue
        return strategy


def random_pipeline(graph: OperatorGraph, processors: int, random: Random) -> Strategy:
    """Any cuts of each micro-batch, any processors for any piece, any stages that do not fall along the graph, any schedule that
    takes them, and any operators recomputed. It may not fit the graph: `Strategy.verify` says so."""
    base = random_strategy(graph, processors, random)
    samples = min((node.dims[d].size for node in graph if (d := sample_dim(node)) is not None), default=1)
    micro_batches = random.randint(1, samples)
    ranks, virtual = random.choice((1, 1, 2, 2, 3)), random.choice((1, 1, 2))
    schedule = random.choice(list(PipelineSchedule))
    if schedule is PipelineSchedule.ZERO_BUBBLE or (schedule is PipelineSchedule.ONE_F_ONE_B and micro_batches % ranks):
        virtual = 1
    count = min(ranks * virtual, len(graph))
    ranks, count = (ranks, count) if count % ranks == 0 else (1, 1)
    inner = sorted(random.sample(range(1, len(graph)), count - 1))
    stages = {node.name: sum(node.number >= first for first in inner) for node in graph}
    again = random.choice((0.0, 0.0, 0.4, 1.0))
    return replace(
        base,
        configs={node.name: _in_micro_batches(graph, node.name, base, micro_batches, random, processors) for node in graph},
        pipeline=Pipeline(micro_batches, stages, ranks, schedule),
        recompute=frozenset(node.name for node in graph if node.inputs and random.random() < again),
    )


def random_shares(graph: OperatorGraph, strategy: Strategy, random: Random) -> Strategy:
    """The same with the gradients, or weights too, of some layers or all kept as shares, among all holders or in groups."""
    often = random.choice((0.5, 1.0))
    syncs = dict(strategy.syncs)
    for layer in dict.fromkeys(p.layer for p in graph.parameters):
        if random.random() < often:
            syncs[layer] = Sync(
                SyncAlgorithm.COLLECTIVE, UpdatePlacement.SPREAD, zero=random.choice((2, 3)),
                shard_group=random.choice((0, 0, 2, 3)), prefetch=random.choice((0, 1, 1, 3)),
            )
    return replace(strategy, syncs=syncs)


def _in_micro_batches(
    graph: OperatorGraph, name: str, base: Strategy, micro_batches: int, random: Random, processors: int
) -> OpConfig:
    node, config = graph.node(name), base[name]
    dim = sample_dim(node)
    if dim is None:
        return config
    degrees = list(config.degrees)
    degrees[dim] = max(1, min(degrees[dim], node.dims[dim].size // micro_batches))
    weights = tuple(() if i == dim else w for i, w in enumerate(config.weights)) if config.weights else ()
    places = tuple(random.randrange(processors) for _ in range(prod(degrees)))
    return in_micro_batches(node, OpConfig(tuple(degrees), places, weights), micro_batches)
