"""Recordings: what each rank recorded, and the facts about its run; and the files of traces."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, nextafter
from pathlib import Path
from typing import Any

from taskflow import __version__
from taskflow.machine import Machine
from taskflow.reading import parse_json
from taskflow.runtime.profiler.clock_offsets import Offset
from taskflow.runtime.program import Item, Placement, Receive, RunTask, Send, StartCollective, WaitReceive, WaitSend
from taskflow.tasks import Cost, Priority
from taskflow.writing import json_text, replacing

_FORMAT, _VERSION = "taskflow-trace", 1
HEADER: Mapping[str, Any] = {"format": _FORMAT, "version": _VERSION, "taskflow": __version__}
"""What a trace's ``otherData`` begins with."""


def write_trace(content: Mapping[str, Any], path: str | Path) -> None:
    """Write a trace to ``path``, gzipped if that ends in ``.gz``. Readers see no file, the old one or the complete new one.
    Raises OSError if it cannot be written."""
    data = json_text(content, packed=True).encode()
    if Path(path).suffix == ".gz":
        data = gzip.compress(data, compresslevel=5, mtime=0)
    with replacing(path) as file:
        file.write_bytes(data)


def read_trace(path: str | Path) -> dict[str, Any]:
    """Return a trace that taskflow wrote. Raises FileNotFoundError, or ValueError if it is something else."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"trace file {path} does not exist")
    data = path.read_bytes()
    try:
        text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    except (EOFError, OSError, zlib.error) as error:
        raise ValueError(f"{path}: not a trace: {error}") from error
    content = parse_json(text, str(path))
    about = content.get("otherData") if isinstance(content, dict) else None
    if not isinstance(about, dict) or about.get("format") != _FORMAT:
        raise ValueError(f"{path}: not a trace of taskflow; write one with --trace FILE")
    if about.get("version") != _VERSION:
        raise ValueError(f"{path}: version {about.get('version')} of traces; this taskflow reads {_VERSION}")
    return content  # type: ignore[no-any-return]


EACH = 100_000
"""Numbers of tracks that a process of a trace has for itself."""
KINDS: tuple[type[Item], ...] = (RunTask, Send, Receive, WaitReceive, WaitSend, StartCollective)


@dataclass(frozen=True, slots=True)
class Recording:
    """Recording of one rank. ``kinds`` (indices into KINDS), ``tasks`` and ``needed_by`` (of a wait, the task that needs it;
    -1: none) have one entry for each item. ``times`` has one array for each step, with one entry more: this rank's clock before
    the first item and after each. ``where``: the node's name. ``process``: its PID there."""

    rank: int
    where: str
    process: int
    kinds: bytes
    tasks: Any
    needed_by: Any
    steps: tuple[int, ...]
    times: tuple[Any, ...]
    offsets: tuple[Offset, Offset]


@dataclass(frozen=True, slots=True)
class Subject:
    """The run that a trace is of: where its tasks ran, and what was predicted. ``cost``: seconds of a task, for the prediction
    (default: the machine's roofline). ``about``: further facts for the file (any JSON value)."""

    machine: Machine
    placement: Placement
    cost: Cost | None = None
    priority: Priority | None = None
    about: Mapping[str, Any] | None = None


def thread(process: int, track: int) -> int:
    """Return the number of a process's track in the file. No two processes share one, since Perfetto looks threads' names up by
    this number alone."""
    return process * EACH + track


def microseconds(nanoseconds: int) -> float:
    """Return a time as the file has it. Some readers round after multiplying by 1000, others truncate. Both get the same
    nanosecond, so that consecutive spans neither overlap nor leave a gap."""
    value = nanoseconds / 1000
    return value if int(value * 1000.0) == nanoseconds else nextafter(value, inf)
