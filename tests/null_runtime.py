"""Null runtime: runs every rank's schedule on a virtual clock, with kernels that only take their predicted time.

Of the task graph's edges it knows only what the schedules enforce: what ran before on the same rank, and which copies a rank
has waited for. A missing wait is an error. An order that differs from the simulator's gives a different timeline.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from taskflow.machine import Machine
from taskflow.runtime.program import Item, RankSchedule, Receive, RunTask, Send, StartCollective, WaitReceive, WaitSend
from taskflow.tasks import Cost, Span, Task, TaskGraph, Timeline, on_grid, resources, stays, together


class ScheduleError(RuntimeError):
    """Error for a schedule that runs a task before something it needs, or ranks that wait for each other in a circle."""


class _Clock:
    """Ends of tasks, and what is still on its way. Tasks that share something (a processor, a link) have it in the order of
    ``turns``: so a rank whose core copies what it receives does this when it is the copy's turn."""

    def __init__(self, graph: TaskGraph, turns: Timeline, machine: Machine, cost: Cost) -> None:
        self.graph, self.cost = graph, cost
        self.occupied = [resources(task, machine) for task in graph.tasks]
        self.together = [together(task.kind, there, machine) for task, there in zip(graph.tasks, self.occupied)]
        self.spans: dict[int, Span] = {}
        self.sent: dict[int, float] = {}
        self.posted: dict[int, float] = {}
        self.joined: dict[int, dict[int, float]] = {}  # collective -> rank -> when it joined, until all have
        self.members: dict[int, int] = {}  # how many ranks a collective has
        self.free: dict[int, float] = {}
        self.order: list[int] = []
        self.starts: dict[int, dict[int, float]] = {}  # of copies and collectives on their way, by resource
        self.queues = {r: deque(stay.task for stay in there) for r, there in stays(graph, turns, machine).items()}

    def occupy(self, task: Task, ready: float) -> bool:
        """Take the task, which is ready, as far as it is first in line for what it occupies; whether it has arrived."""
        occupied, starts = self.occupied[task.number], self.starts.setdefault(task.number, {})
        first, seconds = not starts, on_grid(self.cost(task))
        for r in [r for r in occupied if r not in starts]:
            if self.queues[r][0] == task.number:
                arrival = ready if self.together[task.number] else max(starts.values(), default=ready)
                starts[r] = max(arrival, self.free.get(r, 0.0))
                self.free[r] = starts[r] + seconds
                self.queues[r].popleft()
            elif not self.together[task.number]:
                break
        if first and starts:
            self.order.append(task.number)
        if len(starts) < len(occupied):
            return False
        start, crossed = max(starts.values()), tuple([starts[r] for r in occupied]) if task.kind.travels else ()
        self.spans[task.number] = Span(task.number, ready, start, start + seconds, crossed)
        return True

    def transfer(self) -> bool:
        """Take every copy that both sides have begun, and every collective that all ranks have, as far as it can go."""
        moved = False
        for number, ready in [(n, r) for n, r in self.joined.items() if len(r) == self.members[n]]:
            self.sent[number] = self.posted[number] = max(ready.values())
            del self.joined[number]
        for number in [n for n in self.sent if n in self.posted and n not in self.spans]:
            before = len(self.starts.get(number, ()))
            self.occupy(self.graph.tasks[number], max(self.sent[number], self.posted[number]))
            moved |= len(self.starts[number]) > before
        return moved


def replay(graph: TaskGraph, schedules: Sequence[RankSchedule], turns: Timeline, machine: Machine, cost: Cost) -> Timeline:
    """Run all ranks' schedules together and return the timeline, which is the simulator's if the schedules are right.

    ``turns`` is used only for the order in which tasks get the resources that they share. Raises ScheduleError.
    """
    clock = _Clock(graph, turns, machine, cost)
    places = [0] * len(schedules)
    known: list[set[int]] = [set() for _ in schedules]  # tasks whose end a rank has waited for
    while any(place < len(plan.items) for place, plan in zip(places, schedules)):
        moved = clock.transfer()
        for rank, plan in enumerate(schedules):
            while places[rank] < len(plan.items) and _step(clock, plan.items[places[rank]], known[rank], rank):
                places[rank] += 1
                moved = True
        if not moved:
            stuck = [f"rank {r} at {plan.items[p]}" for r, (p, plan) in enumerate(zip(places, schedules)) if p < len(plan.items)]
            raise ScheduleError("ranks wait for each other in a circle: " + "; ".join(stuck))
    while clock.transfer():
        pass
    missing = len(graph) - len(clock.spans)
    if missing:
        raise ScheduleError(f"{missing} tasks are in no rank's schedule")
    return Timeline(tuple(clock.spans[i] for i in range(len(graph))), tuple(clock.order))


def _step(clock: _Clock, item: Item, known: set[int], rank: int) -> bool:
    """Do one item of a rank if that is possible now."""
    match item:
        case RunTask(task):
            ready = _ready(clock, task, known, all_of=True)
            if ready is None:
                return False
            if task.kind.travels:  # between processors of one rank; under way while the rank goes on
                clock.sent[task.number] = clock.posted[task.number] = ready
            elif not clock.occupy(task, ready):
                return False
            known.add(task.number)
        case Send(task, _):
            ready = _ready(clock, task, known, all_of=False)
            if ready is None:
                return False
            clock.sent[task.number] = ready
        case Receive(task, _):
            ready = _ready(clock, task, known, all_of=False)
            if ready is None:
                return False
            clock.posted[task.number] = ready
        case StartCollective(task, ranks, _):
            ready = _ready(clock, task, known, all_of=False)
            if ready is None:
                return False
            clock.members[task.number] = len(ranks)
            clock.joined.setdefault(task.number, {})[rank] = ready
        case WaitReceive(copy, _):
            if copy.number not in clock.spans:
                return False
            known.add(copy.number)
        case WaitSend(copy, _):
            # A copy that this step has not sent yet is the step before's, which a single step has not. One that is on its
            # way holds up only the tasks that need its end: memory that is used again takes no time of its own here.
            if copy.number in clock.sent:
                known.add(copy.number)
    return True


def _ready(clock: _Clock, task: Task, known: set[int], all_of: bool) -> float | None:
    """Time at which the last known predecessor of the task has ended; None if one of them is still running."""
    if all_of and (missing := [b for b in task.after if b not in known]):
        raise ScheduleError(f"{task} runs before {', '.join(str(clock.graph.tasks[b]) for b in missing)}")
    before = [b for b in task.after if b in known]
    if any(b not in clock.spans for b in before):
        return None
    return max((clock.spans[b].end for b in before), default=0.0)
