"""Schedules against their definitions: the null runtime's clock and the stamps of program order."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random

import numpy as np
import pytest
from fast_and_slow import fast_among
from language_model import CONFIG, ONE_STEP, model, random_strategy
from null_runtime import ScheduleError, replay
from pipelines import random_shares
from stamp_kernels import Record, stamp_binder, stamped

from taskflow.kernels import NumpyKernels
from taskflow.machine import Cluster, Ends, Group, NodeTemplate, Wire, host
from taskflow.machine.host import CPU
from taskflow.mapper import Exchange
from taskflow.operators.operator import StepState
from taskflow.regions import Rect
from taskflow.rules import SGD
from taskflow.runtime.program.program import Program
from taskflow.runtime.program.schedule import Placement, RunTask, Send, WaitReceive, WaitSend, schedule
from taskflow.runtime.program.storage import PersistentBuffers
from taskflow.runtime.transport.local import LocalTransport
from taskflow.tasks.items import root_of
from taskflow.tasks.lower.emit import Emitter
from taskflow.tasks.lower.lower import lower
from taskflow.tasks.simulate import resources, roofline, simulate, stays
from taskflow.tasks.task import Kind


def copying(ends: Ends):
    """Processors that reach each other over one switch; in the transfers these of them take part."""
    wire = Wire(("cpu*", "bus"), 3e9, 2e-6, occupies_endpoints=ends)
    return lambda processors: Cluster(
        "copying", (CPU,), (NodeTemplate("box", (Group("cpu", CPU.kind, processors),), ("bus",), (wire,)),), (("box", 1),)
    )


SHARES = 25  # from this seed on gradients, or weights too, are kept as shares


def lowered(seed: int, least: int = 1, exchange: Exchange = Exchange.COPIES):
    random = Random(seed)
    graph = model(config=random.choice((CONFIG, ONE_STEP)))
    processors = random.randint(least, 5)
    strategy = random_strategy(graph, processors, random)
    strategy = replace(strategy, exchange=exchange)
    if seed >= SHARES:
        strategy = random_shares(graph, strategy, random)
    tasks = lower(graph, strategy, SGD(0.1, momentum=0.9), clip_norm=1.0)
    machine = random.choice((host, copying(True), copying("sender"), copying(False)))(processors)
    cost = roofline(machine)
    return tasks, machine, cost, simulate(tasks, machine, cost), random.randint(1, processors)


@pytest.mark.parametrize("seed", fast_among(range(SHARES + 10), range(0, SHARES + 10, 2)))
def test_null_runtime_takes_the_simulated_time(seed):
    tasks, machine, cost, timeline, ranks = lowered(seed, exchange=list(Exchange)[seed % 2])
    placement = Placement(tasks.processors, ranks)
    schedules = [schedule(tasks, timeline.begun(tasks), placement, rank) for rank in range(ranks)]
    replayed = replay(tasks, schedules, timeline, machine, cost)
    assert replayed.makespan == timeline.makespan
    assert replayed.spans == timeline.spans
    (tag_count,) = {one.tag_count for one in schedules}  # all reserve as many
    assert all(tag < tag_count for one in schedules for tag in one.tags.values())


def test_what_nobody_writes_is_sent_again_when_the_last_send_of_it_is_over() -> None:
    """A channel takes no second message while the first is under way."""
    emit = Emitter(2)
    there = [emit.whole(emit.buffer("x", Rect((0,), (8,)), processor, np.dtype(np.float32), kept=True)) for processor in (0, 1)]
    emit.transfer("message", *there)
    first, second = schedule(emit.graph, [0], Placement(2, 2), 0).items
    assert isinstance(first, WaitSend) and first.copy is first.needed_by and isinstance(second, Send)


def test_a_copy_occupies_who_makes_it():
    """Two processors, a second of copying, and tasks of their own for another two: who copies does not compute meanwhile."""
    tasks, *_ = lowered(3, least=2)
    copy = next(t for t in tasks if t.kind is Kind.COPY)
    rate = 3e9
    for ends, occupied in ((False, []), ("sender", [copy.source]), ("receiver", [copy.processor]),
                           (True, [copy.source, copy.processor])):
        machine = copying(ends)(tasks.processors)
        held = resources(copy, machine)
        assert [r for r in held if r < tasks.processors] == occupied
        assert len(held) - len(occupied) == 2  # to the bus and from it
        timeline = simulate(tasks, machine, lambda t: t.nbytes / rate if t.kind is Kind.COPY else 1e-3)
        rounding = 1e-12 * timeline.makespan  # a stay's length is a difference of times
        copying_too = 0
        for there in stays(tasks, timeline, machine).values():
            copying_too += len({tasks.tasks[stay.task].kind is Kind.COPY for stay in there}) - 1
            for first, second in pairwise(there):
                assert first.end <= second.start + rounding
        assert (copying_too > 0) == bool(ends)


def test_memory_of_what_is_sent_is_not_taken_before_the_receivers_turn():
    """Else a sender would wait for a receiver that copies by itself when it gets there (CPU ranks of one machine)."""
    looked_at = 0
    for seed in range(25):
        tasks, _, _, timeline, _ = lowered(seed, least=2)
        place = {number: i for i, number in enumerate(timeline.begun(tasks))}
        needed: dict[int, int] = {}  # by copy: the place of the first task that needs it on the other side
        for number in timeline.begun(tasks):
            for before in tasks.tasks[number].after:
                copy, task = tasks.tasks[before], tasks.tasks[number]
                if copy.processor != copy.source and copy.processor in (task.processor, task.source):
                    needed.setdefault(before, place[number])
        placement = Placement(tasks.processors, tasks.processors)
        for rank in range(tasks.processors):
            begun = set()
            for item in schedule(tasks, timeline.begun(tasks), placement, rank).items:
                if isinstance(item, Send):
                    begun.add(item.task.number)
                if not isinstance(item, WaitSend) or item.copy.number not in begun or item.copy is item.needed_by:
                    continue
                if not root_of(tasks, item.copy.reads[0].buffer).kept:
                    looked_at += 1
                    assert place[item.needed_by.number] >= needed[item.copy.number], (seed, rank, item)
    assert looked_at > 100


def test_what_travels_goes_before_tasks_that_wait_for_its_sender():
    """A value of processor 0 goes to processor 1 as soon as it is there, though a second task of processor 0, which needs
    nothing, was ready long before the message was."""
    emit = Emitter(2)
    rect, dtype = Rect((0,), (250,)), np.dtype(np.float32)
    first, second, there = (emit.whole(emit.buffer("x", rect, processor, dtype)) for processor in (0, 0, 1))
    emit.fill("first", first, 1.0)
    emit.fill("second", second, 1.0)
    emit.transfer("message", first, there)
    tasks, machine = emit.graph, host(2)
    timeline = simulate(tasks, machine, roofline(machine))
    assert [tasks.tasks[n].name for n in timeline.order] == ["first", "second", "message"]
    order = timeline.begun(tasks)
    assert [tasks.tasks[n].name for n in order] == ["first", "message", "second"]
    items = [item for item in schedule(tasks, order, Placement(2, 2), 0).items if not isinstance(item, WaitSend)]
    assert [type(item) for item in items] == [RunTask, Send, RunTask]


@pytest.mark.parametrize("seed", range(25))
def test_tasks_in_the_order_in_which_they_begin(seed):
    """All of them, none before what it waits for, each processor's as it took them."""
    tasks, machine, _, _, _ = lowered(seed, exchange=list(Exchange)[seed % 2])
    # Many tasks that take no time: those that begin at one moment also wait for each other.
    timeline = simulate(tasks, machine, lambda task: float(task.number % 3))
    order = timeline.begun(tasks)
    place = {number: i for i, number in enumerate(order)}
    assert sorted(order) == list(range(len(tasks)))
    assert all(place[before] < place[task.number] for task in tasks for before in task.after)
    begins = [min(span.starts, default=span.start) for span in (timeline.spans[n] for n in order)]
    assert begins == sorted(begins)


def test_null_runtime_notices_a_missing_wait():
    tasks, machine, cost, timeline, _ = lowered(3, least=2)
    placement = Placement(tasks.processors, 2)
    schedules = [schedule(tasks, timeline.begun(tasks), placement, rank) for rank in range(2)]
    waits = [i for i, item in enumerate(schedules[1].items) if isinstance(item, WaitReceive) and item.needed_by]
    assert waits
    broken = tuple(item for i, item in enumerate(schedules[1].items) if i != waits[0])
    schedules[1] = replace(schedules[1], items=broken)
    with pytest.raises(ScheduleError, match="runs before"):
        replay(tasks, schedules, timeline, machine, cost)


def run_stamped(tasks, order, reuse: bool, steps: int = 3) -> Record:
    record: Record = {}
    graph = stamped(tasks)
    plan = schedule(graph, order, Placement(graph.processors, 1), 0, reuse_memory=reuse)
    state = StepState()
    program = Program(graph, plan, LocalTransport(), NumpyKernels(), state, PersistentBuffers(), binder=stamp_binder(record))
    for step in range(steps):
        state.step = step
        program.run()
    return record


@pytest.mark.parametrize("seed", fast_among(range(SHARES + 10), range(0, SHARES + 10, 2)))
def test_every_task_reads_what_program_order_says(seed):
    tasks, _, _, timeline, _ = lowered(seed, exchange=list(Exchange)[seed % 2])
    wanted = run_stamped(tasks, range(len(tasks)), reuse=False)
    assert run_stamped(tasks, timeline.begun(tasks), reuse=True) == wanted
    assert len(wanted) > 0


def test_memory_is_reused():
    tasks, *_, timeline, _ = lowered(1)
    placement = Placement(tasks.processors, 1)
    reused = schedule(tasks, timeline.begun(tasks), placement, 0).memory.nbytes
    assert reused < schedule(tasks, timeline.begun(tasks), placement, 0, reuse_memory=False).memory.nbytes
