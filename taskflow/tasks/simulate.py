"""Full simulation (the paper's Algorithm 1), as short as possible: it defines order and time of a TaskGraph.

The compiled twins in optimizer/evaluate/simulation/, and the tests that hold each equal to it:

- full.h (Algorithm 1): tests/optimizer/evaluate/test_core_equal.py
- delta.h (Algorithm 2): tests/optimizer/evaluate/test_core_delta.py
- by_fragment.h (without the flat task graph): tests/optimizer/evaluate/test_core_apart.py
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil

from taskflow.drawing import Drawing
from taskflow.machine import Around, Machine, all_pairs, collective, collective_links, exchange
from taskflow.tasks.task import AllToAll, Collective, Kind, Task, TaskGraph


@dataclass(frozen=True, slots=True)
class Span:
    """Times at which one task was ready, started and ended, in seconds from the start of the step.

    ``starts``: when a copy or collective acquired each of the resources that it occupies, in the order of `resources`;
    ``start`` is the latest of them. It occupies each for ``end - start``. For other tasks ``starts`` is empty.
    """

    task: int
    ready: float
    start: float
    end: float
    starts: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Timeline:
    """Spans by task number, and the order in which tasks were taken, which is the order in which they became ready."""

    spans: tuple[Span, ...]
    order: tuple[int, ...]

    def begun(self, graph: TaskGraph) -> tuple[int, ...]:
        """Return the numbers of the graph's tasks in an order in which the ranks can run them: by the time at which they began,
        copies and collectives first among equals, and no task before one that it waits for. (In ``order`` a message comes after
        all tasks that became ready before it, even those that still waited for the processor that it leaves.)"""
        waits, followers = [len(task.after) for task in graph.tasks], _followers(graph)
        place = {number: i for i, number in enumerate(self.order)}

        def entry(number: int) -> tuple[float, bool, int, int]:
            span = self.spans[number]
            began = min(span.starts, default=span.start)
            return began, not graph.tasks[number].kind.travels, place[number], number

        queue = [entry(number) for number, waiting in enumerate(waits) if not waiting]
        heapq.heapify(queue)
        found: list[int] = []
        while queue:
            number = heapq.heappop(queue)[-1]
            found.append(number)
            for follower in followers[number]:
                waits[follower] -= 1
                if not waits[follower]:
                    heapq.heappush(queue, entry(follower))
        return tuple(found)

    @property
    def makespan(self) -> float:
        """Seconds until the last task ends."""
        return max((span.end for span in self.spans), default=0.0)

    def draw(self, tasks: TaskGraph | None = None) -> Drawing:
        """Draw a small Gantt chart for a notebook. With ``tasks``: a row for each processor (and below it the messages it
        receives), coloured by kind of task; else rows of tasks that do not overlap."""
        from taskflow.tasks.gantt import gantt

        return Drawing(gantt(self, tasks))

    def __repr__(self) -> str:
        return f"Timeline of {len(self.spans)} tasks in {self.makespan * 1e3:.4g} ms"

    def _repr_html_(self) -> str:
        return self.draw().html


Cost = Callable[[Task], float]  # seconds
TICKS = 2.0**40  # a second


def on_grid(seconds: float) -> float:
    """Round seconds up to a multiple of 2**-40 (0.9 picoseconds), the unit of simulated time. Sums of fewer than 8,192 seconds
    are then exact in any order."""
    return ceil(seconds * TICKS) / TICKS if seconds < 8192 else seconds
Priority = Callable[[Task], int]  # lower goes first among tasks that became ready at the same time


def roofline(machine: Machine) -> Cost:
    """Return a function that gives the seconds of a task from its flops and bytes and the machine's rates: good enough to order
    a step's tasks."""

    links: dict[tuple[int, int], tuple[float, float]] = {}  # (source, target) -> latency, bytes a second

    def within(processor: int, flops: int, nbytes: int) -> float:
        p = machine.processors[processor]
        return p.overhead_seconds + max(flops / p.flops_per_second, nbytes / p.bytes_per_second)

    def seconds(task: Task) -> float:
        if isinstance(task.work, Collective):
            return all_reduce_seconds(machine, task.work.group, task.nbytes, task.flops, within, task.work.halves)
        if task.kind is Kind.COPY:
            ends = task.source, task.processor
            if ends not in links:
                route = machine.route(*ends)
                links[ends] = sum(k.latency_seconds for k in route), min(k.bytes_per_second for k in route)
            latency, rate = links[ends]
            return latency + task.nbytes / rate
        return within(task.processor, task.flops, task.nbytes)

    return seconds


def all_reduce_seconds(
    machine: Machine, group: Sequence[int], nbytes: int, flops: int, within: Callable[[int, int, int], float], halves: int = 2,
    around: Around | None = None,
) -> float:
    """Return the seconds of an all-reduce (`collective`), or of one of its ``halves``, given bytes and flops of all its members
    together; with 0 halves, of an all-to-all (`exchange`). Processors that copy by themselves also add what arrives (an
    all-gather adds nothing); ``within(processor, flops, nbytes)`` returns the seconds of such a sum. GPUs add while they send.
    ``around``: the collective or exchange, if it is known."""
    around = around or (collective(machine, group) if halves else exchange(machine, group))
    seconds = around.seconds(nbytes, halves)
    if around.copies and flops:  # each adds to all of the array but an nth, reading two arrays and writing one
        count = len(group)
        seconds += max(within(p, flops // count, 3 * (nbytes // halves) // count) for p in group)
    return seconds


def resources(task: Task, machine: Machine) -> tuple[int, ...]:
    """Return what the task occupies: its processor's number, or those of its links, which follow the processors' numbers. The
    sender comes before the links and the receiver after them where these copy by themselves (`Link.occupies_endpoints`). A
    collective occupies the resources of a ring, an all-to-all those between all pairs."""
    if isinstance(task.work, AllToAll):
        return all_pairs(machine, task.work.group).resources
    if isinstance(task.work, Collective):
        return collective(machine, task.work.group).resources
    return message_resources(task.source, task.processor, machine) if task.kind is Kind.COPY else (task.processor,)


def together(kind: Kind, occupied: Sequence[int], machine: Machine) -> bool:
    """Return whether a task of this kind reaches all of ``occupied`` (its `resources`) when it is ready, and not one after
    another: collectives do where the machine says how its library performs, unless processors copy by themselves."""
    if kind is not Kind.COLLECTIVE or getattr(machine, "collectives", None) is None:
        return False
    return min(occupied, default=0) >= len(machine.processors)


def link_names(task: Task, machine: Machine) -> dict[int, str]:
    """Return the names of the links that a task occupies, by their numbers as in `resources`; none for tasks within a
    processor."""
    if not task.kind.travels:
        return {}
    members, first = task.processors, len(machine.processors)
    if isinstance(task.work, AllToAll):
        pairs = [(a, b) for a in members for b in members if a != b]
        links = [link for source, target in pairs for link in machine.route(source, target)]
    elif task.kind is Kind.COLLECTIVE:
        links = list(collective_links(machine, members).values())
    else:
        links = list(machine.route(*members))
    return {first + link.number: link.name for link in links}


def message_resources(source: int, target: int, machine: Machine) -> tuple[int, ...]:
    """Return what a message between two processors occupies, numbered as in `resources`."""
    route = machine.route(source, target)
    first = len(machine.processors)
    links = tuple([first + link.number for link in route])
    if not any([link.occupies_endpoints for link in route]):
        return links
    sender = (source,) if any(link.occupies_sender for link in route) else ()
    receiver = (target,) if any(link.occupies_receiver for link in route) else ()
    return (*sender, *links, *receiver)


def simulate(graph: TaskGraph, machine: Machine, cost: Cost, priority: Priority | None = None) -> Timeline:
    """Run Algorithm 1 of the paper: take tasks in the order in which they become ready; each starts when it is ready and its
    resources are free. Ties go to the lower ``priority``, then to the lower task number.

    A copy reaches the next link of its route when it starts on the previous one. Each link serves copies in the order in which
    they reach it, and is busy with each for all of the copy's duration. (If a copy acquired its whole route at once, it would
    keep other links idle while it waits for one. In an all-to-all hardly two copies would then run at a time.) A collective
    of a library reaches all of its links when it is ready (`together`), since its members all begin then, and ends when the last
    link is done with it. Elsewhere it goes around its ring as a copy goes over its route.
    """
    if graph.processors > len(machine.processors):
        raise ValueError(f"simulate: the tasks are for {graph.processors} processors, the machine has {len(machine.processors)}")
    rank = priority or (lambda task: 0)
    waits, followers = [len(task.after) for task in graph.tasks], _followers(graph)
    ready = [0.0] * len(graph.tasks)
    free: dict[int, float] = {}
    # By what travels how, and who takes part: resources, and whether it reaches them `together`.
    occupies: dict[tuple[object, tuple[int, ...]], tuple[tuple[int, ...], bool]] = {}
    spans: dict[int, Span] = {}
    order: list[int] = []
    crossing: dict[int, tuple[float, list[float]]] = {}  # of tasks that have begun: seconds, starts
    queue = [(0.0, rank(t), t.number) for t in graph.tasks if not t.after]
    heapq.heapify(queue)
    while queue:
        at, place, number = heapq.heappop(queue)
        task = graph.tasks[number]
        ends = type(task.work) if task.kind.travels else None, task.processors
        if ends not in occupies:
            occupied = resources(task, machine)
            occupies[ends] = occupied, together(task.kind, occupied, machine)
        occupied, at_once = occupies[ends]
        if number not in crossing:
            order.append(number)
            crossing[number] = on_grid(cost(task)), []
        seconds, starts = crossing[number]
        start = at
        while (at_once or start == at) and len(starts) < len(occupied):
            r = occupied[len(starts)]
            starts.append(max(at, free.get(r, 0.0)))
            free[r] = starts[-1] + seconds
            start = max(start, starts[-1])
        if len(starts) < len(occupied):  # others come in between
            heapq.heappush(queue, (start, place, number))
            continue
        end = start + seconds if occupied else at
        spans[number] = Span(number, ready[number], start, end, tuple(starts) if task.kind.travels else ())
        for follower in followers[number]:
            if end > ready[follower]:
                ready[follower] = end
            waits[follower] -= 1
            if waits[follower] == 0:
                heapq.heappush(queue, (ready[follower], rank(graph.tasks[follower]), follower))
    if len(spans) != len(graph.tasks):
        raise ValueError(f"{len(graph.tasks) - len(spans)} tasks wait for each other in a circle")
    return Timeline(tuple(spans[i] for i in range(len(spans))), tuple(order))


def _followers(graph: TaskGraph) -> list[list[int]]:
    """For each task, the tasks that wait for it."""
    followers: list[list[int]] = [[] for _ in graph.tasks]
    for task in graph.tasks:
        for before in task.after:
            followers[before].append(task.number)
    return followers


@dataclass(frozen=True, slots=True)
class Stay:
    """Time for which a task occupies one resource, in seconds from the start of the step."""

    task: int
    start: float
    end: float


def stays(graph: TaskGraph, timeline: Timeline, machine: Machine) -> dict[int, list[Stay]]:
    """Return, for each resource numbered as in `resources`, its stays in the order of their starts."""
    found: dict[int, list[Stay]] = {}
    for number in timeline.order:
        span = timeline.spans[number]
        for r, start in zip(resources(graph.tasks[number], machine), span.starts or (span.start,)):
            found.setdefault(r, []).append(Stay(number, start, start + (span.end - span.start)))
    for there in found.values():
        there.sort(key=lambda stay: stay.start)
    return found
