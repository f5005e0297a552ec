"""The paper's full simulation (Algorithm 1), as short as it can be: what order and time mean for a TaskGraph."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

from taskflow.drawing import Drawing
from taskflow.machine import Machine
from taskflow.tasks.task import Kind, Task, TaskGraph


@dataclass(frozen=True, slots=True)
class Span:
    """When one task was ready, started and ended, in seconds from the start of the step."""

    task: int
    ready: float
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """Spans by task number, and the order in which tasks were taken."""

    spans: tuple[Span, ...]
    order: tuple[int, ...]

    @property
    def makespan(self) -> float:
        """Seconds until the last task ends."""
        return max((span.end for span in self.spans), default=0.0)

    def draw(self, tasks: TaskGraph | None = None) -> Drawing:
        """A small Gantt chart for a notebook: with ``tasks``, a row a processor (and the messages it receives below it) by
        kind of task; else rows of tasks that do not overlap."""
        from taskflow.tasks.gantt import gantt

        return Drawing(gantt(self, tasks))

    def __repr__(self) -> str:
        return f"Timeline of {len(self.spans)} tasks in {self.makespan * 1e3:.4g} ms"

    def _repr_html_(self) -> str:
        return self.draw().html


Cost = Callable[[Task], float]  # seconds
Priority = Callable[[Task], int]  # lower goes first among tasks that became ready at the same time


def roofline(machine: Machine) -> Cost:
    """Seconds of a task from its flops and bytes and the machine's rates: enough to order a step's tasks."""

    links: dict[tuple[int, int], tuple[float, float]] = {}  # (source, target) -> latency, bytes a second

    def seconds(task: Task) -> float:
        if task.kind is Kind.COPY:
            ends = task.source, task.processor
            if ends not in links:
                route = machine.route(*ends)
                links[ends] = sum(k.latency_seconds for k in route), min(k.bytes_per_second for k in route)
            latency, rate = links[ends]
            return latency + task.nbytes / rate
        processor = machine.processors[task.processor]
        return processor.overhead_seconds + max(
            task.flops / processor.flops_per_second, task.nbytes / processor.bytes_per_second
        )

    return seconds


def resources(task: Task, machine: Machine) -> tuple[int, ...]:
    """What the task occupies: its processor's number, or those of its links counted on after the processors; before them
    those of the processors that do the copying themselves (`Link.occupies_endpoints`), the sender's first."""
    if task.kind is not Kind.COPY:
        return (task.processor,)
    route = machine.route(task.source, task.processor)
    links = tuple(len(machine.processors) + link.number for link in route)
    sender = (task.source,) if any(link.occupies_sender for link in route) else ()
    receiver = (task.processor,) if any(link.occupies_receiver for link in route) else ()
    return (*sender, *receiver, *links)


def simulate(graph: TaskGraph, machine: Machine, cost: Cost, priority: Priority | None = None) -> Timeline:
    """Algorithm 1 of the paper: take tasks in the order in which they become ready; each starts when it is ready and all
    it occupies is free. Ties go to the lower ``priority``, then to the lower task number."""
    rank = priority or (lambda task: 0)
    waits = [len(task.after) for task in graph.tasks]
    followers: list[list[int]] = [[] for _ in graph.tasks]
    for task in graph.tasks:
        for before in task.after:
            followers[before].append(task.number)
    ready = [0.0] * len(graph.tasks)
    free: dict[int, float] = {}
    occupies: dict[tuple[int, int], tuple[int, ...]] = {}  # (source, target) -> resources
    spans: dict[int, Span] = {}  # in the order in which they are taken
    queue = [(0.0, rank(t), t.number) for t in graph.tasks if not t.after]
    heapq.heapify(queue)
    while queue:
        at, _, number = heapq.heappop(queue)
        task = graph.tasks[number]
        ends = task.source, task.processor
        if ends not in occupies:
            occupies[ends] = resources(task, machine)
        occupied = occupies[ends]
        start = at
        for r in occupied:
            if free.get(r, 0.0) > start:
                start = free[r]
        end = start + cost(task)
        for r in occupied:
            free[r] = end
        spans[number] = Span(number, at, start, end)
        for follower in followers[number]:
            if end > ready[follower]:
                ready[follower] = end
            waits[follower] -= 1
            if waits[follower] == 0:
                heapq.heappush(queue, (ready[follower], rank(graph.tasks[follower]), follower))
    if len(spans) != len(graph.tasks):
        raise ValueError(f"{len(graph.tasks) - len(spans)} tasks wait for each other in a circle")
    return Timeline(tuple(spans[i] for i in range(len(spans))), tuple(spans))
