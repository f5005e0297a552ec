"""The table of how bundles are synchronised, against what lowering emits and derives from the buffers that tasks use."""

from __future__ import annotations

from random import Random

import pytest

from taskflow.mapper import CollectiveSync, MessageSync, Sync, SyncAlgorithm, UpdatePlacement
from taskflow.rules import SGD
from taskflow.tasks.lower.gradient_sync import SyncStep, SyncTask, first_root, make_sync_table, routes, sync_tasks

MESSAGES = [SyncAlgorithm.RING, SyncAlgorithm.TREE, SyncAlgorithm.OWNER]


def random_sync(random: Random) -> Sync:
    travel = random.choice(list(SyncAlgorithm))
    if travel is SyncAlgorithm.COLLECTIVE:
        return CollectiveSync(random.choice((UpdatePlacement.REPLICATED, UpdatePlacement.SHARDED)))
    return MessageSync(travel, random.choice(list(UpdatePlacement)), random.choice((0, 1, 2, 3, 5, 64)))


def random_tasks(random: Random) -> tuple[tuple[bool, ...], int, list[SyncTask]]:
    """A random bundle's tasks. Holders in the list are counted from the first root."""
    holders, sync = random.randint(1, 9), random_sync(random)
    giving = [random.random() < 0.7 for _ in range(holders)]
    giving[random.randrange(holders)] = True
    size = random.choice((1, 3, 10, 1_000_003))
    table = make_sync_table(sync, tuple(giving), size, random.choice((4, 8)))
    return tuple(giving), size, sync_tasks(table, 0)[0]


@pytest.mark.parametrize("seed", range(200))
def test_every_holder_ends_with_every_gradient_in_every_element(seed: int) -> None:
    """Executes the rows on values that say whose gradient they contain; an update reads only what is complete."""
    giving, size, tasks = random_tasks(Random(seed))
    everything, holders = {p for p, gives in enumerate(giving) if gives}, range(len(giving))
    cuts = sorted({0, size, *(t.low for t in tasks), *(t.high for t in tasks)})
    spans = [(low, high) for low, high in zip(cuts, cuts[1:])]
    value = {(p, span): [p] if giving[p] else [] for p in holders for span in spans}
    weights: dict[tuple[int, tuple[int, int]], list[int]] = {}
    arrived: dict[tuple[int, tuple[int, int]], list[int]] = {}
    for number, task in enumerate(tasks):
        assert all(a < number for a in task.after)
        for span in spans:
            if not task.low <= span[0] < task.high:
                continue
            here, there = (task.holder, span), (task.source, span)
            if task.step is SyncStep.SEND_GRADIENT:
                arrived[number, span] = list(value[there])
            elif task.step is SyncStep.ADD:
                for a in task.after:
                    value[here] += arrived.get((a, span), [])
            elif task.step in (SyncStep.ALL_REDUCE, SyncStep.REDUCE_SCATTER):
                total = sorted(g for p in holders for g in value[p, span])
                for p in holders:
                    value[p, span] = list(total)
            elif task.step is SyncStep.SEND_SUM:
                value[here] = list(value[there])
            elif task.step is SyncStep.UPDATE:
                assert here not in weights and task.holder in task.readers
                weights[here] = value[here]
            elif task.step is SyncStep.SEND_WEIGHTS:
                assert task.readers == (task.holder,)
                weights[here] = weights[there]
            elif task.step is SyncStep.ALL_GATHER:
                (of,) = [weights[p, span] for p in holders if (p, span) in weights]
                weights.update({(p, span): of for p in holders})
    assert set(weights) == {(p, span) for p in holders for span in spans}
    for sums in weights.values():
        assert sorted(sums) == sorted(everything)  # each once


@pytest.mark.parametrize("seed", range(100))
def test_where_the_first_root_is_only_renames_holders(seed: int) -> None:
    random = Random(seed)
    holders, sync = random.randint(2, 9), random_sync(random)
    table = make_sync_table(sync, (True,) * holders, 1 << 20, 4)
    first = first_root(sync, random.randrange(100), holders)
    here, there = sync_tasks(table, 0)[0], sync_tasks(table, first)[0]

    def moved(task: SyncTask, by: int) -> tuple[object, ...]:
        return task.step, (task.holder + by) % holders, (task.source + by) % holders, task.low, task.high, len(task.after)

    assert sorted((moved(t, first) for t in here), key=str) == sorted((moved(t, 0) for t in there), key=str)
    assert sum(t.step.is_message or t.step.is_collective for t in here) == table.messages


def test_work_is_what_is_read_and_written() -> None:
    tasks, _ = sync_tasks(make_sync_table(MessageSync(SyncAlgorithm.OWNER, UpdatePlacement.OWNER), (True,) * 3, 10, 4), 0)
    rule = SGD(0.1)
    work = {task.step: task.work(3, 4, rule) for task in tasks}
    assert work == {
        SyncStep.SEND_GRADIENT: (0, 40), SyncStep.ADD: (20, 4 * 40), SyncStep.UPDATE: (rule.flops(10), 120),
        SyncStep.SEND_WEIGHTS: (0, 40),
    }


@pytest.mark.parametrize("travel", MESSAGES)
@pytest.mark.parametrize("count", range(1, 18))
def test_routes_bring_each_value_to_the_root_once(travel: SyncAlgorithm, count: int) -> None:
    held = [{i} for i in range(count)]
    for one_round in routes(travel, count):
        for giver, taker in one_round:
            assert not held[giver] & held[taker]
            held[taker] |= held[giver]
    assert held[0] == set(range(count)) and sum(map(len, routes(travel, count))) == count - 1


def test_a_bundle_without_gradients_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one of 2 holders must have a gradient"):
        make_sync_table(MessageSync(), (False, False), 4, 4)
