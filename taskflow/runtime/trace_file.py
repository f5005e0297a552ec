"""Trace files: JSON, gzipped if the name says so, whole or not there; and what must hold of them."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

_FORMAT, _VERSION = "taskflow-trace", 1
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


def write_trace(content: Mapping[str, Any], path: str | Path) -> None:
    """Write a trace to ``path``, gzipped if that ends in ``.gz``. Readers see no file, the old one or the whole new one.
    OSError if it cannot be written."""
    data = json.dumps(content, separators=(",", ":"), allow_nan=False).encode()
    if Path(path).suffix == ".gz":
        data = gzip.compress(data, compresslevel=5, mtime=0)
    temporary = Path(f"{path}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, path)
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


def read_trace(path: str | Path) -> dict[str, Any]:
    """A trace that taskflow wrote. FileNotFoundError, or ValueError if it is something else."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"trace file {path} does not exist")
    data = path.read_bytes()
    try:
        content = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    except (ValueError, EOFError, OSError) as error:
        raise ValueError(f"{path}: not a trace: {error}") from error
    about = content.get("otherData") if isinstance(content, dict) else None
    if not isinstance(about, dict) or about.get("format") != _FORMAT:
        raise ValueError(f"{path}: not a trace of taskflow; write one with --trace FILE")
    if about.get("version") != _VERSION:
        raise ValueError(f"{path}: version {about.get('version')} of traces; this taskflow reads {_VERSION}")
    return content  # type: ignore[no-any-return]


def verify_events(content: Mapping[str, Any]) -> None:
    """ValueError with the first event that the Chrome trace event format (JSON object form) does not allow, or a flow or bar
    with one end only."""
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


def _problem(event: Any) -> str | None:
    """What is wrong with one event."""
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
    if not isinstance(event["name"], str) or not isinstance(event.get("cat", ""), str):
        return "must have texts as name and cat"
    if event["ph"] == "M" and _METADATA.get(event["name"]) not in event["args"]:
        return "is no metadata that viewers know"
    if event["ph"] == "f" and event["bp"] != "e":
        return "must bind to the span that encloses it (bp: e)"
    return None
