"""Program: one rank's compiled step. Compiling binds arrays and opens channels; running replays a list of functions."""

from __future__ import annotations

import sys
from collections.abc import Callable, MutableSequence, Sequence
from dataclasses import dataclass
from functools import partial
from operator import length_hint
from time import perf_counter
from typing import Any, NoReturn

import numpy as np

from taskflow.kernels import KernelSet
from taskflow.machine import ring_share
from taskflow.mapper import MeasuredTask
from taskflow.operators.operator import StepState
from taskflow.runtime.program.bind import Action, bind
from taskflow.runtime.program.bind_collective import all_gathered, all_reduced, reduce_scattered
from taskflow.runtime.program.bind_exchange import exchanged, shares_gathered, shares_reduced
from taskflow.runtime.program.graph_capture import GraphCapture
from taskflow.runtime.program.schedule import (
    Item,
    RankSchedule,
    Receive,
    RunTask,
    Send,
    StartCollective,
    WaitReceive,
    WaitSend,
)
from taskflow.runtime.program.storage import PersistentBuffers, Storage
from taskflow.runtime.transport import Channel, Transport
from taskflow.tasks import AllGather, AllReduce, AllToAll, Part, ReduceScatter, Task, TaskGraph, UserCall

Binder = Callable[[Task, Storage, KernelSet, StepState], Action]


@dataclass(frozen=True, slots=True)
class Measured:
    """Start and end of one item of the schedule on this rank, in seconds of the rank's clock."""

    item: Item
    start: float
    end: float

    def describe(self) -> MeasuredTask:
        """Return it as mappers receive it."""
        task = self.item.copy if isinstance(self.item, (WaitReceive, WaitSend)) else self.item.task
        kind = task.kind.value if isinstance(self.item, RunTask) else type(self.item).__name__.lower()
        processor = task.source if isinstance(self.item, (Send, WaitSend)) else task.processor
        return MeasuredTask(task.number, task.name, kind, processor, self.start, self.end)


class Program:
    """A schedule bound to memory, kernels and channels. ``run`` executes one step and may be called any number of times."""

    def __init__(
        self,
        graph: TaskGraph,
        plan: RankSchedule,
        transport: Transport,
        kernels: KernelSet,
        state: StepState,
        kept: PersistentBuffers,
        *,
        binder: Binder = bind,
        arena: Any = None,
    ) -> None:
        self.graph, self.plan, self.transport = graph, plan, transport
        self.storage = Storage(graph, plan.memory, kept, arena)
        self._first_tag = transport.reserve_tags(plan.tag_count)
        self._channels: dict[int, Channel] = {}
        self._unpack: dict[int, Action] = {}
        self.actions: list[Action] = []
        for item in plan.items:
            self.actions.append(self._action(item, kernels, state, binder))
        self.bytes_sent = sum(map(self._sent, plan.items))
        recorder = kernels.device.recorder() if binder is bind else None
        self.recording = None if recorder is None else GraphCapture(plan.items, self.actions, recorder, state, self._fail)

    def run(self) -> None:
        """Run one step. An error in a task is raised with the task's name."""
        self.storage.device.activate()
        if self.recording is not None:
            self.recording.run()
            self.transport.settle()
            return
        actions = iter(self.actions)
        try:
            for action in actions:
                action()
        except Exception as error:
            self._fail(error, len(self.actions) - length_hint(actions) - 1)
        self.transport.settle()

    def _fail(self, error: Exception, number: int) -> NoReturn:
        """Raise what an action has raised."""
        item = self.plan.items[number]
        fail(error, item.copy if isinstance(item, (WaitReceive, WaitSend)) else item.task)

    def run_timed(self, times: MutableSequence[float], clock: Callable[[], float]) -> None:
        """Run one step. ``times`` gets the clock before the first item and after each, so that the step's time is covered
        without a gap. An error in a task is raised with the task's name."""
        self.storage.device.activate()
        append = times.append
        append(clock())
        try:
            for action in self.actions:
                action()
                append(clock())
        except Exception as error:
            self._fail(error, len(times) - 1)

    def run_measured(self) -> list[Measured]:
        """Run one step, and return the time of every item."""
        times: list[float] = []
        self.run_timed(times, perf_counter)
        self.transport.settle()
        return list(map(Measured, self.plan.items, times, times[1:]))

    def drain(self) -> None:
        """Wait until all sends have ended."""
        for number, channel in self._channels.items():
            if not channel.done():
                self.transport.wait(channel, f"end of {self.graph.tasks[number]}")

    def _action(self, item: Item, kernels: KernelSet, state: StepState, binder: Binder) -> Action:
        match item:
            case RunTask(task):
                return binder(task, self.storage, kernels, state)
            case Send(task, rank):
                return self._send(task, rank, kernels)
            case Receive(task, rank):
                return self._post(task, rank, kernels)
            case StartCollective():
                return self._join(item)
            case WaitReceive(copy, needed_by):
                waiting = "end of step" if needed_by is None else str(needed_by)
                what = f"{waiting} waits for {copy.kind.value} {copy}"
                return self._wait(copy, what, self._unpack.get(copy.number))
            case WaitSend(copy, needed_by):
                return self._lazy_wait(copy, f"{needed_by} overwrites what copy {copy} still sends")

    def _sent(self, item: Item) -> int:
        """Bytes that leave this rank; of a collective what a ring of its ranks would send."""
        match item:
            case Send(task, _) if not self.storage.is_there(task):
                return task.nbytes
            case StartCollective(Task(work=AllReduce() | ReduceScatter() | AllGather() as work), ranks, parts):
                return ring_share(len(ranks), ranks.index(self.plan.rank), self.storage.part(parts[0]).nbytes, work.halves)
            case StartCollective(Task(work=AllToAll(_, blocks)), owners=owners):
                rank = self.plan.rank
                return sum(
                    self.storage.part(block.source).nbytes for block in blocks
                    if owners[block.giver] == rank != owners[block.taker]
                )
        return 0

    def _moved(self, task: Task, part: Part) -> Any:
        """Payload of a message; only a notice if the receiver has the same memory."""
        array = self.storage.part(part)
        return array.reshape(-1)[:0] if self.storage.is_there(task) else array

    def _send(self, task: Task, rank: int, kernels: KernelSet) -> Action:
        array = self._moved(task, task.reads[0])
        packed = self._packed(array)
        channel = self._open(task, self.transport.sender(packed, rank, self._first_tag + self.plan.tags[task.number]))
        if packed is array:
            return channel.start

        def pack_and_send() -> None:
            if not channel.done():
                self.transport.wait(channel, f"previous {task}")
            kernels.copy(array, packed)
            channel.start()

        return pack_and_send

    def _post(self, task: Task, rank: int, kernels: KernelSet) -> Action:
        array = self._moved(task, task.writes[0])
        packed = self._packed(array)
        if packed is not array:
            self._unpack[task.number] = partial(kernels.copy, packed, array)
        return self._open(task, self.transport.receiver(packed, rank, self._first_tag + self.plan.tags[task.number])).start

    def _packed(self, array: Any) -> Any:
        """The array of a message if it is contiguous, else memory for a copy that is."""
        return array if array.flags.c_contiguous else self.storage.device.xp.empty(array.shape, array.dtype)

    def _join(self, item: StartCollective) -> Action:
        """Actions before and after a collective with other ranks: the first of this rank's arrays stands for all."""
        task, ranks, counts, transport = item.task, item.ranks, item.counts, self.transport
        if isinstance(task.work, AllReduce):
            return self._around(task, transport.all_reduce, ranks, *all_reduced(self.storage, item.parts))
        if isinstance(task.work, AllToAll):
            array, matrix, *around = exchanged(self.storage, item, task.work, self.plan.rank)
            return self._around(task, partial(transport.all_to_all, counts=matrix), ranks, array, *around)
        if isinstance(task.work, ReduceScatter):
            scatter = partial(transport.reduce_scatter, counts=counts)
            if task.work.places:
                return self._around(task, scatter, ranks, *shares_reduced(self.storage, item, task.work, self.plan.rank))
            return self._around(task, scatter, ranks, *reduce_scattered(self.storage, item.parts, item.shares))
        assert isinstance(task.work, AllGather)
        gather = partial(transport.all_gather, counts=counts)
        if task.work.places:
            return self._around(task, gather, ranks, *shares_gathered(self.storage, item, task.work, self.plan.rank))
        return self._around(task, gather, ranks, *all_gathered(self.storage, item.parts, item.shares))

    def _around(
        self, task: Task, channel_of: Callable[..., Channel], ranks: Sequence[int], array: Any, before: Action | None,
        after: Action | None,
    ) -> Action:
        channel = self._open(task, channel_of(array, ranks=ranks))
        if after is not None:
            self._unpack[task.number] = after
        if before is None:
            return channel.start

        def join() -> None:
            before()
            channel.start()

        return join

    def _open(self, task: Task, channel: Channel) -> Channel:
        self._channels[task.number] = channel
        return channel

    def _wait(self, copy: Task, what: str, then: Action | None) -> Action:
        channel, wait = self._channels[copy.number], self.transport.wait

        def arrive() -> None:
            if not channel.done():
                wait(channel, what)
            if then is not None:
                then()

        return arrive

    def _lazy_wait(self, copy: Task, what: str) -> Action:
        """Wait like `_wait`, for a send whose channel is opened later in the schedule than this wait."""
        channels, wait = self._channels, self.transport.wait

        def flush() -> None:
            channel = channels[copy.number]
            if not channel.done():
                wait(channel, what)

        return flush

    def fetched(self, tensor: str) -> np.ndarray[Any, Any]:
        """Return a copy on the host of a fetched tensor's value after a step, on the rank of processor 0."""
        return self.storage.device.to_host(self.storage.array(self.graph.fetched[tensor]))


def fail(error: Exception, task: Task) -> NoReturn:
    """Raise ``error``, or an error that explains it better, with the name of the task that raised it."""
    better = task.work.call.explain(error) if isinstance(task.work, UserCall) else None
    if better is not None:
        raise better from error
    if sys.version_info >= (3, 11):
        error.add_note(f"in task {task}")
    raise error
