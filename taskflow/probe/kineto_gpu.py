"""Events of a trace, and the parts of a step that they belong to; and what a GPU's kernels say of a step: each belongs to the part
in which the host started it, on whichever of its threads."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

GPU_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
GPU_CALLS = ("cuda_runtime", "cuda_driver")


@dataclass(frozen=True, slots=True)
class TimeOf:
    """Part of a step. ``kind``: forward, backward, gradients, weights, activations, stage, unit, update, loss or host; ``owner``:
    the module's path, or ""."""

    kind: str
    owner: str = ""

    @property
    def message(self) -> bool:
        """Whether it is a message."""
        return self.kind in ("gradients", "weights", "activations", "stage", "loss sum")


@dataclass(slots=True)
class TraceEvent:
    """An event of a trace, from ``begin`` to ``end`` in microseconds. ``thread``: of the host, or the stream of a GPU."""

    begin: float
    end: float
    name: str
    args: Mapping[str, Any]
    thread: object
    category: str


Slice = tuple[float, float, TimeOf]


Window = tuple[float, float]
GATHERS = ("allgather", "all_gather")
PAIRS = ("sendrecv", "send", "recv", "coalesced")


def of_kernels(
    events: Sequence[TraceEvent], windows: Sequence[Window], threads: Mapping[object, Sequence[Slice]]
) -> tuple[list[Slice], list[Window]]:
    """Cut the device's time into slices, and return them with the steps as the device has them. ``windows``: the steps as the host
    has them, which runs ahead; ``threads``: the slices of each of its threads. A step begins with the first work that the host has
    started in it. Messages count where nothing else runs (exposed)."""
    calls = {
        event.args["correlation"]: event for event in events if event.category in GPU_CALLS and "correlation" in event.args
    }
    begins = {thread: [begin for begin, _, _ in slices] for thread, slices in threads.items()}
    kernels: list[Slice] = []
    messages: list[Slice] = []
    first, busy = [inf] * len(windows), 0.0
    for event in events:
        if event.category not in GPU_WORK:
            continue
        call = calls.get(event.args.get("correlation"))
        part = TimeOf("host") if call is None else _at(threads[call.thread], begins[call.thread], call.begin)
        if sends := _sends(event):
            messages.append((event.begin, event.end, _as_message(part, sends)))
        else:
            kernels.append((event.begin, event.end, part))
        step = bisect_right(windows, (event.begin if call is None else call.begin, inf)) - 1
        if step >= 0:
            first[step] = min(first[step], event.begin)
        else:
            busy = max(busy, event.end)
    if busy <= windows[0][0]:
        first[0] = windows[0][0]  # the device waits for the host
    borders = [*(begin for begin in first if begin < inf), windows[-1][1]]
    return list(first_of([*kernels, *messages])), list(zip(borders, borders[1:]))


def _at(slices: Sequence[Slice], begins: Sequence[float], time: float) -> TimeOf:
    """The part that a thread was in."""
    i = bisect_right(begins, time) - 1
    return slices[i][2] if i >= 0 and time <= slices[i][1] else TimeOf("host")


def _sends(event: TraceEvent) -> str:
    """What a kernel of NCCL (or RCCL) sends, in small letters; nothing for other kernels."""
    said = str(event.args.get("Collective name") or "")
    return f"{said} {event.name}".lower() if said or "nccl" in event.name.lower() or "rccl" in event.name.lower() else ""


def _as_message(part: TimeOf, sends: str) -> TimeOf:
    """The message that a part sends."""
    if part.message:
        return part
    gathers = any(word in sends for word in GATHERS)
    if part.kind == "unit":
        return TimeOf("weights" if gathers else "gradients", part.owner)
    if part.kind == "host":
        return TimeOf("weights" if gathers else "stage" if any(word in sends for word in PAIRS) else "gradients")
    if part.kind == "backward" and not gathers and not any(word in sends for word in ("sendrecv", "alltoall", "all_to_all")):
        return TimeOf("gradients", part.owner)
    return TimeOf("activations", part.owner)


def first_of(found: Sequence[Slice]) -> Iterator[Slice]:
    """Cut the time so that each moment belongs to the first of the slices that cover it; the host has what none covers."""
    borders = sorted({time for begin, end, _ in found for time in (begin, end)})
    owner: list[TimeOf | None] = [None] * max(0, len(borders) - 1)
    for begin, end, part in found:
        for i in range(bisect_left(borders, begin), bisect_left(borders, end)):
            owner[i] = owner[i] or part
    for low, high, one in zip(borders, borders[1:], owner):
        yield low, high, one or TimeOf("host")
