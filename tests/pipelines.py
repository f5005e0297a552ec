"""Random strategies with micro-batches, stages, schedules, recomputation and sharded state, for the tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import prod
from random import Random
from typing import Any

import numpy as np
from language_model import random_strategy

from taskflow.graph import OperatorGraph
from taskflow.machine import host
from taskflow.mapper import (
    BLOCK,
    CollectiveSync,
    Exchange,
    HadAgain,
    HybridParallel,
    OpConfig,
    Pipeline,
    PipelineSchedule,
    ShardedSync,
    Strategy,
    Sync,
    UpdatePlacement,
    in_micro_batches,
    map_graph,
)
from taskflow.mapper.pipeline import sample_dim
from taskflow.models import build
from taskflow.models.gpt import GPTConfig, gpt

GPT = replace(GPTConfig.small(), batch=6, layers=2)


def decoder(dtype: str = "float64") -> OperatorGraph:
    return gpt(GPT, dtype)


def tokens(step: int) -> dict[str, Any]:
    """A batch for `decoder`, the same for the same step."""
    random = np.random.default_rng(step)
    return {name: random.integers(0, GPT.vocabulary, (GPT.batch, GPT.steps)) for name in ("tokens", "targets")}


HYBRIDS = {
    2: (
        "Llama t2 nosp mb2", "Llama t2 regather mb2",
        "Transformer p2 mb1 recompute=full", "NMT p2 d2 mb1 zero2",
        "GPT-2 t2 mb6 recompute=full", "Mixtral t2", "MoE t2 mb3", "MoE p2 t2 mb1 recompute=selective", "MoE d2 e2 mb1",
        "Llama c2 mb3", "GPT-2 t2 mb6 split=2", "MoE d2 e2 mb3 split=3",
        "Llama p2 mb1 schedule=zbv", "RNNLM p2 mb3 schedule=zb-h1", "RNNLM p2 d2 mb1 zero2",
    ),
    3: (
        "NMT p3 mb2 schedule=zb-h1",
        "Llama t3 mb1", "GPT-2 t3 mb3 recompute=selective", "Mixtral t3 p2 mb2", "MoE t3 mb6 zero1", "MoE d3 e3 mb1",
        "Llama c3 mb2 recompute=full",
    ),
    4: (
        "Llama t2 p2 mb2", "GPT-2 t4 mb3", "Mixtral t2 d2 mb1 zero1", "Mixtral t4 mb2 recompute=full",
        "GPT-2 t2 nosp p2 mb1 recompute=whole",
        "MoE t2 p2 d2 mb1 schedule=zb-h1", "MoE t2 d2 e2 mb1", "MoE d2 e2 p2 mb1", "GPT-2 t2 c2 mb2", "Llama t2 c2 p2 mb2",
        "GPT-2 t2 p2 mb2 schedule=zbv recompute=full", "Llama t2 p2 mb2 split=2",
    ),
}
"""By the number of ranks: networks and plans, of as many processors or of twice as many."""


def hybrid(text: str) -> tuple[OperatorGraph, Strategy]:
    """A network and its plan, as `HYBRIDS` has them."""
    name, _, plan = text.partition(" ")
    graph = small(name, "float64", 2)
    count = prod(int(word[1:]) for word in plan.split() if word[0] in "tcpd" and word[1:].isdecimal())
    return graph, map_graph(HybridParallel(plan), graph, host(count))


def small(name: str, dtype: str, layers: int) -> OperatorGraph:
    """A small network by name, for batches of `words`. Networks of two languages take padded sentences."""
    padding = {"padding": 0} if name in ("NMT", "Transformer") else {}
    return build(name, GPT.batch, preset="small", dtype=dtype, layers=layers, **padding)


def rank_cases(ranks: int, random: int, shares: int, hybrids: int | None = None) -> list[str]:
    """Names of cases that so many ranks train (`rank_case`): random plans, random plans with shares, one for two of these with
    buckets, and plans of `HYBRIDS`."""
    return [
        *(f"random {seed}" for seed in range(random)), *(f"shares {seed}" for seed in range(shares)),
        *(f"buckets {seed}" for seed in range((shares + 1) // 2)),
        *HYBRIDS.get(ranks, ())[:hybrids],
    ]


def rank_case(name: str, ranks: int) -> tuple[OperatorGraph, Strategy, Callable[[int], dict[str, Any]]]:
    """The network, the plan and the batches (by step) of a case, the same wherever they are made."""
    kind, _, seed = name.partition(" ")
    if kind not in ("random", "shares", "buckets"):
        graph, strategy = hybrid(name)
        return graph, strategy, partial(words, graph)
    graph, generator = decoder(), Random(int(seed))
    strategy = fitting(graph, ranks, generator)
    changed = {"shares": random_shares, "buckets": random_buckets}.get(kind)
    return graph, strategy if changed is None else changed(graph, strategy, generator), tokens


def words(graph: OperatorGraph, step: int) -> dict[str, Any]:
    """A batch for any of these networks, the same for the same step."""
    random = np.random.default_rng(step)
    if "labels" not in {node.name for node in graph}:
        return {name: random.integers(0, 13, graph.node(name).space.shape) for name in ("tokens", "targets")}
    batch = {name: random.integers(1, 13, graph.node(name).space.shape) for name in ("source", "target", "labels")}
    for row, length in enumerate(random.permutation(len(batch["labels"])) % batch["labels"].shape[1]):  # one has no label
        batch["source"][row, length + 1 :], batch["target"][row, length + 1 :], batch["labels"][row, length:] = 0, 0, -100
    return batch


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
    takes them, any operators recomputed or run again, and new cuts by copies or collectives. It may not fit the graph:
    `Strategy.verify` says so."""
    base = random_strategy(graph, processors, random)
    samples = min((node.dims[d].size for node in graph if (d := sample_dim(node)) is not None), default=1)
    micro_batches = random.randint(1, samples)
    ranks, virtual = random.choice((1, 1, 2, 2, 3)), random.choice((1, 1, 2))
    schedule = random.choice(list(PipelineSchedule))
    if schedule is PipelineSchedule.ONE_F_ONE_B and micro_batches % ranks:
        virtual = 1
    virtual = schedule.chunks or virtual
    count = min(ranks * virtual, len(graph))
    ranks, count = (ranks, count) if count % ranks == 0 else (1, virtual)
    inner = sorted(random.sample(range(1, len(graph)), count - 1))
    stages = {node.name: sum(node.number >= first for first in inner) for node in graph}
    again = random.choice((0.0, 0.0, 0.4, 1.0))
    other = Random(f"{micro_batches} {inner} {again}")
    always = other.choice((0.0, 0.0, 0.4, 1.0))
    return replace(
        base,
        configs={node.name: _in_micro_batches(graph, node.name, base, micro_batches, random, processors) for node in graph},
        pipeline=Pipeline(micro_batches, stages, ranks, schedule),
        again=HadAgain(
            recompute=frozenset(node.name for node in graph if node.inputs and random.random() < again),
            rerun=frozenset(node.name for node in graph if node.inputs and other.random() < always),
        ),
        exchange=random.choice(list(Exchange)),
    )


def random_shares(graph: OperatorGraph, strategy: Strategy, random: Random) -> Strategy:
    """The same with the gradients, or weights too, of some layers or all kept as shares, among all holders or in groups; in every
    other strategy all of these in the same way, so that blocks are gathered together."""
    often, alike = random.choice((0.5, 1.0)), random.random() < 0.5

    def shares(zero: int) -> Sync:
        return ShardedSync(
            zero=zero,
            shard_group=random.choice((0, 0, 2, 3)), prefetch=random.choice((BLOCK, BLOCK, 0, 1, 3)),
            replicas=random.choice((0, 0, 1, 2)), late_gather=zero == 2 and random.random() < 0.5,
        )

    syncs, one = dict(strategy.syncs), shares(3)
    for layer in dict.fromkeys(p.layer for p in graph.parameters):
        if random.random() < often:
            syncs[layer] = one if alike else shares(random.choice((2, 3)))
    return replace(strategy, syncs=syncs)


def random_buckets(graph: OperatorGraph, strategy: Strategy, random: Random) -> Strategy:
    """The same with the weights of some layers or all synchronised in buckets of a random size, in one or in several ways."""
    often, size = random.choice((0.5, 0.9, 1.0)), random.choice((1, 30, 100, 300, 1000, 10**6))
    ways = [
        CollectiveSync(
            place, overlap=random.random() < 0.7, bucket=size,
            late_gather=place is UpdatePlacement.SHARDED and random.random() < 0.5,
        )
        for place in (random.choice((UpdatePlacement.REPLICATED, UpdatePlacement.SHARDED)) for _ in range(random.choice((1, 1, 2))))
    ]
    syncs = dict(strategy.syncs)
    for layer in dict.fromkeys(p.layer for p in graph.parameters):
        if random.random() < often:
            syncs[layer] = ways[0] if random.random() < 0.7 else random.choice(ways)
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
