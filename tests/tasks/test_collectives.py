"""A collective is one task: for lowering, the simulator, the runtime and whoever explains a step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from language_model import CONFIG, feeds, model

import taskflow
from taskflow.machine import host, load_machine, ring, ring_bytes
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
from taskflow.optimizer.cost.task_costs import Roofline
from taskflow.optimizer.evaluate.evaluator import timeline_json
from taskflow.regions import Rect
from taskflow.rules import SGD
from taskflow.tasks.lower.emit import Emitter
from taskflow.tasks.lower.lower import lower
from taskflow.tasks.simulate import simulate, together
from taskflow.tasks.task import AllReduce, Kind

COLLECTIVE = CollectiveSync(UpdatePlacement.REPLICATED)


def synchronised(strategy: Strategy, sync: Sync) -> Strategy:
    return replace(strategy, syncs=dict.fromkeys(strategy.syncs, sync))


def data_parallel(processors: int) -> tuple[taskflow.OperatorGraph, Strategy]:
    graph = model()
    return graph, map_graph(DataParallel(), graph, load_machine("k80", processors))


def test_one_task_for_each_bundle() -> None:
    graph, strategy = data_parallel(3)
    tasks = lower(graph, synchronised(strategy, COLLECTIVE), SGD(0.1), clip_norm=1.0)
    found = [task for task in tasks if task.kind is Kind.COLLECTIVE]
    assert len(found) == len(tasks.bundles) > 1
    size = sum(bundle.size for bundle in tasks.bundles)
    assert size == graph.parameter_count
    assert sum(task.nbytes for task in found) == ring_bytes(3, 8 * size)
    for task in found:
        assert task.processors == (0, 1, 2) and isinstance(task.work, AllReduce) and task.reads == task.writes == task.work.parts
    updates = [task for task in tasks if task.kind is Kind.UPDATE]
    assert len(updates) == 3 * len(tasks.bundles)
    assert {task.processor for task in updates} == {0, 1, 2}
    for task in updates:  # each after the collective of its bundle
        assert any(tasks.tasks[before].kind is Kind.COLLECTIVE for before in task.after)


def test_the_same_losses_as_by_our_own_messages() -> None:
    graph, strategy = data_parallel(4)

    def losses(sync: Sync) -> list[float | None]:
        run = taskflow.Executor(graph, synchronised(strategy, sync), SGD(0.5, momentum=0.9), seed=3, clip_norm=0.1)
        return [run.train(feeds(step, CONFIG)) for step in range(4)]

    assert losses(COLLECTIVE) == pytest.approx(losses(MessageSync(SyncAlgorithm.RING, UpdatePlacement.SHARDED)), rel=1e-12)


def test_all_wait_for_the_last_one() -> None:
    """Processors 0 and 1 are ready at 1 and 5 seconds: the ring begins at 5 and is over for both at the same time."""
    machine = load_machine("k80", 2)
    emit = Emitter(2)
    parts = []
    for processor in range(2):
        buffer = emit.buffer(f"d{processor}", Rect((0,), (1000,)), processor, np.dtype(np.float32))
        parts.append(emit.whole(buffer))
        emit.fill(f"fill {processor}", parts[-1], 1.0)
    emit.all_reduce("sum", parts)
    for processor in range(2):
        emit.fill(f"after {processor}", parts[processor], 2.0)
    costs = {0: 1.0, 1: 5.0, 2: 10.0, 3: 1.0, 4: 2.0}
    timeline = simulate(emit.graph, machine, lambda task: costs[task.number])
    assert [(span.start, span.end) for span in timeline.spans] == [(0, 1), (0, 5), (5, 15), (15, 16), (15, 17)]
    assert len(timeline.spans[2].starts) == len(ring(machine, (0, 1)).resources)
    entry = timeline_json(emit.graph, timeline, machine)["tasks"][2]
    assert entry["direction"] == "collective" and len(entry["resources"]) == len(entry["resource_start_seconds"])
    assert not any(name.startswith("processor") for name in entry["resources"])  # GPUs compute meanwhile


def test_a_collective_and_a_message_share_a_link() -> None:
    machine = load_machine("k80", 3)
    emit = Emitter(3)
    buffers = [emit.whole(emit.buffer(f"b{p}", Rect((0,), (250_000,)), p, np.dtype(np.float32))) for p in range(3)]
    target = emit.whole(emit.buffer("arriving", Rect((0,), (250_000,)), 1, np.dtype(np.float32)))
    emit.transfer("message", buffers[0], target)
    emit.all_reduce("sum", buffers)
    costs = Roofline(machine)
    timeline = simulate(emit.graph, machine, costs.task)
    message, collective = timeline.spans
    assert collective.end == pytest.approx(message.end + costs.task(emit.graph.tasks[1]))


def test_a_collective_reaches_all_of_its_links_when_it_is_ready() -> None:
    """Two pairs each sum something, for 10 and 12 s, then all four together for 1 s, then the pairs again. All four have their turn
    before the second sums of both pairs, which became ready later, although the first pair's links were free earlier."""
    machine = load_machine("h100", 4)
    emit, nothing = Emitter(4), Rect((0,), (1000,))
    arrays = [[emit.whole(emit.buffer(f"{n}{p}", nothing, p, np.dtype(np.float32))) for p in range(4)] for n in "abc"]
    for parts in arrays:
        for part in parts:
            emit.fill("fill", part, 1.0)
    first, both, second = arrays
    groups = [first[:2], first[2:], both, second[:2], second[2:]]
    for group in groups:
        emit.all_reduce("sum", group)
    costs = [0.25] * 12 + [10.0, 12.0, 1.0, 10.0, 10.0]
    spans = simulate(emit.graph, machine, lambda task: costs[task.number]).spans
    assert [(span.ready, span.end) for span in spans[12:]] == [
        (0.25, 10.25), (0.25, 12.25), (0.5, 13.25), (0.75, 21.25), (0.75, 23.25),
    ]
    assert sorted(spans[14].starts) == [10.25] * 4 + [12.25] * 4 and spans[14].start == 12.25
    assert together(Kind.COLLECTIVE, ring(machine, range(4)).resources, machine)


def test_where_processors_copy_a_collective_goes_around_its_ring() -> None:
    """What a processor computes before its turn comes is not held up."""
    machine = host(2)
    emit = Emitter(2)
    parts = [emit.whole(emit.buffer(f"b{p}", Rect((0,), (1000,)), p, np.dtype(np.float32))) for p in range(2)]
    for part in parts:
        emit.fill("fill", part, 1.0)
    emit.all_reduce("sum", parts)
    occupied = ring(machine, range(2)).resources
    order = [r for r in occupied if r < 2]
    others = [emit.whole(emit.buffer(f"o{p}", Rect((0,), (1000,)), p, np.dtype(np.float32))) for p in order]
    for other in (*others, others[1]):
        emit.fill("other", other, 1.0)
    costs = [0.5, 0.5, 4.0, 8.0, 0.5, 2.0]
    timeline = simulate(emit.graph, machine, lambda task: costs[task.number])
    assert not together(Kind.COLLECTIVE, occupied, machine)
    assert timeline.spans[2].ready == 0.5 and dict(zip(occupied, timeline.spans[2].starts))[order[0]] == 8.5
    assert (timeline.spans[5].ready, timeline.spans[5].end) == (1.0, 3.0)


def test_what_is_refused() -> None:
    for place, chunks in ((UpdatePlacement.SHARDED, 2), (UpdatePlacement.OWNER, 0), (UpdatePlacement.REPLICATED, 2)):
        said = "leaves each holder with the whole sum, or with a share of it" if chunks == 0 else "Sync: chunks 2 goes with"
        with pytest.raises(ValueError, match=said):
            Sync.of(SyncAlgorithm.COLLECTIVE, place, chunks=chunks)
    emit = Emitter(2)
    one = [emit.whole(emit.buffer(f"b{i}", Rect((0,), (4,)), 1, np.dtype(np.float32))) for i in range(2)]
    for parts in (one, one[:1]):
        with pytest.raises(ValueError, match="one part on each of two or more processors"):
            emit.all_reduce("sum", parts)


def test_plans_are_described_and_read() -> None:
    assert str(COLLECTIVE) == "collective/every"
    from taskflow.mapper.notation import parse_sync

    assert parse_sync("collective/every", "layer fc") == COLLECTIVE
