"""Processes of benchmarks/gpu.py: each with a time limit, and with all that it said kept if it does not end well."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KEPT = 20_000
"""Characters of what a process said that are kept if it fails: more than a traceback has."""
LAST_WORDS = 5.0  # seconds that it has to say where it was


class Failed(RuntimeError):
    """A measurement that did not end well, and why. ``out``: its stdout; ``log``: its stderr with tracebacks, else stdout."""

    def __init__(self, message: str, out: str = "", log: str = "") -> None:
        super().__init__(message)
        self.out, self.log = out, (log.strip() or out.strip())[-KEPT:]


def run(command: list[str], seconds: float, fine: tuple[int, ...] = (0,), **environment: str) -> str:
    """What a command prints. Failed unless its exit code is fine, or if it takes longer: then all that it has started is ended,
    after each Python among it has said where it was."""
    where = {
        **os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}", "PYTHONFAULTHANDLER": "1",
        **environment,
    }
    with subprocess.Popen(
        command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=where, start_new_session=True
    ) as job:
        try:
            out, err = job.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise Failed(f"took more than {seconds:.0f} s", *_ended(job)) from None
    if job.returncode not in fine:
        last = (err.strip() or out.strip()).splitlines()[-1:] or ["no message"]
        raise Failed(f"exit code {job.returncode}: {last[0][-400:]}", out, err)
    return out


def _ended(job: subprocess.Popen[str]) -> tuple[str, str]:
    """End a job and all of its group; what they said."""
    for ending, seconds in ((signal.SIGABRT, LAST_WORDS), (signal.SIGKILL, None)):
        with suppress(ProcessLookupError):  # the first has ended all
            os.killpg(job.pid, ending)
        try:
            return job.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            continue
    raise AssertionError("communicate without a limit has returned")
