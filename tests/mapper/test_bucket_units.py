"""Buckets of layers: what is in one, and how plans say it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from fast_and_slow import fast_among

import taskflow
from taskflow.graph import OperatorGraph
from taskflow.machine import host
from taskflow.mapper import (
    BucketLayer,
    CollectiveSync,
    HybridParallel,
    HybridPlan,
    Strategy,
    Sync,
    SyncAlgorithm,
    UpdatePlacement,
    bucket_word,
    default_bucket,
    divided,
    load,
    map_graph,
    parse_plan,
    parse_sync,
    save,
    units_of,
)
from taskflow.models import build
from taskflow.models.gpt import GPTConfig, gpt
from taskflow.tasks.lower import lower
from taskflow.tasks.task import AllGather, AllReduce, ReduceScatter
from taskflow.tasks.topic import Purpose


def decoder(layers: int = 6) -> OperatorGraph:
    return gpt(replace(GPTConfig.small(), batch=8, layers=layers))


def planned(text: str, graph: OperatorGraph, devices: int = 8) -> Strategy:
    return map_graph(HybridParallel(text), graph, host(devices))


@pytest.mark.parametrize("seed", range(60))
def test_what_is_in_a_bucket(seed: int) -> None:
    random, size = Random(seed), Random(seed).choice((1, 40, 200))
    layers: list[BucketLayer] = []
    for block in range(random.randint(1, 12)):
        kind = random.choice("aaab")
        layers += [
            BucketLayer(f"{block}.{i}", str(block), random.randint(1, 60), kind, size) for i in range(random.randint(1, 6))
        ]
    buckets = divided(layers)
    assert [layer for bucket in buckets for layer in bucket] == layers
    whole = {block: sum(layer.elements for layer in layers if layer.block == block) for block in {one.block for one in layers}}
    for bucket, after in pairwise([*buckets, []]):
        assert len({layer.kind for layer in bucket}) == 1
        held = sum(layer.elements for layer in bucket)
        assert held >= size or not after or after[0].kind != bucket[0].kind  # or there are no more of its kind
        if after and after[0].block == bucket[-1].block:
            assert whole[bucket[-1].block] > size  # only such blocks are divided
        else:  # the last block made it large enough
            assert held - whole[bucket[-1].block] < size or whole[bucket[-1].block] > size


def test_a_large_block_is_divided_as_soon_as_a_bucket_is_left() -> None:
    layers = [BucketLayer(f"h.{i}", "h", 10, "a", 20) for i in range(5)]
    assert [len(bucket) for bucket in divided(layers[:4])] == [2, 2] and [len(bucket) for bucket in divided(layers)] == [2, 3]


def test_sizes_are_those_of_the_libraries() -> None:
    assert default_bucket(0, 512) * 4 == 25 * 2**20 and default_bucket(0, 1) == default_bucket(2, 8) == default_bucket(3, 8) == 0
    assert (default_bucket(1, 8), default_bucket(1, 512)) == (40_000_000, 512_000_000)
    assert parse_plan("d4 bucket=40M").bucket == 40_000_000 and parse_plan("d4 bucket=layer").bucket == 0
    for text in ("t1 p1 d4 bucket=3K", "t1 p1 d4 zero1 bucket=layer", "t1 p1 d4 mb1 zero1 overlap=none bucket=1500"):
        assert str(parse_plan(text)) == text
    for elements in (1, 7, 1000, 1500, 40_000_000, 3 * 10**9):
        assert parse_plan(f"bucket={bucket_word(elements)}").bucket == elements
    graph = decoder()
    assert {sync.bucket for sync in planned("d8", graph).syncs.values()} == {default_bucket(0, 8)}
    assert {sync.bucket for sync in planned("t2 d4 zero1 mb1 bucket=2K", graph).syncs.values()} == {2000}
    assert {sync.bucket for sync in planned("t8 d1 mb1", graph).syncs.values()} == {0}  # no device holds what another does
    mixed = planned("d8 mb1 zero=0*1,1*2,2*3 bucket=2K", graph)
    assert {(sync.zero, sync.bucket) for sync in mixed.syncs.values()} == {(0, 2000), (1, 2000), (2, 0)}


@pytest.mark.parametrize(("text", "what"), [
    ("d4 bucket=25MB", "bucket must be a number of elements such as 40M, or layer, got '25MB'"), ("d4 bucket=0", "got '0'"),
    ("d4 bucket=", "bucket= says nothing; leave it out, or write for example bucket=40M"),
    ("d4 zero2 bucket=40M", "bucket= is for zero0 and zero1; with zero2 weights travel block by block"),
])
def test_wrong_words_are_said(text: str, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        parse_plan(text)


def test_syncs_say_their_buckets() -> None:
    sync = CollectiveSync(UpdatePlacement.SHARDED, bucket=4000, overlap=False)
    assert str(sync) == "collective/spread/bucket4000/after" and parse_sync(str(sync), "test") == sync
    for travel, zero in ((SyncAlgorithm.RING, 1), (SyncAlgorithm.COLLECTIVE, 2)):
        with pytest.raises(ValueError, match="Sync: bucket 5 goes with algorithm 'collective' and zero 1; got"):
            Sync.of(travel, UpdatePlacement.SHARDED, zero=zero, bucket=5)


def test_files_keep_buckets(tmp_path: object) -> None:
    graph, path = decoder(), f"{tmp_path}/plan.json"
    for text in ("d8 zero1 bucket=2K", "d8", "d8 bucket=layer"):
        strategy = planned(text, graph)
        save(strategy, graph, "host-8", path)
        again = load(path, graph, 8)
        assert again.syncs == strategy.syncs and again.ordered is strategy.ordered is ("layer" not in text)


@pytest.mark.parametrize(("text", "steps"), fast_among(WAYS := [
    ("d8 mb1", [AllReduce]), ("d8 mb1 zero1", [ReduceScatter, AllGather]), ("p2 d4 mb1 zero1", [ReduceScatter, AllGather]),
], [WAYS[0], WAYS[2]]))
def test_each_bucket_has_one_collective_each_way(text: str, steps: list[type]) -> None:
    graph = decoder(2)
    for size in ("layer", "300", "900", "2K", "1M"):
        strategy = planned(f"{text} bucket={size}", graph)
        units = units_of(graph, strategy)
        expected = {units.get(p.layer, p.layer) for p in graph.parameters}
        found: dict[type, Counter[str]] = {}
        for task in lower(graph, strategy, taskflow.Adam()):
            if task.topic.purpose in (Purpose.WEIGHT_GRADIENTS, Purpose.NEW_WEIGHTS) and isinstance(task.work, tuple(steps)):
                found.setdefault(type(task.work), Counter())[task.topic.name] += 1
        assert set(found) == set(steps)
        for counts in found.values():
            assert set(counts) == expected and (set(counts.values()) == {1})
        assert (len(expected) == len({p.layer for p in graph.parameters})) is (size == "layer")


def test_a_sum_waits_for_the_gradients_of_its_bucket_alone() -> None:
    graph = decoder()
    strategy = planned("d2 mb4 bucket=900", graph, 2)
    tasks = lower(graph, strategy, taskflow.Adam())
    units = units_of(graph, strategy)
    for task in tasks:
        if isinstance(task.work, AllReduce) and task.topic.purpose is Purpose.WEIGHT_GRADIENTS:
            own = {layer for layer, unit in units.items() if unit == task.topic.name} or {task.topic.name}
            before = {tasks.tasks[number].topic.name for number in task.after}
            assert before and before <= own | {task.topic.name, "lm_head"}  # the output layer shares the embedding's weights


def test_stages_and_other_syncs_have_buckets_of_their_own() -> None:
    graph = decoder()
    strategy = planned("p2 d4 mb1 bucket=1G", graph)
    assert strategy.pipeline is not None
    stages: dict[str, set[int]] = {}
    for layer, unit in units_of(graph, strategy).items():
        stages.setdefault(unit, set()).add(strategy.pipeline.stage(layer))
    assert sorted(map(sorted, stages.values())) == [[0], [1]]
    syncs = {layer: replace(sync, overlap=not layer.startswith("h.3.")) for layer, sync in planned("d8", graph).syncs.items()}
    units = units_of(graph, replace(planned("d8", graph), syncs=syncs))
    assert {layer.split(".")[1] for layer, unit in units.items() if unit == units["h.3.ln_1"]} == {"3"}


def test_networks_that_carry_states_have_single_layers_unless_the_plan_says_a_size() -> None:
    """Their steps are not folded, and those of many devices are for the compiled evaluator."""
    graph = build("ResNet-101", 8, preset="small")
    assert graph.carries and not planned("d8 zero1", graph).ordered and not units_of(graph, planned("d8", graph))
    assert planned("d8 bucket=1M", graph).ordered and units_of(graph, planned("d8 bucket=1M", graph))


def test_a_plan_says_its_bucket_as_a_plan_with_data_does() -> None:
    assert HybridPlan(data=64, zero=1).bucket_of(1) == 64_000_000 and HybridPlan(data=64, bucket=5).bucket_of(0) == 5
