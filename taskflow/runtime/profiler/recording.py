"""What a trace is made of: what each rank recorded, and of which run it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, nextafter
from typing import Any

from taskflow.machine import Machine
from taskflow.runtime.profiler.clock_offsets import Offset
from taskflow.runtime.program import Item, Placement, Receive, RunTask, Send, StartCollective, WaitReceive, WaitSend
from taskflow.tasks import Cost, Priority

EACH = 100_000
"""Numbers of tracks that a process of a trace has for itself."""
KINDS: tuple[type[Item], ...] = (RunTask, Send, Receive, WaitReceive, WaitSend, StartCollective)


@dataclass(frozen=True, slots=True)
class Recording:
    """What one rank recorded. ``kinds`` (numbers into KINDS), ``tasks`` and ``needed_by`` (of a wait, the task that
    needs it; -1: none) have an entry an item. ``times`` has one array a step, each with one entry more: this rank's
    clock before the first item and after each. ``where``: the node's name; ``process``: its number there."""

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
    """Of which run a trace is: where its tasks ran, and what was predicted. ``cost``: seconds of a task, for
    the prediction (default: the machine's roofline); ``about``: what else the file shall say (anything that JSON can)."""

    machine: Machine
    placement: Placement
    cost: Cost | None = None
    priority: Priority | None = None
    about: Mapping[str, Any] | None = None


def thread(process: int, track: int) -> int:
    """The number of a process's track in the file. No two processes share one: Perfetto looks threads' names up by it alone."""
    return process * EACH + track


def microseconds(nanoseconds: int) -> float:
    """A time as the file has it. Some readers round what they multiply by 1000, others cut off; for both it is the same
    nanosecond, so that spans which follow each other neither overlap nor leave a gap."""
    value = nanoseconds / 1000
    return value if int(value * 1000.0) == nanoseconds else nextafter(value, inf)
