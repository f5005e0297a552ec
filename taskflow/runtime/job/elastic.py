"""Elastic jobs: a job that fails is started again on what is left, by the launcher that is there.

The loop runs outside of the job. It starts a launcher (mpirun, srun), passes on what the job says, waits until all of its
processes here have ended, and starts the same command again. The program goes on from its newest checkpoint by itself.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from taskflow.runtime.job import segments
from taskflow.runtime.job.launch import INTERRUPTED, LaunchError
from taskflow.runtime.job.polling import watchdog_limit
from taskflow.runtime.job.process_end import stat_fields

LAUNCHER = "mpirun -n {ranks}"
ATTEMPT_VARIABLE, _JOB_VARIABLE = "TASKFLOW_START", "TASKFLOW_ELASTIC_JOB"
"""The number of a job's start, from 0, in the environment of its processes; and a name that no other start has."""
_MISTAKE = 2  # exit code: the user must correct something, and no restart does
_ENDS_SECONDS = 15.0
"""How long processes of a job that has ended may take to end: a watcher waits for its ranks, and these for each other."""
_HOSTS_SECONDS, _LOOK_SECONDS = 600.0, 2.0
"""How long too few nodes are waited for, and how often they are looked for."""
_FAILED = re.compile(r"taskflow: (?:rank \d+ of \d+|node .+|the node of rank 0.*|mpirun \(pid \d+\)):? ")
_DEAD = (
    re.compile(r"taskflow: rank (\d+) of \d+: (?:killed by|told to end|ended .+ in C|ended, |ended without)"),
    re.compile(r"taskflow: rank \d+ of \d+: watchdog: .* from rank (\d+)"),
    re.compile(r"taskflow: node \S+ \(ranks? ([\d, ]+)\)"),
)


@dataclass(frozen=True, slots=True)
class RankRange:
    """Numbers of ranks, ``least`` to ``most``, that a job may have. Raises ValueError unless 1 <= least <= most."""

    least: int
    most: int

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise ValueError(f"ranks: must be MIN:MAX with 1 <= MIN <= MAX, got {self.least}:{self.most}")


@dataclass(frozen=True, slots=True)
class _Ended:
    """How a start ended: the launcher's exit status, and what taskflow said about failures."""

    status: int
    causes: tuple[str, ...]

    @property
    def good(self) -> bool:
        """Open MPI's mpirun may return 0 after a failure."""
        return self.status == 0 and not self.causes

    @property
    def final(self) -> bool:
        """True if another start would end as this one did."""
        return self.good or (self.status in (_MISTAKE, INTERRUPTED) and not self.causes)


def run_elastic(
    command: Sequence[str], ranks: RankRange | tuple[int, int], *, max_restarts: int = 3, launcher: str = LAUNCHER,
    hosts: Callable[[], Mapping[str, int]] | None = None, watchdog_seconds: float | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> int:
    """Run ``command`` (words) on ``ranks`` (fewest, most) until it ends well, and return its exit status. Each time it fails, at
    most ``max_restarts`` times, it is started again on the ranks that are left. It must go on from its last checkpoint by
    itself: ``taskflow train`` with ``--resume auto`` does.

    - ``launcher``: words before the command, in which {ranks} and {hosts} (``a:4,b:4``) are replaced.
    - ``hosts`` returns the ranks that each node takes. It is asked before every start, so that the job shrinks and grows with
      them. Without it, each rank that has died (not one that raised an exception) is one less, down to the fewest.
    - ``watchdog_seconds`` is as `connect` has it. A job whose ranks are all here is ended when no process of it has done
      anything for twice as long, or one of them has been stopped for that time. Ranks watch each other only while some of them
      run: if all are stopped, nobody else ends the job.
    - ``say`` gets a line about each start.

    A mistake of the user (exit status 2) and Ctrl-C (130) end it. Raises LaunchError if the launcher does not exist or too few
    nodes are there for ten minutes.
    """
    span = ranks if isinstance(ranks, RankRange) else RankRange(*ranks)
    count = span.most
    limit = 2 * watchdog_limit(watchdog_seconds) if hosts is None and launcher == LAUNCHER else 0.0
    for start in range(max_restarts + 1):
        there = None if hosts is None else _enough(hosts, span.least, say)
        if there is not None:
            count = min(span.most, sum(there.values()))
        if start:
            say(f"restart {start} of {max_restarts}: on {count} of {span.most} ranks")
        ended = _run([*_words(launcher, count, there), *command], start, limit)
        if ended.final:
            break
        count = max(span.least, count - len(_dead(ended.causes)))
        if start == max_restarts:
            say(f"the job failed {start + 1} times; --max-restarts {max_restarts} is reached")
    segments.remove_unmapped(segments.left_behind())
    return ended.status or int(bool(ended.causes))


def hosts_of(script: str) -> Callable[[], dict[str, int]]:
    """Return what asks a program for the nodes that are there: it prints ``NAME:RANKS`` lines (without a number: 1), as
    Horovod's host discovery scripts do. Raises LaunchError if it fails or prints something else."""

    def ask() -> dict[str, int]:
        try:
            output = subprocess.run([script], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=True).stdout
            found = dict((line.strip() + ":1").split(":")[:2] for line in output.splitlines() if line.strip())
            return {name: int(slots) for name, slots in found.items() if int(slots) > 0}
        except (OSError, ValueError, subprocess.CalledProcessError) as error:
            raise LaunchError(f"{script}: must print a line NAME:RANKS for each node that is there: {error}") from error

    return ask


def _enough(hosts: Callable[[], Mapping[str, int]], least: int, say: Callable[[str], None]) -> Mapping[str, int]:
    until, told = time.monotonic() + _HOSTS_SECONDS, False
    while sum((there := hosts()).values()) < least:
        if time.monotonic() > until:
            raise LaunchError(f"{sum(there.values())} ranks are there, but the job needs {least} (for {_HOSTS_SECONDS:g} s by now)")
        if not told:
            say(f"{sum(there.values())} ranks are there; waiting for {least}")
        told = True
        time.sleep(_LOOK_SECONDS)
    return there


def _words(launcher: str, count: int, hosts: Mapping[str, int] | None) -> list[str]:
    names = ",".join(f"{name}:{slots}" for name, slots in (hosts or {}).items())
    try:
        words = [word.format(ranks=count, hosts=names) for word in shlex.split(launcher)]
    except (KeyError, IndexError, ValueError) as error:
        raise LaunchError(f"launcher {launcher!r}: may have {{ranks}} and {{hosts}} in it, and nothing else: {error}") from error
    beside = os.path.join(os.path.dirname(sys.executable), words[0]) if words else ""
    if not words or not (found := shutil.which(beside) or shutil.which(words[0])):
        raise LaunchError(f"launcher {launcher!r}: there is no such program; install an MPI (pip install mpi4py mpich)")
    return [found, *words[1:]]


def _run(command: list[str], start: int, limit: float) -> _Ended:
    """Start the job once, pass on what it says, and return when all of its processes on this node have ended. ``limit``: seconds
    without work after which it is ended; 0: none."""
    name, over = uuid.uuid4().hex, threading.Event()
    mark = f"{_JOB_VARIABLE}={name}".encode()
    job = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE,
        env={**os.environ, ATTEMPT_VARIABLE: str(start), _JOB_VARIABLE: name},
    )
    assert job.stderr is not None
    if limit:
        threading.Thread(target=_end_if_stuck, args=(mark, limit, over), daemon=True).start()
    try:
        with _told_to_end():
            causes = tuple(_passed_on(job.stderr))
            status = job.wait()
    except BaseException as error:
        job.send_signal(signal.SIGINT if isinstance(error, KeyboardInterrupt) else signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            job.wait(_ENDS_SECONDS)
        raise
    finally:
        over.set()
        _end(mark)
    return _Ended(status if status >= 0 else 128 - status, causes)


def _passed_on(stream: IO[bytes]) -> Iterator[str]:
    """The lines of a job's standard error that say why it failed; all of them go to ours."""
    for line in stream:
        sys.stderr.buffer.write(line)
        sys.stderr.flush()
        if _FAILED.match(text := line.decode(errors="replace")):
            yield text.strip()


@contextlib.contextmanager
def _told_to_end() -> Iterator[None]:
    """Within the block SIGTERM, as a batch system sends it, ends this process as Ctrl-C would, with status 143."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    try:
        before = signal.signal(signal.SIGTERM, leave)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _dead(causes: Sequence[str]) -> set[int]:
    """The ranks that the first message about a failure names as dead or silent; none if a program raised an exception."""
    found = next(iter(causes), "")
    return {int(rank) for form in _DEAD if (match := form.match(found)) for rank in match[1].split(",")}


def _end_if_stuck(mark: bytes, limit: float, over: threading.Event) -> None:
    """Kill the processes of a job if all of them together have computed nothing for ``limit`` seconds, or one of them has been
    stopped for that time, until it is ``over``."""
    most, since = 0, time.monotonic()
    stopped: dict[int, float] = {}  # since when
    while not over.wait(limit / 8):
        states, now = {process: _state(process) for process in _processes_with(mark)}, time.monotonic()
        stopped = {process: stopped.get(process, now) for process, (state, _) in states.items() if state == "T"}
        used = sum(ticks for _, ticks in states.values())
        if used > most:
            most, since = used, now
        long = [process for process, began in stopped.items() if now - began > limit]
        if long or now - since > limit:
            who = f"process {long[0]} of the job has been stopped" if long else "no process of the job has done anything"
            print(f"taskflow: {who} for {limit:g} s: it is ended", file=sys.stderr, flush=True)
            _kill(_processes_with(mark))
            return


def _state(process: int) -> tuple[str, int]:
    """The kernel's letter for what a process does (T: stopped), and the processor time that it has used."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = stat_fields(process)
        return fields[0], sum(map(int, fields[11:13]))
    return "", 0


def _kill(processes: Sequence[int]) -> None:
    for process in processes:
        with contextlib.suppress(OSError):
            os.kill(process, signal.SIGKILL)


def _end(mark: bytes) -> None:
    """Wait until no process of this node has ``mark`` in its environment; kill those that stay, with their segments."""
    names: set[str] = set()
    until = time.monotonic() + _ENDS_SECONDS
    while left := _processes_with(mark):
        names |= segments.mapped(left)
        if time.monotonic() > until:
            _kill(left)
        time.sleep(0.05)
    segments.remove_unmapped(names)


def _processes_with(mark: bytes) -> list[int]:
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc") if os.path.isdir("/proc/self") else ()):
        with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:
            if mark in file.read():
                found.append(int(name))
    return found
