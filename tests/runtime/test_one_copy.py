"""Weights that several processors hold as one memory: where it is right, where it is refused, and that numbers stay the same."""

from __future__ import annotations

import os
from random import Random
from threading import Barrier, Thread

import numpy as np
import pytest
from language_model import CONFIG, feeds, model, random_strategy

from taskflow.machine import host
from taskflow.mapper import MessageSync, UpdatePlacement, choose
from taskflow.mapper.strategy import Strategy
from taskflow.regions import Rect
from taskflow.rules import SGD, Adam
from taskflow.runtime.executor import Executor
from taskflow.runtime.program.storage import PersistentBuffers
from taskflow.runtime.transport.local import LocalTransport
from taskflow.runtime.weights import aliased_memory as share_weights
from taskflow.runtime.weights import shared_memory as memory_of_ranks
from taskflow.runtime.weights.aliasing import one_copy
from taskflow.runtime.weights.shared_memory import SharedArray, common_arrays
from taskflow.tasks.items import Placement
from taskflow.tasks.lower.lower import lower
from taskflow.tasks.simulate import roofline, simulate
from taskflow.tasks.task import Buffer, Kind, Part, Task, TaskGraph, Transfer

SIZE = 8
W0, W1, G0, G1, THERE = range(5)


def whole(buffer: int, low: int = 0, high: int = SIZE) -> Part:
    return Part(buffer, Rect((low,), (high,)))


class Hand:
    """A step of two processors, a rank each, by hand: rank 0 updates its copy of the weights and sends it to rank 1."""

    def __init__(self) -> None:
        span = Rect((0,), (SIZE,))
        self.graph = TaskGraph(2)
        for number, processor in enumerate((0, 1, 0, 1, 0)):
            kept = number in (W0, W1)
            self.graph.buffers.append(Buffer(number, "wwggt"[number], span, processor, np.dtype(np.float32), kept))
        self.graph.weights = {("w", 0): W0, ("w", 1): W1}

    def add(self, kind: Kind, on: int, reads: list[Part], writes: list[Part], *after: int, source: int | None = None) -> int:
        number = len(self.graph.tasks)
        work = Transfer(reads[0], writes[0]) if kind is Kind.COPY else None
        task = Task(
            number, kind, f"t{number}", on, on if source is None else source, work,  # type: ignore[arg-type]
            tuple(reads), tuple(writes), after, 0, 0,
        )
        self.graph.tasks.append(task)
        return number

    def found(self) -> tuple[tuple[int, ...], ...]:
        return one_copy(self.graph, range(len(self.graph)), Placement(2, 2))


def step(*, late: bool = False, told: bool = True, beside: bool = False, sent: bool = False) -> Hand:
    """``late``: rank 1 reads once more after it has sent its gradient; ``told``: rank 1 gets the new weights; ``beside``: it also
    updates some of them; ``sent``: it sends its weights somewhere else."""
    hand = Hand()
    read0 = hand.add(Kind.FORWARD, 0, [whole(W0)], [whole(G0)])
    read1 = hand.add(Kind.BACKWARD, 1, [whole(W1)], [whole(G1)])
    if sent:
        read1 = hand.add(Kind.COPY, 0, [whole(W1)], [whole(THERE)], read1, source=1)
    moved = hand.add(Kind.COPY, 0, [whole(G1)], [whole(THERE)], read1, source=1)
    if late:
        hand.add(Kind.FORWARD, 1, [whole(W1)], [whole(G1)], moved)
    update = hand.add(Kind.UPDATE, 0, [whole(W0), whole(G0)], [whole(W0)], read0, moved)
    if beside:
        hand.add(Kind.UPDATE, 1, [whole(W1, 2, 4), whole(G1, 2, 4)], [whole(W1, 2, 4)], read1)
    if told:
        hand.add(Kind.COPY, 1, [whole(W0)], [whole(W1)], update, source=0)
    return hand


def test_an_update_after_all_reads_may_be_in_one_memory() -> None:
    assert step().found() == ((W0, W1),)


@pytest.mark.parametrize(
    "why", [{"late": True}, {"told": False}, {"beside": True}, {"sent": True}], ids=lambda why: next(iter(why))
)
def test_it_is_refused(why: dict[str, bool]) -> None:
    assert step(**why).found() == ()


def test_small_weights_are_left_out() -> None:
    assert one_copy(step().graph, range(5), Placement(2, 2), SIZE * 4 + 1) == ()


@pytest.mark.parametrize(
    ("place", "shared"), [(UpdatePlacement.SHARDED, True), (UpdatePlacement.OWNER, True), (UpdatePlacement.REPLICATED, False)]
)
def test_who_updates_decides(place: UpdatePlacement, shared: bool) -> None:
    graph = model("float32", CONFIG)
    data = choose("data", graph, host(2))[0]
    layers = {bundle.layer for bundle in lower(graph, data, SGD(0.1)).bundles}
    strategy = Strategy(2, data.configs, {layer: MessageSync(placement=place) for layer in layers})
    tasks = lower(graph, strategy, SGD(0.1))
    order = simulate(tasks, host(2), roofline(host(2))).begun(tasks)
    found = one_copy(tasks, order, Placement(2, 2))
    assert len(found) == (len(tasks.bundles) if shared else 0)


@pytest.mark.parametrize("seed", range(12))
def test_numbers_stay_bit_for_bit(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = model("float64", CONFIG)
    strategy = random_strategy(graph, 2 + seed % 4, Random(seed))
    rule = (SGD(0.5, momentum=0.9), Adam(0.01))[seed % 2]
    apart = Executor(graph, strategy, rule, seed=3)
    monkeypatch.setattr(share_weights, "SMALLEST_BYTES", 1)
    together = Executor(graph, strategy, rule, seed=3)
    wanted = [apart.train(feeds(i, CONFIG)) for i in range(4)]
    assert [together.train(feeds(i, CONFIG)) for i in range(4)] == wanted
    assert together.evaluate(feeds(5, CONFIG)) == apart.evaluate(feeds(5, CONFIG))
    ours, theirs = together.parameters(), apart.parameters()
    assert ours is not None and theirs is not None
    assert all((ours[name] == theirs[name]).all() for name in theirs)
    saved = together.kept.nbytes < apart.kept.nbytes
    assert saved == together.kept.common
    together.set_parameters(ours)
    assert together.train(feeds(9, CONFIG)) == apart.train(feeds(9, CONFIG))


def test_a_memory_of_several_names_is_counted_once_by_who_made_it() -> None:
    kept = PersistentBuffers()
    kept.share("here", ["a", "b"], np.zeros(3), own=True)
    assert (kept.nbytes, kept.lent_nbytes) == (24, 0)
    kept.share("there", ["c", "d"], np.zeros(5), own=False)
    assert (kept.nbytes, kept.lent_nbytes) == (24, 40)


class Meeting(LocalTransport):
    """Ranks that are threads of one process, for what is collective and small."""

    def __init__(self, rank: int, size: int, table: list[object], barrier: Barrier) -> None:
        self.rank, self.size = rank, size  # type: ignore[misc]
        self._table, self._barrier = table, barrier

    def gather(self, value: object, root: int = 0) -> list[object] | None:
        self._table[self.rank] = value
        self._barrier.wait(60)
        found = list(self._table)
        self._barrier.wait(60)
        return found if self.rank == root else None

    def broadcast(self, value: object, root: int = 0) -> object:
        found = self.gather(value)
        if self.rank == root:
            self._table[0] = found[root] if found else None
        self._barrier.wait(60)
        answer = self._table[0]
        self._barrier.wait(60)
        return answer


def on_ranks(size: int, wanted: list[SharedArray]) -> list[dict[str, object]]:
    results: list[dict[str, object]] = [{} for _ in range(size)]
    table, barrier = [None] * size, Barrier(size)

    def run(rank: int) -> None:
        results[rank] = common_arrays(wanted, Meeting(rank, size, table, barrier))  # type: ignore[assignment,arg-type]

    threads = [Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    return results


WANTED = [
    SharedArray("a", 1000, np.dtype(np.float32), (0, 1)), SharedArray("b", 3, np.dtype(np.float64), (1, 2)),
    SharedArray("c", 700_000, np.dtype(np.float32), (0, 1, 2)),
]


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="no memory files on this system")
def test_ranks_see_one_memory() -> None:
    before = len(os.listdir("/proc/self/fd"))
    first, second, third = on_ranks(3, WANTED)
    for one, other, key in ((first, second, "a"), (second, third, "b"), (first, third, "c"), (third, second, "c")):
        one[key][-1] += 1.5  # type: ignore[index]
        assert one[key][-1] == other[key][-1] != 0 and one[key].ctypes.data % 64 == 0  # type: ignore[index,attr-defined]
    assert third["a"] is None and first["b"] is None
    assert first["c"].shape == (700_000,) and not first["a"][:-1].any()  # type: ignore[attr-defined,index]
    del first, second, third, one, other
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="no memory files on this system")
def test_nobody_shares_what_one_cannot_open(monkeypatch: pytest.MonkeyPatch) -> None:
    mapped = []

    def second_fails(where: object) -> object:
        mapped.append(where)
        return None if len(mapped) == 2 else real(where)  # type: ignore[arg-type]

    real = memory_of_ranks._map
    monkeypatch.setattr(memory_of_ranks, "_map", second_fails)
    assert on_ranks(3, WANTED) == [{}, {}, {}] and len(mapped) >= 3


def test_other_machines_share_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    names = iter([("boot 1", "pid"), ("boot 2", "pid"), None])
    monkeypatch.setattr(memory_of_ranks, "node_key", lambda: next(names))
    assert on_ranks(3, WANTED) == [{}, {}, {}]
