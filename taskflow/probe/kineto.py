"""Traces of PyTorch's profiler (Kineto) as the parts of each step's time on a rank.

The time of a step is cut into slices, each of which belongs to one part: forward or backward of a module, a message, a unit's
gathering and summing (FSDP2), the update, or the host, which does none of these. On a CPU the thread that runs the step says it; on
a GPU the kernels do (`kineto_gpu`), and what lies between them is the host's.
"""

from __future__ import annotations

import gzip
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from taskflow.probe.kineto_gpu import GPU_CALLS, GPU_WORK, Slice, TimeOf, TraceEvent, of_kernels
from taskflow.reading import parse_json

PREFIX = "taskflow::"
STEP, LOSS = "step", "loss"
OF_PARTS = {LOSS: "loss", "sums": "gradients", "finish": "loss sum"}
"""Of an exported module's names that are no module's, the part of the step."""
BROUGHT = "BroughtPieces"  # of an exported module: activations in another layout, copies and message
AGAIN = "autograd::engine::evaluate_function"
SEQUENCE = "Sequence number"  # of what a forward pass did, which its backward pass has, too
SENDS = ("gloo:", "nccl:")
CALLS = ("c10d::", "c10d_functional::", "_c10d_functional::")
UNIT = re.compile(r"FSDP::(\w+)(?: \((.*)\))?")


@dataclass(slots=True)
class RankTrace:
    """Steps of a rank. ``seconds``: of each step; ``parts``: of each step, seconds by part, which add up to these. ``ranks``: of
    the run; None: the trace does not say it."""

    rank: int
    seconds: list[float]
    parts: list[dict[TimeOf, float]]
    paths: frozenset[str]
    gpu: bool = False
    ranks: int | None = None

    def of(self, part: TimeOf) -> float:
        """Return the median seconds of a part over the steps."""
        return median(step.get(part, 0.0) for step in self.parts)

    @property
    def known(self) -> dict[TimeOf, float]:
        """Median seconds of every part."""
        return {part: self.of(part) for part in dict.fromkeys(part for step in self.parts for part in step)}


@dataclass(slots=True)
class _Sequences:
    """State of a walk over a thread's events."""

    owners: dict[int, str] = field(default_factory=dict)  # sequence number -> module whose forward it was
    backward: str = ""  # the module whose backward pass was seen last


def read_kineto(path: str) -> RankTrace:
    """Return the steps of one rank's trace (``.json`` or ``.json.gz``). Raises ValueError if it is none of PyTorch's, or has no
    step."""
    data = gzip.decompress(Path(path).read_bytes()) if path.endswith(".gz") else Path(path).read_bytes()
    content = parse_json(data, path)
    if not isinstance(content, dict) or not isinstance(content.get("traceEvents"), list):
        raise ValueError(f"{path}: not a trace of torch.profiler (export_chrome_trace writes one)")
    try:
        found = sorted(_events(content["traceEvents"]), key=_order)
        said = content.get("distributedInfo") or {}
        rank, ranks = int(said.get("rank", 0)), int(said["world_size"]) if "world_size" in said else None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{path}: a trace that was changed or cut: {type(error).__name__}: {error}") from error
    windows, thread = _windows(found)
    if not windows:
        raise ValueError(
            f"{path}: has no step: profile steps of an exported module, or call profiler.step() behind each step"
        )
    if on_gpu := any(event.category in GPU_WORK for event in found):
        slices, windows = of_kernels(found, windows, threads_of(found, thread))
    else:
        slices = list(_slices([event for event in found if event.thread == thread], _spans(found), _Sequences()))
    paths = frozenset(event.name.removeprefix(PREFIX) for event in found if event.name.startswith(PREFIX))
    parts = [_within(slices, *window) for window in windows]
    return RankTrace(rank, [(end - begin) / 1e6 for begin, end in windows], parts, paths - {STEP, *OF_PARTS}, on_gpu, ranks)


def _order(event: TraceEvent) -> tuple[float, float, bool]:
    """What contains others comes before them, also if it lasts as long."""
    return event.begin, -event.end, not event.name.startswith((PREFIX, "autograd::", "FSDP::", "Optimizer."))


def _events(rows: Sequence[Any]) -> Iterator[TraceEvent]:
    for row in rows:
        if row.get("ph") == "X" and row.get("cat") in ("cpu_op", "user_annotation", *GPU_CALLS, *GPU_WORK):
            begin = float(row["ts"])
            yield TraceEvent(begin, begin + float(row["dur"]), str(row["name"]), row.get("args") or {}, row["tid"], row["cat"])


def _windows(events: Sequence[TraceEvent]) -> tuple[list[tuple[float, float]], object]:
    """Begin and end of each step, and the thread that runs it: from one step of an exported module (or of the profiler) to the
    next."""
    for mark in (f"{PREFIX}{STEP}", "ProfilerStep#"):
        found = [event for event in events if event.name.startswith(mark)]
        if found:
            thread = found[0].thread
            last = max(event.end for event in events if event.thread == thread or event.category in GPU_WORK)
            begins = [event.begin for event in found if event.thread == thread]
            return list(zip(begins, [*begins[1:], last])), thread
    return [], None


def _spans(events: Sequence[TraceEvent]) -> list[tuple[float, float]]:
    """When messages were on their way, without overlaps."""
    found: list[tuple[float, float]] = []
    for event in events:
        if event.name.startswith(SENDS) and event.category == "user_annotation":
            if found and event.begin <= found[-1][1]:
                found[-1] = found[-1][0], max(found[-1][1], event.end)
            else:
                found.append((event.begin, event.end))
    return found


def threads_of(events: Sequence[TraceEvent], first: object) -> dict[object, list[Slice]]:
    """Cut the time of every thread of the host, ``first`` of which has run the forward passes. On a GPU PyTorch runs the backward
    pass in a thread of its own; the sequence numbers of operators say which module's it is. The first thread's slices for
    what is waited for are the launching of messages."""
    by_thread: dict[object, list[TraceEvent]] = {first: []}
    for event in events:
        if event.category not in GPU_WORK:
            by_thread.setdefault(event.thread, []).append(event)
    walk = _Sequences()
    found = {}
    for thread, own in by_thread.items():
        walk.backward = ""
        found[thread] = list(_slices(own, (), walk))
    return found


def _slices(events: Sequence[TraceEvent], spans: Sequence[tuple[float, float]], walk: _Sequences) -> Iterator[Slice]:
    """Cut a thread's time: each moment belongs to the innermost event."""
    stack, at = list[TraceEvent](), 0.0
    starts = [begin for begin, _ in spans]
    for event in [*(e for e in events if not e.name.startswith(SENDS)), None]:
        while stack and (event is None or stack[-1].end <= event.begin):
            yield from _cut(at, stack[-1].end, stack, walk, spans, starts)
            at = max(at, stack.pop().end)
        if event is None:
            break
        yield from _cut(at, event.begin, stack, walk, spans, starts)
        at = max(at, event.begin)
        stack.append(event)
        if SEQUENCE in event.args and _backward_of(stack) is None:
            walk.owners[int(event.args[SEQUENCE])] = _module(stack)


def _cut(
    begin: float, end: float, stack: Sequence[TraceEvent], walk: _Sequences, spans: Sequence[tuple[float, float]],
    starts: Sequence[float],
) -> Iterator[Slice]:
    """The part that a stretch of time belongs to. Outside of operators the thread may be waiting for messages."""
    if end <= begin:
        return
    part = _part(stack, walk)
    if stack and stack[-1].name.startswith("aten::"):
        yield begin, end, part
        return
    message = _message(stack, part)
    i = max(0, bisect_left(starts, begin) - 1)
    while i < len(spans) and spans[i][0] < end:
        low, high = max(begin, spans[i][0]), min(end, spans[i][1])
        if low < high:
            if begin < low:
                yield begin, low, part
            yield low, high, message
            begin = high
        i += 1
    if begin < end:
        yield begin, end, part


def _part(stack: Sequence[TraceEvent], walk: _Sequences) -> TimeOf:
    unit = next((found for event in reversed(stack) if (found := UNIT.fullmatch(event.name))), None)
    if unit is not None:
        return TimeOf("unit", unit.group(2) or "")
    if any(event.name.startswith("Optimizer.") for event in stack):
        return TimeOf("update")
    if (inner := _backward_of(stack)) is not None and not _module(stack[stack.index(inner) :]):  # else it is computed again
        # What has hooks (the end of a unit of FSDP2) has its number on the function within alone.
        number = next((event.args[SEQUENCE] for event in stack[stack.index(inner) :] if SEQUENCE in event.args), None)
        if number is not None:
            walk.backward = walk.owners.get(int(number), walk.backward)
        if BROUGHT in inner.name:
            return TimeOf("activations", "" if walk.backward == LOSS else walk.backward)
        return TimeOf("loss" if walk.backward == LOSS else "backward", "" if walk.backward == LOSS else walk.backward)
    path = _module(stack)
    if any(event.name == BROUGHT for event in stack):
        return TimeOf("activations", "" if path == LOSS else path)
    if path in OF_PARTS:
        return TimeOf(OF_PARTS[path])
    if path or any(event.name.startswith("aten::") for event in stack):
        return TimeOf("forward", path)
    return TimeOf("host")


def _message(stack: Sequence[TraceEvent], part: TimeOf) -> TimeOf:
    """The message that a thread waits for."""
    unit = next((found for event in reversed(stack) if (found := UNIT.fullmatch(event.name))), None)
    if unit is not None:
        return TimeOf("gradients" if "reduce" in unit.group(1) or "rs_wait" in unit.group(1) else "weights", unit.group(2) or "")
    if part.message:
        return part
    if part.kind == "host":
        return TimeOf("stage")
    return TimeOf("activations", part.owner) if part.kind in ("forward", "backward", "loss") else TimeOf("weights")


def _backward_of(stack: Sequence[TraceEvent]) -> TraceEvent | None:
    return next((event for event in stack if event.name.startswith(AGAIN)), None)


def _module(stack: Sequence[TraceEvent]) -> str:
    return next((
        event.name.removeprefix(PREFIX) for event in reversed(stack)
        if event.name.startswith(PREFIX) and event.name != f"{PREFIX}{STEP}"
    ), "")  # fmt: skip


def _within(slices: Sequence[Slice], begin: float, end: float) -> dict[TimeOf, float]:
    """Seconds by part of a step; what no slice covers is the host's."""
    found: dict[TimeOf, float] = {}
    covered = 0.0
    for low, high, part in slices:
        if (took := min(high, end) - max(low, begin)) > 0:
            found[part] = found.get(part, 0.0) + took / 1e6
            covered += took
    if (rest := (end - begin - covered) / 1e6) > 1e-9:
        found[TimeOf("host")] = found.get(TimeOf("host"), 0.0) + rest
    return found
