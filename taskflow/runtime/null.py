"""The null runtime: every rank's schedule run on a virtual clock, with kernels that only take their cost.

It knows nothing of the task graph's edges but what the schedules enforce: what ran before on the same rank, and which
copies a rank has waited for. If a wait were missing it would say so; if an order differed from the simulator's, its
timeline would.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from taskflow.machine import Machine
from taskflow.runtime.schedule import Arrive, Flush, Post, Run, Schedule, Send
from taskflow.tasks.simulate import Cost, Span, Timeline, resources
from taskflow.tasks.task import Task, TaskGraph


class ScheduleError(RuntimeError):
    """A schedule runs a task before what it needs, or ranks wait for each other in a circle."""


class _Clock:
    """Ends of tasks, and what is still on its way. Tasks that share something (a processor, a link) have it in ``order``:
    so a rank whose core copies what it receives does this when it is the copy's turn."""

    def __init__(self, graph: TaskGraph, order: Sequence[int], machine: Machine, cost: Cost) -> None:
        self.graph, self.cost = graph, cost
        self.occupied = [resources(task, machine) for task in graph.tasks]
        self.spans: dict[int, Span] = {}
        self.sent: dict[int, float] = {}
        self.posted: dict[int, float] = {}
        self.free: dict[int, float] = {}
        self.order: list[int] = []
        self.queues: dict[int, deque[int]] = {}
        for number in order:
            for resource in self.occupied[number]:
                self.queues.setdefault(resource, deque()).append(number)

    def turn(self, number: int) -> bool:
        """Whether the task is first in line for all it occupies."""
        return all(self.queues[r][0] == number for r in self.occupied[number])

    def occupy(self, task: Task, ready: float) -> None:
        """Run the task, whose turn it is, from when it is ready and all it occupies is free."""
        occupied = self.occupied[task.number]
        start = max(ready, *(self.free.get(r, 0.0) for r in occupied))
        end = start + self.cost(task)
        for r in occupied:
            self.free[r] = end
            self.queues[r].popleft()
        self.spans[task.number] = Span(task.number, ready, start, end)
        self.order.append(task.number)

    def transfer(self) -> bool:
        """Run every copy that both sides have begun and whose turn it is."""
        moved = False
        for number in list(self.sent):
            if number in self.posted and self.turn(number):
                self.occupy(self.graph.tasks[number], max(self.sent.pop(number), self.posted.pop(number)))
                moved = True
        return moved


def replay(graph: TaskGraph, schedules: Sequence[Schedule], order: Sequence[int], machine: Machine, cost: Cost) -> Timeline:
    """Run all ranks' schedules together; the timeline is the simulator's if the schedules are right.

    ``order`` gives only whose turn it is on what tasks share. Raises ScheduleError.
    """
    clock = _Clock(graph, order, machine, cost)
    places = [0] * len(schedules)
    known: list[set[int]] = [set() for _ in schedules]  # tasks that have ended as far as a rank can tell
    while any(place < len(plan.items) for place, plan in zip(places, schedules)):
        moved = clock.transfer()
        for rank, plan in enumerate(schedules):
            while places[rank] < len(plan.items) and _step(clock, plan.items[places[rank]], known[rank]):
                places[rank] += 1
                moved = True
        if not moved:
            stuck = [f"rank {r} at {plan.items[p]}" for r, (p, plan) in enumerate(zip(places, schedules)) if p < len(plan.items)]
            raise ScheduleError("ranks wait for each other in a circle: " + "; ".join(stuck))
    missing = len(graph) - len(clock.spans)
    if missing:
        raise ScheduleError(f"{missing} tasks are in no rank's schedule")
    return Timeline(tuple(clock.spans[i] for i in range(len(graph))), tuple(clock.order))


def _step(clock: _Clock, item: Run | Send | Post | Arrive | Flush, known: set[int]) -> bool:
    """Do one item if that is possible now."""
    match item:
        case Run(task):
            ready = _ready(clock, task, known, all_of=True)
            if not clock.turn(task.number):
                return False
            clock.occupy(task, ready)
            known.add(task.number)
        case Send(task, _):
            clock.sent[task.number] = _ready(clock, task, known, all_of=False)
        case Post(task, _):
            clock.posted[task.number] = _ready(clock, task, known, all_of=False)
        case Arrive(copy, _):
            if copy.number not in clock.spans:
                return False
            known.add(copy.number)
        case Flush(copy, _):
            # A copy that this step has not sent yet is the step before's, which a single step has not.
            if copy.number in clock.spans:
                known.add(copy.number)
            elif copy.number in clock.sent:
                return False
    return True


def _ready(clock: _Clock, task: Task, known: set[int], all_of: bool) -> float:
    """When the last of what the rank knows to precede the task has ended."""
    if all_of and (missing := [b for b in task.after if b not in known]):
        raise ScheduleError(f"{task} runs before {', '.join(str(clock.graph.tasks[b]) for b in missing)}")
    return max((clock.spans[b].end for b in task.after if b in known), default=0.0)
