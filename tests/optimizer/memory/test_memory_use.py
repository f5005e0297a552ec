"""Predicted memory is what the executor allocates, byte for byte, for random strategies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from fast_and_slow import fast_among
from language_model import CONFIG, ONE_STEP, model, random_strategy

from taskflow.kernels import NumpyKernels
from taskflow.machine import Cluster, host, load_machine
from taskflow.mapper import DataParallel, HybridParallel, choose, map_graph
from taskflow.models.llama import LlamaConfig, llama
from taskflow.operators.operator import StepState
from taskflow.optimizer import make_evaluator
from taskflow.optimizer.evaluate.folded import folded_step, folded_use
from taskflow.optimizer.memory.peak import MemoryUse, exceeding, explain, fits, memory_profile, memory_use, peak_bytes
from taskflow.rules import SGD, Adam
from taskflow.runtime.executor import Executor
from taskflow.runtime.program.program import Program
from taskflow.runtime.program.schedule import Placement, schedule
from taskflow.runtime.program.storage import PersistentBuffers
from taskflow.runtime.transport.base import Channel, Transport
from taskflow.tasks.lower.lower import lower
from taskflow.tasks.simulate import roofline, simulate
from taskflow.tasks.task import TaskGraph


class Silent(Transport):
    """One rank of many that opens channels and never uses them."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size, self.arrays = rank, size, list[np.ndarray[Any, Any]]()

    def sender(self, array: Any, peer: int, tag: int) -> Channel:
        self.arrays.append(array)

        class Nothing(Channel):
            def start(self) -> None: ...

            def done(self) -> bool:
                return True

        return Nothing()

    receiver = sender

    def all_reduce(self, array: Any, ranks: Sequence[int]) -> Channel:
        return self.sender(array, ranks[0], 0)

    def reduce_scatter(self, array: Any, counts: Sequence[int], ranks: Sequence[int]) -> Channel:
        return self.sender(array, ranks[0], 0)

    all_gather = reduce_scatter

    def all_to_all(self, array: Any, counts: Sequence[Sequence[int]], ranks: Sequence[int]) -> Channel:
        return self.sender(array, ranks[0], 0)

    def wait(self, channel: Channel, what: Any) -> None: ...

    def broadcast(self, value: Any, root: int = 0) -> Any:
        return value

    def gather(self, value: Any, root: int = 0) -> list[Any] | None:
        return None

    def barrier(self) -> None: ...

    def duplicate(self) -> Transport:
        return self

    def close(self) -> None: ...


def allocated(tasks: TaskGraph, order: tuple[int, ...], rank: int) -> tuple[int, int, int]:
    """Kept bytes, the arena and packed messages of a rank's real program."""
    count = tasks.processors
    plan = schedule(tasks, order, Placement(count, count), rank)
    transport, kept = Silent(rank, count), PersistentBuffers()
    program = Program(tasks, plan, transport, NumpyKernels(), StepState(feeds={}), kept)
    for bundle in tasks.bundles:  # the executor makes these to start them
        if rank in bundle.group:
            of = tasks.buffers[tasks.weights[bundle.name, rank]]
            kept.get(of.name, of.shape, of.dtype)
    homes = [program.storage.arena, *kept.arrays.values()]
    packed = [a for a in transport.arrays if a.size and not any(np.shares_memory(a, home) for home in homes)]
    return kept.nbytes, plan.memory.nbytes, sum(a.nbytes for a in packed)


@pytest.mark.parametrize("seed", fast_among(range(20), range(4, 14)))
def test_it_is_what_is_allocated(seed: int) -> None:
    random = Random(seed)
    graph = model(config=random.choice((CONFIG, ONE_STEP)))
    processors = random.randint(1, 5)
    strategy = random_strategy(graph, processors, random)
    rule = random.choice((SGD(0.1), SGD(0.1, momentum=0.9), Adam()))
    clip = random.choice((None, 1.0))
    uses = peak_bytes(graph, strategy, rule, clip_norm=clip)
    tasks = lower(graph, strategy, rule, clip_norm=clip)
    machine = host(processors)
    order = simulate(tasks, machine, roofline(machine)).begun(tasks)
    assert uses == memory_use(tasks, order)
    for use in uses:
        assert (use.weights + use.state, use.buffers + use.holes, use.packed) == allocated(tasks, order, use.processor)
        assert use.nbytes == use.weights + use.state + use.buffers + use.packed + use.holes


@pytest.mark.parametrize("plan", fast_among(
    ["c4 d2 mb8 zero3 recompute=full", "c4 d2 mb4", "t2 c2 d2 mb2 sp zero3", "c2 p2 d2 mb1 zero1"],
    ["c4 d2 mb8 zero3 recompute=full", "c2 p2 d2 mb1 zero1"],
))
def test_a_device_that_needs_nothing_of_a_gather_keeps_it_no_longer_than_the_others(plan: str) -> None:
    """The first block of a sequence attends to its own words only, but takes part in the gather of all keys. Their memory is free
    when another device begins to read them. A folded step, where an array lives until its last task, says the same."""
    graph = llama(replace(LlamaConfig.small(), batch=16, layers=6))
    machine = load_machine("h100", 8)
    evaluator = make_evaluator(graph, machine, rule=Adam())
    strategy = map_graph(HybridParallel(plan), graph, machine)
    step = folded_step(graph, strategy, machine, evaluator.costs, Adam(), None)
    assert step is not None
    tasks, timeline = evaluator.evaluated(strategy)
    order = timeline.begun(tasks)
    for use, folded in zip(memory_use(tasks, order), folded_use(step)):
        assert use.buffers == folded.buffers
        assert (use.weights + use.state, use.buffers + use.holes, use.packed) == allocated(tasks, order, use.processor)


def test_packed_messages_occur() -> None:
    """The property above must have met each part of the sum."""
    graph = model(config=CONFIG)
    uses = [peak_bytes(graph, random_strategy(graph, 4, Random(seed)), Adam()) for seed in range(20)]
    total = [use for each in uses for use in each]
    for part in ("weights", "state", "buffers", "packed"):
        assert any(getattr(use, part) for use in total)


@pytest.mark.parametrize("rule", [SGD(0.1, momentum=0.9), Adam()])
def test_one_processor_holds_weights_once_and_state_by_rule(rule: SGD | Adam) -> None:
    graph = model()
    strategy = map_graph(DataParallel(), graph, host(1))
    (use,) = peak_bytes(graph, strategy, rule)
    assert use.weights == 8 * graph.parameter_count
    carried = sum(a.spec.nbytes for a, _ in graph.carries)
    assert use.state == rule.buffers * use.weights + carried
    executor = Executor(graph, strategy, rule)
    program = executor.program("train")
    assert use.nbytes == program.plan.memory.nbytes + executor.kept.nbytes


def test_fits() -> None:
    graph = model()
    machine = host(2)
    uses = peak_bytes(graph, map_graph(DataParallel(), graph, machine), SGD(0.1), machine=machine)
    assert fits(machine, uses) and explain(machine, uses) == ""
    tight = small(machine, max(use.nbytes for use in uses))
    assert fits(tight, uses)
    tighter = small(machine, min(use.nbytes for use in uses) - 1)
    assert exceeding(tighter, uses) == uses
    text = explain(tighter, (MemoryUse(0, 1, 1, 1, 1), MemoryUse(1, 2 * 10**9, 10**9, 10**9, 0)))
    assert text.startswith("1 of 2 processors lack memory; processor 1 (cpu) needs 4 GB (weights 2, state 1, buffers 1,")


def small(machine: Cluster, memory: int) -> Cluster:
    return replace(machine, kinds=(replace(machine.kinds[0], memory_bytes=memory),))


@pytest.mark.parametrize("plan", ["data", "p2 d2 mb1", "d4 mb1 zero3"])
def test_the_largest_of_a_profile_is_what_is_needed(plan: str) -> None:
    graph, machine = llama(LlamaConfig.small()), load_machine("h100", 4)
    tasks = lower(graph, choose(plan, graph, machine)[0], Adam(0.1))
    timeline = simulate(tasks, machine, roofline(machine))
    profiles = memory_profile(tasks, timeline)
    assert len(profiles) == 4
    for profile, use in zip(profiles, memory_use(tasks, timeline.begun(tasks))):
        assert profile.use == use and profile.nbytes.max() == use.nbytes and len(profile.nbytes) == len(profile.seconds)
