"""Updates by shares: a reduce-scatter of gradients, every holder's update of its share, an all-gather of new weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from language_model import CONFIG, feeds, model, random_strategy

import taskflow
from taskflow.graph import OperatorGraph
from taskflow.machine import load_machine, ring, ring_bytes, ring_share
from taskflow.mapper import (
    CollectiveSync,
    DataParallel,
    MessageSync,
    Strategy,
    Sync,
    SyncAlgorithm,
    UpdatePlacement,
    map_graph,
)
from taskflow.mapper.notation import parse_sync
from taskflow.mapper.strategy_file import load, save
from taskflow.optimizer.cost.task_costs import Roofline
from taskflow.regions import Rect
from taskflow.rules import SGD, Adam, UpdateRule
from taskflow.tasks.items import Placement, StartCollective, items_of, uses
from taskflow.tasks.lower.emit import Emitter
from taskflow.tasks.lower.lower import lower
from taskflow.tasks.task import AllGather, AllReduce, Kind, ReduceScatter, TaskGraph, Update
from taskflow.tasks.topic import Purpose

SHARES = CollectiveSync(UpdatePlacement.SHARDED)
RULES = (SGD(0.5), SGD(0.5, momentum=0.9), Adam(0.01))


def synchronised(strategy: Strategy, sync: Sync) -> Strategy:
    return replace(strategy, syncs=dict.fromkeys(strategy.syncs, sync))


def data_parallel(graph: OperatorGraph, processors: int) -> Strategy:
    return synchronised(map_graph(DataParallel(), graph, load_machine("k80", processors)), SHARES)


def lowered(processors: int, rule: UpdateRule = RULES[1], clip: float | None = None) -> TaskGraph:
    graph = model()
    return lower(graph, data_parallel(graph, processors), rule, clip_norm=clip)


def test_three_tasks_in_place_of_a_ring_of_messages() -> None:
    tasks = lowered(4)
    for bundle in tasks.bundles:
        size, group = bundle.size, (0, 1, 2, 3)
        own = [task for task in tasks if task.topic.name == bundle.layer and bundle.name in task.name]
        (scatter,) = [task for task in own if isinstance(task.work, ReduceScatter)]
        (gather,) = [task for task in own if isinstance(task.work, AllGather)]
        assert scatter.processors == gather.processors == group
        assert scatter.topic.purpose is Purpose.WEIGHT_GRADIENTS and gather.topic.purpose is Purpose.NEW_WEIGHTS
        assert scatter.nbytes == gather.nbytes == ring_bytes(4, 8 * size, 1) == 3 * 8 * size
        assert scatter.flops == 3 * size and not gather.flops
        updates = [task for task in own if isinstance(task.work, Update)]
        assert [task.processor for task in updates] == list(group)[: min(4, size)]
        volumes = [task.work.weights.rect.volume for task in updates]  # type: ignore[union-attr]
        assert sum(volumes) == size and max(volumes) - min(volumes) <= 1
        for task in updates:
            assert scatter.number in task.after and task.number in gather.after
            (state,) = task.work.state  # type: ignore[union-attr]
            assert tasks.buffers[state].rect.volume == task.work.weights.rect.volume  # type: ignore[union-attr]
    assert not any(isinstance(task.work, AllReduce) for task in tasks)


def test_state_is_held_once() -> None:
    """Adam's two numbers for each weight: on all processors together as often as on one."""
    graph = model()
    every = synchronised(data_parallel(graph, 3), CollectiveSync(UpdatePlacement.REPLICATED))

    def state(strategy: Strategy) -> int:
        found = lower(graph, strategy, Adam())
        kept = {number for task in found if isinstance(task.work, Update) for number in task.work.state}
        return sum(found.buffers[number].nbytes for number in kept)

    assert state(every) == 3 * state(data_parallel(graph, 3)) == 3 * 2 * 8 * graph.parameter_count


def losses(graph: OperatorGraph, strategy: Strategy, rule: UpdateRule, clip: float | None) -> list[float | None]:
    run = taskflow.Executor(graph, strategy, rule, seed=3, clip_norm=clip)
    return [run.train(feeds(step, CONFIG)) for step in range(4)]


@pytest.mark.parametrize("clip", [None, 0.1], ids=["", "clipped"])
@pytest.mark.parametrize("rule", RULES, ids=["sgd", "momentum", "adam"])
def test_the_same_losses_as_by_other_ways(rule: UpdateRule, clip: float | None) -> None:
    graph = model()
    strategy = data_parallel(graph, 4)
    found = losses(graph, strategy, rule, clip)
    for other in (
        MessageSync(SyncAlgorithm.RING, UpdatePlacement.SHARDED),
        CollectiveSync(UpdatePlacement.REPLICATED),
        MessageSync(SyncAlgorithm.TREE, UpdatePlacement.OWNER),
    ):
        assert found == pytest.approx(losses(graph, synchronised(strategy, other), rule, clip), rel=1e-11)


@pytest.mark.parametrize("seed", range(6))
def test_random_plans(seed: int) -> None:
    """Holders without gradients, layers cut in pieces, several sets of holders in one layer, more holders than elements."""
    graph, random = model(), Random(seed)
    strategy = random_strategy(graph, random.randint(2, 6), random)
    rule, clip = RULES[seed % 3], (None, 0.1)[seed % 2]
    wanted = losses(graph, synchronised(strategy, MessageSync(SyncAlgorithm.OWNER, UpdatePlacement.OWNER)), rule, clip)
    assert losses(graph, synchronised(strategy, SHARES), rule, clip) == pytest.approx(wanted, rel=1e-11)


def test_more_holders_than_elements() -> None:
    """Of 3 elements on 5 processors the first three get one each; the others keep no state and still get the new weights."""
    emit = Emitter(5)
    parts = [emit.whole(emit.buffer(f"b{p}", Rect((0,), (3,)), p, np.dtype(np.float32))) for p in range(5)]
    emit.reduce_scatter("sum", parts, (0, 1, 2, 3, 3, 3))
    emit.all_gather("news", parts, (0, 1, 2, 3, 3, 3))
    scatter, gather = emit.graph.tasks
    assert len(scatter.writes) == len(gather.reads) == 3 and len(scatter.reads) == len(gather.writes) == 5
    for rank in range(5):
        join = items_of(emit.graph, (0, 1), Placement(5, 5), rank)[0]
        assert isinstance(join, StartCollective) and join.counts == (1, 1, 1, 0, 0) and join.shares[0].rect.volume == (rank < 3)


def test_ranks_of_several_processors_join_with_what_all_of_them_have() -> None:
    emit = Emitter(5)
    parts = [emit.whole(emit.buffer(f"b{p}", Rect((0,), (12,)), p, np.dtype(np.float32))) for p in range(5)]
    emit.reduce_scatter("sum", parts, (0, 3, 6, 8, 10, 12))
    found = [items_of(emit.graph, (0,), Placement(5, 2), rank) for rank in range(2)]
    for rank, (join, arrive) in enumerate(found):
        assert isinstance(join, StartCollective) and join.counts == (8, 4) and join.ranks == (0, 1)
        assert [share.buffer for share in join.shares] == [part.buffer for part in join.parts] == [[0, 1, 2], [3, 4]][rank]
        # What it adds up stays until it is over, though only shares are written.
        assert {part.buffer for part in uses(arrive)[0]} == set(range(5))


def test_seconds_are_those_of_half_an_all_reduce() -> None:
    machine, costs = load_machine("p100", 4), Roofline(load_machine("p100", 4))
    emit = Emitter(4)
    parts = [emit.whole(emit.buffer(f"b{p}", Rect((0,), (1_000_000,)), p, np.dtype(np.float32))) for p in range(4)]
    emit.all_reduce("all", parts)
    emit.reduce_scatter("sum", parts, range(0, 1_000_001, 250_000))
    emit.all_gather("news", parts, range(0, 1_000_001, 250_000))
    every, scatter, gather = (costs.task(task) for task in emit.graph)
    assert scatter == gather and scatter + gather == pytest.approx(every, rel=1e-12)
    around = ring(machine, range(4))
    assert scatter == pytest.approx(3 * around.hop_seconds + 3 * 4e6 / around.bytes_per_second)
    for nbytes in (0, 1, 1003):
        shares = [ring_share(5, place, nbytes, 1) for place in range(5)]
        assert sum(shares) == ring_bytes(5, nbytes, 1) == ring_bytes(5, nbytes) // 2 and max(shares) - min(shares) <= 1


def test_processors_that_copy_add_in_the_first_half_only() -> None:
    from taskflow.machine import host

    machine = host(3)
    costs, around = Roofline(machine), ring(machine, (0, 1, 2))
    moved = ring_bytes(3, 3000, 1)
    plain = 2 * around.hop_seconds + moved / around.bytes_per_second
    assert costs.collective((0, 1, 2), moved, 0, 1) == pytest.approx(plain)
    sums = costs.other(Kind.SUM, 0, 500, 6000)  # of 750 numbers each adds two thirds: two arrays read, one written
    assert costs.collective((0, 1, 2), moved, 2 * 750, 1) == pytest.approx(plain + sums)


def test_what_is_refused() -> None:
    emit = Emitter(2)
    parts = [emit.whole(emit.buffer(f"b{i}", Rect((0,), (4,)), i, np.dtype(np.float32))) for i in range(2)]
    for ask in (emit.reduce_scatter, emit.all_gather):
        for cuts in ((0, 4), (0, 2, 3), (0, 3, 2), (1, 2, 4), (0, 2, 4, 4)):
            with pytest.raises(ValueError, match="2 shares of 4 elements need cuts from 0 to 4, rising"):
                ask("shares", parts, cuts)
        with pytest.raises(ValueError, match="one part on each of two or more processors"):
            ask("shares", parts[:1], (0, 4))


def test_plans_are_described_written_and_read(tmp_path: Path) -> None:
    assert str(SHARES) == "collective/spread" and parse_sync("collective/spread", "layer fc") == SHARES
    graph = model()
    strategy = data_parallel(graph, 2)
    save(strategy, graph, "k80", tmp_path / "plan.json")
    assert load(tmp_path / "plan.json", graph, 2).syncs == strategy.syncs == dict.fromkeys(strategy.syncs, SHARES)
