"""Events: recordings of ranks and the prediction, as one document in the Chrome trace event format.

Each rank is a process with the tracks ``compute`` (one for each processor), ``send``, ``receive``, ``wait`` and ``other``. They
cover the time from the start of its first traced step to the end of its last without gap or overlap; ``step`` spans each step.
Predicted timelines are processes of their own beside them, aligned at the start of each step. Times are whole nanoseconds here,
from the first step's start, and microseconds in the file. Format: "Trace Event Format" (Duffy et al., Google), JSON object
form; tests/runtime/test_traces.py holds what Perfetto requires beyond it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from taskflow.machine import Machine
from taskflow.mapper import ranges
from taskflow.runtime.profiler.clock_offsets import on_first_clock
from taskflow.runtime.profiler.predicted import predicted_events
from taskflow.runtime.profiler.recording import HEADER, KINDS, Recording, Subject, microseconds, thread
from taskflow.runtime.program import Receive, Send, StartCollective, WaitReceive, WaitSend
from taskflow.tasks import SYNCHRONISATION, Compute, Kind, Placement, Purpose, Task, TaskGraph, Timeline

Event = dict[str, Any]
STEP, SEND, RECEIVE, WAIT, OTHER, COMPUTE = 1, 2, 3, 4, 5, 10
"""Numbers of a rank's tracks; that of processor p's computation is COMPUTE + p."""
TRACKS = {STEP: "step", SEND: "send", RECEIVE: "receive", WAIT: "wait", OTHER: "other"}
COVERING = ("compute", "send", "receive", "wait", "other")
"""Categories of the spans that together cover a rank's time."""


def document(
    tasks: TaskGraph, recordings: Sequence[Recording], subject: Subject, predicted: Timeline, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the whole trace: ``traceEvents``, and in ``otherData`` the facts and the durations of steps."""
    writer = _EventWriter(tasks, recordings, subject)
    events = list(writer.events())
    starts = writer.step_starts()
    predicted_pid = max(r.rank for r in recordings) + 2
    events += predicted_events(
        tasks, predicted, subject, starts, writer.arguments, predicted_pid, [rank_pid(r.rank) for r in recordings]
    )
    measured = writer.step_seconds()
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {**facts, "step_seconds": measured, "predicted_step_seconds": predicted.makespan},
    }


def predicted_document(tasks: TaskGraph, predicted: Timeline, machine: Machine, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the trace of a predicted step that nothing ran: a process for each processor, and one for the links."""
    count = len(machine.processors)
    subject = Subject(machine, Placement(count, count))
    return {
        "traceEvents": predicted_events(tasks, predicted, subject, {0: 0}, _all_arguments(tasks), 1, range(count)),
        "displayTimeUnit": "ms",
        "otherData": {**HEADER, **facts, "steps": [], "step_seconds": [], "predicted_step_seconds": predicted.makespan},
    }


def rank_pid(rank: int) -> int:
    """Return the number of a rank's process in the trace."""
    return rank + 1


class _EventWriter:
    """Turns recordings into events."""

    def __init__(self, tasks: TaskGraph, recordings: Sequence[Recording], subject: Subject) -> None:
        self._tasks, self._recordings, self._subject = tasks.tasks, recordings, subject
        self.arguments = _all_arguments(tasks)
        aligned = [[on_first_clock(times, *r.offsets) for times in r.times] for r in recordings]
        self._origin = min(float(steps[0][0]) for steps in aligned)
        # In whole nanoseconds, so that durations add up exactly.
        self._times = [[[round((t - self._origin) * 1e9) for t in times.tolist()] for times in steps] for steps in aligned]
        self._sent: dict[tuple[int, int], int] = {}  # (step, task) -> when the send began
        for recording, steps in zip(recordings, self._times):
            for step, times in zip(recording.steps, steps):
                for i, (kind, number) in enumerate(zip(recording.kinds, recording.tasks.tolist())):
                    if KINDS[kind] is Send:
                        self._sent[step, number] = times[i]

    def step_starts(self) -> dict[int, int]:
        """Return the nanosecond at which the first rank began each step."""
        steps = self._recordings[0].steps
        return {step: min(ranks[k][0] for ranks in self._times) for k, step in enumerate(steps)}

    def step_seconds(self) -> list[float]:
        """Return the seconds of each step, from the first rank's start to the last rank's end."""
        starts = self.step_starts()
        ends = [max(ranks[k][-1] for ranks in self._times) for k in range(len(starts))]
        return [(end - start) / 1e9 for start, end in zip(starts.values(), ends)]

    def events(self) -> Iterator[Event]:
        """All of the ranks' own processes."""
        for recording, steps in zip(self._recordings, self._times):
            yield from self._names(recording)
            end = None
            for step, times in zip(recording.steps, steps):
                if end is not None:
                    yield _span("between steps", "other", end, times[0], rank_pid(recording.rank), OTHER, {"step": step + 1})
                yield from self._step(recording, step, times)
                end = times[-1]

    def _names(self, recording: Recording) -> Iterator[Event]:
        pid, local = rank_pid(recording.rank), self._subject.placement.local(recording.rank)
        which = f"processor {local[0]}" if len(local) == 1 else f"processors {local[0]}-{local[-1]}"
        yield _named("process_name", pid, 0, f"rank {recording.rank} ({which})")
        yield {"ph": "M", "name": "process_labels", "pid": pid, "tid": 0,
               "args": {"labels": f"{recording.where}, process {recording.process}"}}  # fmt: skip
        yield _sorted("process_sort_index", pid, 0, 2 * recording.rank)
        tracks = {STEP: "step", **{COMPUTE + p: f"compute (processor {p})" for p in local}, **TRACKS}
        for place, (tid, name) in enumerate(tracks.items()):
            yield _named("thread_name", pid, thread(pid, tid), name)
            yield _sorted("thread_sort_index", pid, thread(pid, tid), place)

    def _step(self, recording: Recording, step: int, times: Sequence[int]) -> Iterator[Event]:
        pid, shown = rank_pid(recording.rank), step + 1
        yield _span(f"step {shown}", "step", times[0], times[-1], pid, STEP, {"step": shown})
        posted: dict[int, int] = {}
        numbers, needs = recording.tasks.tolist(), recording.needed_by.tolist()
        for i, kind in enumerate(recording.kinds):
            task, begin, end = self._tasks[numbers[i]], times[i], times[i + 1]
            details = {"step": shown, **self.arguments[task.number]}
            match KINDS[kind]:
                case item if item is Send:
                    yield _span(f"send {task.name}", "send", begin, end, pid, SEND, details | {"to": task.processor})
                    yield self._flow("s", step, task, begin, pid, SEND)
                case item if item is Receive:
                    posted[task.number] = begin
                    yield _span(f"post {task.name}", "receive", begin, end, pid, RECEIVE, details | {"from": task.source})
                case item if item is StartCollective:
                    yield _span(f"join {task.name}", "send", begin, end, pid, SEND, details)
                case item if item is WaitReceive and task.kind is Kind.COLLECTIVE:
                    yield _span(f"wait for {task.name}", "wait", begin, end, pid, WAIT, details | self._for(needs[i]))
                case item if item is WaitReceive:
                    yield from self._arrival(step, task, (begin, end), posted[task.number], pid, details, needs[i])
                case item if item is WaitSend:
                    yield _span(f"wait until {task.name} has left", "wait", begin, end, pid, WAIT, details | self._for(needs[i]))
                case _:
                    yield _span(task.name, "compute", begin, end, pid, COMPUTE + task.processor, details)

    def _arrival(
        self, step: int, task: Task, span: tuple[int, int], posted: int, pid: int, details: Event, needed_by: int
    ) -> Iterator[Event]:
        """The wait for a message, the message's own bar from when both sides had begun it, and the arrow's head."""
        begin, end = span
        sent = self._sent.get((step, task.number))
        flight = None if sent is None else max(0, end - max(sent, posted))
        shown = None if flight is None else microseconds(flight)
        more = self._for(needed_by) | {"from": task.source, "flight_microseconds": shown}
        yield _span(f"wait for {task.name}", "wait", begin, end, pid, WAIT, details | more)
        if flight is None:
            return
        head = max(begin, end - 1)  # within the span, so that it belongs to this one and not the next
        yield self._flow("f", step, task, head, pid, WAIT) | {"bp": "e"}
        bar = {
            "cat": "message", "id": self._identity(step, task), "name": f"{task.name} from {task.source}", "pid": pid,
            "tid": thread(pid, WAIT),
        }
        yield {**bar, "ph": "b", "ts": microseconds(end - flight), "args": details}
        yield {**bar, "ph": "e", "ts": microseconds(end)}

    def _identity(self, step: int, task: Task) -> str:
        """A number of its own for each message of each step, as viewers read it: in hexadecimal."""
        return hex(step * len(self._tasks) + task.number)

    def _flow(self, phase: str, step: int, task: Task, at: int, pid: int, tid: int) -> Event:
        return {
            "name": "message", "cat": "flow", "ph": phase, "id": self._identity(step, task), "ts": microseconds(at), "pid": pid,
            "tid": thread(pid, tid),
        }

    def _for(self, needed_by: int) -> Event:
        return {"needed_by": self._tasks[needed_by].name if needed_by >= 0 else "end of step"}


def _phase(task: Task) -> str:
    """Part of a step to which a task belongs."""
    purpose = task.topic.purpose
    if purpose in (Purpose.BACKWARD, Purpose.RECOMPUTED):
        return "backward"
    if purpose in (Purpose.FORWARD, Purpose.CALL):
        return "forward"
    if purpose in SYNCHRONISATION:
        return "synchronisation"
    return "transfer" if task.kind.travels else "other"


def _all_arguments(tasks: TaskGraph) -> list[Event]:
    found = [arguments_of(task) for task in tasks.tasks]
    for one, first, last in tasks.passes:
        for details in found[first:last]:
            details.update(micro_batch=one.micro_batch, stage=one.stage)
    return found


def arguments_of(task: Task) -> Event:
    """Return details that the viewer shows when one clicks on a task."""
    topic, work = task.topic, task.work
    details: Event = {
        "task": task.number, "operator": topic.name or topic.purpose.value, "phase": _phase(task), "kind": task.kind.value,
        "bytes": task.nbytes, "flops": task.flops,
    }
    if isinstance(work, Compute):
        details["piece"] = str(work.piece)
        details["operator_kind"] = work.node.operator.kind
    if task.kind is Kind.COPY:
        details["route"] = f"{task.source}->{task.processor}"
    if task.kind is Kind.COLLECTIVE:
        details["processors"] = ranges(task.processors)
    return details


def _span(name: str, category: str, begin: int, end: int, pid: int, tid: int, arguments: Event) -> Event:
    return {
        "name": name, "cat": category, "ph": "X", "ts": microseconds(begin), "dur": microseconds(end - begin), "pid": pid,
        "tid": thread(pid, tid), "args": arguments,
    }  # fmt: skip


def _named(what: str, pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def _sorted(what: str, pid: int, tid: int, place: int) -> Event:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"sort_index": place}}
