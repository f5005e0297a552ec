"""Trace checks: rules that a trace must meet so that viewers show all of it: the format's, and those of Perfetto's importer.

Perfetto (its JSON importer and slice tracker, releases of 2019 to 2026) drops some events and counts them among its errors.
These are a span that overlaps another one of its track without lying within it, and an arrow whose id is neither a number nor
hexadecimal text. It finds threads' names by ``tid`` alone. It converts microseconds to whole nanoseconds by rounding, or until
2024 by truncating.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

# Phases that are used: complete, begin and end of a bar that may overlap others, flow start and finish, metadata.
_NEEDED: Mapping[str, tuple[str, ...]] = {
    "X": ("name", "cat", "ts", "dur", "pid", "tid", "args"),
    "b": ("name", "cat", "id", "ts", "pid", "tid"),
    "e": ("name", "cat", "id", "ts", "pid", "tid"),
    "s": ("name", "cat", "id", "ts", "pid", "tid"),
    "f": ("name", "cat", "id", "ts", "pid", "tid", "bp"),
    "M": ("name", "pid", "tid", "args"),
}
_METADATA = {
    "process_name": "name", "process_labels": "labels", "process_sort_index": "sort_index", "thread_name": "name",
    "thread_sort_index": "sort_index",
}


def verify_events(content: Mapping[str, Any]) -> None:
    """Raise ValueError with the first event that breaks the rules. That is one that the Chrome trace event format (JSON object
    form) does not allow, a flow or bar with one end only, a track whose spans overlap, or one number for tracks of two
    processes."""
    if not isinstance(content.get("traceEvents"), list) or content.get("displayTimeUnit") not in ("ms", "ns"):
        raise ValueError("trace: needs a list traceEvents, and displayTimeUnit ms or ns")
    ends: dict[tuple[str, str], list[str]] = {}
    for number, event in enumerate(content["traceEvents"]):
        if problem := _problem(event):
            raise ValueError(f"trace: event {number} {problem}: {event}")
        if event["ph"] in "besf":
            family = "bar" if event["ph"] in "be" else "flow"
            ends.setdefault((family, str(event["id"])), []).append(event["ph"])
    for (family, identity), phases in ends.items():
        if sorted(phases) != (["b", "e"] if family == "bar" else ["f", "s"]):
            raise ValueError(f"trace: {family} {identity} must have a start and an end, got {phases}")
    _verify_tracks(content["traceEvents"])


def _verify_tracks(events: list[Any]) -> None:
    processes: dict[int, int] = {}
    spans: dict[int, list[Any]] = {}
    for event in events:
        pid, tid = event["pid"], event["tid"]
        if tid and processes.setdefault(tid, pid) != pid:
            raise ValueError(f"trace: thread {tid} must belong to one process, got {processes[tid]} and {pid}")
        if event["ph"] == "X":
            spans.setdefault(event["tid"], []).append(event)
    for nanoseconds in (_rounded, _cut_off):
        for track in spans.values():
            _verify_nesting(track, nanoseconds)


def _verify_nesting(track: list[Any], nanoseconds: Callable[[float], int]) -> None:
    """Any two spans of one track lie one within the other, or do not overlap."""
    placed = [(nanoseconds(event["ts"]), nanoseconds(event["dur"]), event) for event in track]
    around: list[tuple[int, str]] = []  # (end, name) of the spans that the next one begins in
    for begin, length, event in sorted(placed, key=lambda one: one[0]):  # of those that begin together the first in the file
        while around and around[-1][0] <= begin:
            around.pop()
        if around and begin + length > around[-1][0]:
            raise ValueError(f"trace: span {event['name']} of thread {event['tid']} overlaps {around[-1][1]}: {event}")
        around.append((begin + length, event["name"]))


def _rounded(microseconds: float) -> int:
    return round(microseconds * 1000.0)


def _cut_off(microseconds: float) -> int:
    return int(microseconds * 1000.0)


def _problem(event: Any) -> str | None:
    """The error in one event, in words."""
    if not isinstance(event, dict) or event.get("ph") not in _NEEDED:
        return f"must be an object whose ph is one of {', '.join(_NEEDED)}"
    if missing := [key for key in _NEEDED[event["ph"]] if key not in event]:
        return f"lacks {', '.join(missing)}"
    if not all(isinstance(event[key], int) and not isinstance(event[key], bool) for key in ("pid", "tid")):
        return "must have whole numbers as pid and tid"
    if any(isinstance(event.get(key), bool) or not isinstance(event.get(key, 0), (int, float)) for key in ("ts", "dur")):
        return "must have numbers as ts and dur"
    if event.get("dur", 0) < 0:
        return "ends before it begins"
    if event.get("ts", 0) < 0:
        return "begins before the trace"
    if event["pid"] < 1:
        return "must have a process number from 1 on"
    if event["ph"] in "sf" and not re.fullmatch(r"0x[0-9a-f]{1,16}", str(event["id"])):
        return "must have a hexadecimal number as id"
    if not isinstance(event["name"], str) or not isinstance(event.get("cat", ""), str):
        return "must have texts as name and cat"
    if event["ph"] == "M" and _METADATA.get(event["name"]) not in event["args"]:
        return "is no metadata that viewers know"
    if event["ph"] == "f" and event["bp"] != "e":
        return "must bind to the span that encloses it (bp: e)"
    return None
