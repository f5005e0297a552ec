"""Tracer: records when everything ran on every rank in a few steps, in one file that Perfetto and chrome://tracing open.

A traced step reads the clock once after each item of the schedule and keeps the times, 8 bytes an item; other steps are not
affected. After the last traced step, clocks are compared again, and rank 0 gathers everything and writes the file at once. So a
run that dies later still leaves the file, and one that dies before leaves nothing.
"""

from __future__ import annotations

import os
import platform
import socket
from array import array
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from taskflow.mapper import Mapper, Profile
from taskflow.runtime.profiler.clock_offsets import Clock, Clocks, Offset
from taskflow.runtime.profiler.events import document
from taskflow.runtime.profiler.recording import HEADER, KINDS, Recording, Subject, write_trace
from taskflow.runtime.program import Measured, Program, WaitReceive, WaitSend
from taskflow.runtime.transport import Transport
from taskflow.tasks import Timeline, roofline, simulate
from taskflow.writing import unwritable

MOST_TASKS = 1_000_000
"""Tasks of all traced steps together, over all ranks: what keeps a trace's memory and file bounded."""


class TraceError(OSError):
    """Error, raised on all ranks, for a trace that could not be written."""


def run_observed(program: Program, step: int, tracer: Tracer | None, mapper: Mapper | None) -> None:
    """Run a step: recorded if it is to be traced, and measured if the mapper wants to know."""
    told = mapper if mapper is not None and mapper.wants_profiling else None
    if tracer is not None and tracer.wants(step, program):
        tracer.run(program, step)
        measured = tracer.measured() if told is not None else []
    elif told is not None:
        measured = program.run_measured()
    else:
        program.run()
    if told is not None:
        told.report_profiling(profile_of(program, step, measured))


def profile_of(program: Program, step: int, measured: Sequence[Measured]) -> Profile:
    """Return what this rank measured of a step, as `Mapper.report_profiling` receives it."""
    return Profile(program.plan.rank, step, tuple(one.describe() for one in measured))


class Tracer:
    """Recorder of the steps whose numbers are in ``steps`` (counted from 0). It writes them to ``path``, gzipped if that ends
    in ``.gz``; with None, they are only kept as `content`. Made by `Executor.trace`; every rank makes the same one.

    Raises, on every rank, ValueError for no steps, and TraceError if rank 0 cannot write there.
    """

    def __init__(
        self, transport: Transport, path: str | Path | None, steps: range, subject: Subject, clock: Clock = perf_counter
    ) -> None:
        if not len(steps) or steps.start < 0 or steps.step != 1:
            raise ValueError(f"trace {path}: steps must be a range of at least one step from 0, got {steps}")
        self.path, self.steps = None if path is None else Path(path), steps
        self.written = False
        self.content: dict[str, Any] | None = None
        """What was written, on rank 0."""
        self._transport, self._subject = transport, subject
        self._clocks = Clocks(transport, clock)
        self._times: list[Any] = []
        self._last: Any = ()
        self._traced: list[int] = []
        self._first: Offset | None = None
        self._program: Program | None = None
        self._most = len(steps)
        self._check_folder()

    def wants(self, step: int, program: Program) -> bool:
        """True if this step is to be recorded. Of several programs, the first one that asks is recorded."""
        return step in self.steps and not self.written and self._program in (None, program)

    def run(self, program: Program, step: int) -> None:
        """Run one step of the program and record it; write the file after the last one. Every rank calls it for the same steps.
        Raises what the step raises, and TraceError on every rank if the file cannot be written."""
        if self._first is None:
            self._program = program
            self._first = self._clocks.measure()
            self._transport.barrier()  # or the first ranks whose clocks are known would wait for the last ones in this step
            self._most = max(1, MOST_TASKS // max(1, len(program.graph)))
        times = array("d")
        program.run_timed(times, self._clocks.clock)
        self._times.append(times)
        self._traced.append(step)
        self._last = times
        if step == self.steps[-1] or len(self._traced) == self._most:
            self._write()

    def measured(self) -> list[Measured]:
        """Return when the items of the last recorded step ran."""
        assert self._program is not None
        return [Measured(item, *span) for item, span in zip(self._program.plan.items, zip(self._last, self._last[1:]))]

    def close(self) -> None:
        """Write what has been recorded if the run ended before the last step to be traced; the file then says so. Every rank
        calls it. Nothing is written if no step was traced."""
        if not self.written and self._traced:
            self._write()

    def _check_folder(self) -> None:
        problem = unwritable(self.path) if self._transport.rank == 0 and self.path is not None else None
        if (problem := self._transport.broadcast(problem)) is not None:
            raise TraceError(f"cannot write trace {self.path}: {problem}")

    def _write(self) -> None:
        assert self._program is not None and self._first is not None
        self.written = True
        recordings = self._transport.gather(self._recording(self._program, self._clocks.measure()))
        problem = None
        if recordings is not None:
            self.content = document(
                self._program.graph, recordings, self._subject, self._predicted(self._program), self._facts(recordings)
            )
            try:
                if self.path is not None:
                    write_trace(self.content, self.path)
            except OSError as error:
                problem = f"cannot write trace {self.path}: {error.strerror or error}"
        self._times.clear()
        if (problem := self._transport.broadcast(problem)) is not None:
            raise TraceError(problem)

    def _recording(self, program: Program, last: Offset) -> Recording:
        assert self._first is not None
        items = program.plan.items
        tasks = [item.copy.number if isinstance(item, (WaitReceive, WaitSend)) else item.task.number for item in items]
        needed = [
            item.needed_by.number if isinstance(item, (WaitReceive, WaitSend)) and item.needed_by is not None else -1
            for item in items
        ]
        return Recording(
            self._transport.rank, socket.gethostname(), os.getpid(), bytes(KINDS.index(type(item)) for item in items),
            np.array(tasks, np.int32), np.array(needed, np.int32), tuple(self._traced),
            tuple(np.array(times) for times in self._times), (self._first, last),
        )

    def _predicted(self, program: Program) -> Timeline:
        subject = self._subject
        return simulate(program.graph, subject.machine, subject.cost or roofline(subject.machine), subject.priority)

    def _facts(self, recordings: list[Recording]) -> dict[str, Any]:
        asked, traced = list(self.steps), recordings[0].steps
        return {
            **HEADER, "python": platform.python_version(),
            "numpy": np.__version__, "system": platform.platform(),
            "machine": self._subject.machine.name, "ranks": self._transport.size,
            "processors": self._subject.placement.processors,
            "steps_asked_for": [step + 1 for step in asked], "steps": [step + 1 for step in traced],
            "complete": list(traced) == asked,
            "clocks": [
                {
                    "rank": r.rank, "ahead_seconds": r.offsets[0].seconds, "error_seconds": max(o.error for o in r.offsets),
                    "drift_seconds": r.offsets[1].seconds - r.offsets[0].seconds,
                } for r in recordings
            ],
            **(self._subject.about or {}),
        }  # fmt: skip
