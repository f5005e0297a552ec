"""A small language model with every feature that lowering has to get right, and random strategies for it."""

from __future__ import annotations

from math import prod
from random import Random

import numpy as np

from taskflow.graph import OperatorGraph
from taskflow.mapper import CollectiveSync, MessageSync, OpConfig, Strategy, Sync, SyncAlgorithm, UpdatePlacement
from taskflow.mapper.strategy import SUMS
from taskflow.models.rnnlm import RNNLMConfig, rnnlm

CONFIG = RNNLMConfig(batch=6, steps=4, vocabulary=11, hidden=6, layers=2, dropout=0.3, steps_per_operator=2)
ONE_STEP = RNNLMConfig(batch=5, steps=2, vocabulary=7, hidden=4, layers=2, dropout=0.2, steps_per_operator=1)


def ways(*chunks: int) -> list[Sync]:
    """All ways to synchronise a layer."""
    found = [
        MessageSync(travel, place, n)
        for travel in SyncAlgorithm
        if travel is not SyncAlgorithm.COLLECTIVE
        for place in UpdatePlacement
        for n in chunks
    ]
    return found + [CollectiveSync(place) for place in (UpdatePlacement.REPLICATED, UpdatePlacement.SHARDED)]


def feeds(step: int, config: RNNLMConfig = CONFIG) -> dict[str, np.ndarray]:
    """A batch of random tokens, the same for the same step."""
    random = np.random.default_rng(step)
    shape = (config.batch, config.steps)
    return {name: random.integers(0, config.vocabulary, shape) for name in ("tokens", "targets")}


def model(dtype: str = "float64", config: RNNLMConfig = CONFIG) -> OperatorGraph:
    return rnnlm(config, dtype)


def undivided(graph: OperatorGraph) -> Strategy:
    """Everything whole, on one processor."""
    return Strategy(1, {node.name: OpConfig((1,) * len(node.dims), (0,)) for node in graph})


def random_strategy(graph: OperatorGraph, processors: int, random: Random) -> Strategy:
    """Any degree in any dimension (contracted ones too), uneven or weighted pieces, any processor, any synchronisation, either way
    to sum partial values."""
    configs = {}
    for node in graph:
        degrees = tuple(
            random.randint(1, min(dim.size, 3)) if dim.divisible and random.random() < 0.5 else 1 for dim in node.dims
        )
        weights = tuple(
            tuple(random.choice((1, 1, 2)) for _ in range(degree)) if degree > 1 and random.random() < 0.3 else ()
            for degree in degrees
        )
        places = tuple(random.randrange(processors) for _ in range(prod(degrees)))
        config = OpConfig(degrees, places, weights)
        if any(rect.empty for rect in config.partition(node).rects()):
            config = OpConfig(degrees, places)
        configs[node.name] = config
    syncs = {p.layer: random.choice(ways(random.randint(0, 5))) for p in graph.parameters}
    return Strategy(processors, configs, syncs, "random", random.choice(SUMS))
