"""Starts the programs of this folder, and others, under mpirun, for the tests."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mpi_words import spoken
from starting import MPIRUN, environment, on_ranks

HERE = Path(__file__).parent
JOB_VARIABLE = "TASKFLOW_TEST_JOB"
LEAVE_SECONDS = 20.0
"""How long after mpirun's end a process of the job may go on: one that ends at all does, however busy the machine."""
LIMIT_SECONDS = 150.0
"""Of a job, so that one that hangs ends; one of 16 ranks begins only after a quarter of a minute on a busy machine."""
SHOWN = 3000  # characters of what a job that failed said last


def _maker() -> str:
    """Whose mpirun it is: "Open MPI", or "MPICH" for all that start as MPICH's does (Intel's too); empty without one."""
    if MPIRUN is None:
        return ""
    said = subprocess.run([MPIRUN, "--version"], capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False).stdout
    return "Open MPI" if "Open MPI" in said else "MPICH"


MAKER = _maker()


@dataclass(frozen=True)
class Ended:
    """How a job ended; ``text`` is standard output and error together, without what Open MPI's mpirun adds (`spoken`), or output
    alone where they were kept apart, and ``errors`` the other."""

    code: int
    text: str
    seconds: float  # from its start, or from what `mpirun` was told to wait for
    errors: str = ""


def mpirun(
    ranks: int,
    program: str,
    *arguments: str,
    extra: Mapping[str, str] | None = None,
    since: str | None = None,
    interrupt_at: str | None = None,
    limit: float = LIMIT_SECONDS,
    apart: bool = False,
) -> Ended:
    """Run ``program``, a file of this folder or a whole path, on ``ranks`` ranks. ``since``: ``seconds`` count from when this was
    printed, since ranks take as long to start as the machine is busy. ``interrupt_at``: as that, and then send SIGINT to mpirun's
    group, as a terminal does at Ctrl-C. ``apart``: keep standard output and error apart, which goes with neither.
    A job that lasts longer than ``limit`` seconds is killed and fails the test, and so does one that leaves a process behind."""
    assert MPIRUN is not None
    job_name = uuid.uuid4().hex
    command = [*on_ranks(ranks), sys.executable, str(HERE / program), *arguments]
    job = subprocess.Popen(
        command, env=environment({**(extra or {}), JOB_VARIABLE: job_name}),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE if apart else subprocess.STDOUT, text=True,
        start_new_session=True,
    )
    name, wanted, ended_by_us = " ".join(command[3:]), interrupt_at or since, threading.Event()
    mark = f"{JOB_VARIABLE}={job_name}"

    def end() -> None:
        ended_by_us.set()
        os.killpg(job.pid, signal.SIGKILL)
        while left := processes_with(mark):  # ranks that mpirun was just starting would hold our pipes for minutes
            kill(left)
            time.sleep(0.02)

    guard = threading.Timer(limit, end)  # a thread, so that a line that never comes is not awaited for ever
    guard.daemon = True
    guard.start()
    assert job.stdout is not None
    text, began = "", time.monotonic()
    while wanted is not None and wanted not in text and (line := job.stdout.readline()):
        text += line
        began = time.monotonic()
    if interrupt_at is not None:
        os.killpg(job.pid, signal.SIGINT)
    rest, errors = job.communicate()
    guard.cancel()
    text += rest
    if ended_by_us.is_set():
        pytest.fail(f"{name}: still running after {limit:g} s; it said:\n{text}{errors or ''}")
    assert wanted is None or wanted in text, f"{name}: it never said {wanted!r}, but:\n{text}"
    ended = Ended(job.returncode, spoken(text), time.monotonic() - began, spoken(errors or ""))
    left = processes_left(mark)
    assert not left, f"{name}: left behind after {LEAVE_SECONDS} s: {left}\n{text}"
    return ended


def output(ranks: int, program: str, *arguments: str, limit: float, extra: Mapping[str, str] | None = None) -> str:
    """What a program that must succeed prints to standard output; as `mpirun`."""
    ended = mpirun(ranks, program, *arguments, extra=extra, limit=limit, apart=True)
    assert ended.code == 0, f"{program} ended with code {ended.code}; it said last:\n{ended.errors[-SHOWN:]}"
    return ended.text


def rows(
    ranks: int, program: str, *arguments: str, limit: float, extra: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """`output` of which every line is a JSON object."""
    return [json.loads(line) for line in output(ranks, program, *arguments, limit=limit, extra=extra).splitlines()]


def processes_left(mark: str) -> dict[int, str]:
    """Processes that still have ``mark`` in their environment after a moment, and their commands; they are killed."""
    until = time.monotonic() + LEAVE_SECONDS
    while (left := processes_with(mark)) and time.monotonic() < until:
        time.sleep(0.02)
    kill(left)
    return left


def kill(processes: Iterable[int]) -> None:
    """End them, as far as they still are."""
    for process in processes:
        with contextlib.suppress(OSError):
            os.kill(process, signal.SIGKILL)


def processes_with(mark: str) -> dict[int, str]:
    """Processes that have ``mark`` in their environment, and their commands."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (folder / "environ").read_bytes():
                found[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ")
    return found
