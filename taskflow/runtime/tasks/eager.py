"""Eager execution: runs the task graph of one launch at once, without compiling it.

Sends read the memory of the instance and end later; a task that writes memory which is still being sent first waits for the
send. All messages have one tag: every rank starts them in program order, and MPI keeps the order between two ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from taskflow.kernels import KernelSet
from taskflow.operators.operator import StepState
from taskflow.regions import Rect
from taskflow.runtime.program import PersistentBuffers, Placement, Storage, bind, fail
from taskflow.runtime.transport import Channel, Transport
from taskflow.tasks import MemoryPlan, Part, Task, TaskGraph
from taskflow.tasks.launch import movements_first


@dataclass(frozen=True, slots=True)
class _Message:
    """A channel, and what it sends or fills if the part of the instance is not one run of memory."""

    channel: Channel
    packed: Any


class EagerRunner:
    """Runner of graphs whose buffers are all persistent, on this rank's part of the processors."""

    def __init__(
        self, transport: Transport, placement: Placement, kept: PersistentBuffers, kernels: KernelSet, state: StepState
    ) -> None:
        self._transport, self._placement, self._kept = transport, placement, kept
        self._kernels, self._state = kernels, state
        # One tag will do: all ranks follow program order, and messages of one pair and tag stay in order.
        self._tag = transport.reserve_tags(1)
        self._messages: dict[tuple[bool, str, Rect, int], _Message] = {}
        self._leaving: dict[str, list[tuple[Rect, Channel, str]]] = {}

    def run(self, graph: TaskGraph) -> None:
        """Run the graph's tasks that concern this rank."""
        rank = self._transport.rank
        storage = Storage(graph, MemoryPlan({}, 0, 0), self._kept)
        for number in movements_first(graph):
            task = graph.tasks[number]
            here, giver = self._placement.rank(task.processor), self._placement.rank(task.source)
            if here == rank:
                self._flush(graph, task)
            if here == giver == rank:
                try:
                    bind(task, storage, self._kernels, self._state)()
                except Exception as error:
                    fail(error, task)
            elif giver == rank:
                self._send(task, here, storage)
            elif here == rank:
                self._receive(task, giver, storage)

    def drain(self) -> None:
        """Wait until all sends have ended."""
        for entries in self._leaving.values():
            for _, channel, what in entries:
                self._transport.wait(channel, f"end of {what}")
        self._leaving.clear()

    def _flush(self, graph: TaskGraph, task: Task) -> None:
        """Wait for the sends whose memory the task writes."""
        for part in task.writes:
            name = graph.buffers[part.buffer].name
            entries = self._leaving.get(name)
            if entries:
                for rect, channel, what in entries:
                    if rect.overlaps(part.rect):
                        self._transport.wait(channel, f"{task} overwrites what {what} still sends")
                self._leaving[name] = [entry for entry in entries if not entry[1].done()]

    def _send(self, task: Task, rank: int, storage: Storage) -> None:
        part = task.reads[0]
        array = storage.part(part)
        message = self._message(True, storage.graph, part, array, rank)
        self._transport.wait(message.channel, f"previous {task}")
        if message.packed is not None:
            self._kernels.copy(array, message.packed)
        message.channel.start()
        self._leaving.setdefault(storage.graph.buffers[part.buffer].name, []).append((part.rect, message.channel, str(task)))

    def _receive(self, task: Task, rank: int, storage: Storage) -> None:
        part = task.writes[0]
        array = storage.part(part)
        message = self._message(False, storage.graph, part, array, rank)
        message.channel.start()
        self._transport.wait(message.channel, f"copy {task}")
        if message.packed is not None:
            self._kernels.copy(message.packed, array)

    def _message(self, sends: bool, graph: TaskGraph, part: Part, array: Any, rank: int) -> _Message:
        key = (sends, graph.buffers[part.buffer].name, part.rect, rank)
        message = self._messages.get(key)
        if message is None:
            packed = None if array.flags.c_contiguous else self._kept.device.xp.empty(array.shape, array.dtype)
            make = self._transport.sender if sends else self._transport.receiver
            message = self._messages[key] = _Message(make(array if packed is None else packed, rank, self._tag), packed)
        return message
