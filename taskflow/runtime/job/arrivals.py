"""Arrivals: names a rank that ends before it calls ``connect``. MPI would wait for it for ever, and no rank can look around
while MPI starts.

The first rank of each node that comes to ``connect`` starts one small process, in a session of its own. It looks up the
processes that the launcher has started on this node, and which rank each one is. The other ranks tell it when they call
``connect``. If a rank of its node has ended before that, or has not come in time, it writes one message and ends the ranks of
its node, so that mpirun ends the job. The process ends as soon as MPI has started on one of its ranks, since then all have
come. Linux only.

It sees only its own node. If all ranks of a node end before any of them calls ``connect``, nobody is left there to report it.
After the waiting time the other nodes then say which ranks do not run on them.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path

from taskflow.runtime.job.process_end import mpirun_above, stat_fields, wait_status

COMES, STARTED = b"C", b"S"
_FIRST_LOOK_SECONDS, _LONGEST_LOOK_SECONDS = 0.1, 1.0
"""How often the launcher's processes are looked up until all ranks of this node are found."""
_ABSENT_SECONDS = 5.0
"""How long after the last process that the launcher has started another one may follow."""
_TOGETHER_SECONDS = 2.0
"""How long after a rank that ends by itself the others may end too, each with its own message."""
_READ_SECONDS = 0.2
"""How long mpirun may need to pass on a message."""
_PROGRAM = "import sys; sys.path.append(sys.argv.pop()); from taskflow.runtime.job.arrivals import main; main(*sys.argv[1:])"


# ---- in a rank -------------------------------------------------------------------------------------------------------
def arrive(rank: int, size: int, here: int, variable: str, limit: float) -> socket.socket | None:
    """Tell this node's process that ``rank`` of ``size`` has come to ``connect``; the first rank starts the process. ``here``:
    ranks on this node, 0 if not known. ``variable``: the environment variable in which the launcher passes the rank. ``limit``:
    seconds that all ranks may take to come. Returns the connection to the process, over which STARTED is sent once MPI runs;
    None if such a process cannot run here."""
    if sys.platform != "linux" or not hasattr(os, "pidfd_open"):
        return None
    with contextlib.suppress(OSError, ValueError, IndexError):
        launcher = _launcher_process(variable)
        if launcher is None:
            return None
        address = f"\0taskflow-arrivals-{os.getuid()}-{launcher}-{stat_fields(launcher)[19]}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
            first = True
            try:
                listening.bind(address)
            except OSError:
                first = False
            else:
                listening.listen(4096)
                _start(listening, [rank, size, here, launcher, variable, limit])
            line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                if not first:
                    _connect(line, address)
                else:
                    line.connect(address)
                line.send(COMES + str(rank).encode(), socket.MSG_NOSIGNAL)
            except OSError:
                line.close()
                return None
            return line
    return None


def _connect(line: socket.socket, address: str) -> None:
    """Connect, also if the rank that was first has not come to ``listen`` yet."""
    until = time.monotonic() + 1.0
    while True:
        try:
            return line.connect(address)
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)


def _start(listening: socket.socket, words: list[object]) -> None:
    import subprocess

    file, root = listening.fileno(), str(Path(__file__).resolve().parents[__name__.count(".")])  # where the package lies
    started = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _PROGRAM, str(file), *map(str, words), root],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[file], start_new_session=True, cwd="/",
    )
    started.returncode = 0  # subprocess must not wait for it: it leaves this process's children by a fork of its own
    if os.waitpid(started.pid, 0)[1]:
        raise OSError("the process that watches the arrivals did not start")


def _launcher_process(variable: str) -> int | None:
    """The process that has started the ranks of this node: the first above this one that is not a rank itself."""
    mine = _environment(os.getpid()).get(variable, "0")
    process = os.getppid()
    while process > 1 and _environment(process).get(variable) == mine:
        process = int(stat_fields(process)[1])
    return process or None


def _environment(process: int) -> dict[str, str]:
    """A process's variables; none if it has ended or is somebody else's."""
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{process}/environ").read_text(errors="replace").split("\0")
        return dict(word.partition("=")[::2] for word in words)
    return {}


# ---- in the process beside the ranks ---------------------------------------------------------------------------------
class Arrivals:
    """Tracker of the ranks of this node that have come; sleeps until one more comes or ends."""

    def __init__(self, listening: int, first: int, size: int, here: int, launcher: int, variable: str, limit: float) -> None:
        """As `arrive`; ``first`` is the rank that has started this process, ``launcher`` the process that has started the ranks."""
        self._listening = socket.socket(fileno=listening)
        self._first, self._size, self._here = first, size, here
        self._launcher, self._variable, self._limit = launcher, variable, limit
        mpirun = mpirun_above(launcher, proxy=True)
        self._speech = 2 if mpirun is None else mpirun[2]  # where mpirun discards nothing
        self._began = self._found_at = time.monotonic()
        self._handles: dict[int, int] = {}  # by rank: its process as the launcher has started it
        self._processes: dict[int, int] = {}
        self._places: dict[int, int] = {}  # its number on this node, where the launcher tells it
        self._come: dict[int, int] = {}  # the process that has called connect
        self._ended: dict[int, float] = {}
        self._statuses: dict[int, int | None] = {}
        self._lines: dict[socket.socket, int] = {}
        self._said = ""

    def run(self) -> None:
        """Return once MPI has started, no rank of this node is left, or the job was ended."""
        pause, look_at = _FIRST_LOOK_SECONDS, 0.0
        while True:
            now = time.monotonic()
            if not self._all_found() and now >= look_at:
                self._look()
                pause, look_at = min(2 * pause, _LONGEST_LOOK_SECONDS), now + pause
            if (cause := self._wrong()) is not None:
                self._end(cause)
                return
            alive = {rank: handle for rank, handle in self._handles.items() if rank not in self._ended}
            if not alive and (self._handles or (self._come and not self._lines)):
                return
            files: list[socket.socket | int] = [self._listening, *self._lines, *alive.values()]
            ready = select.select(files, [], [], pause)[0]
            # The end of a process before the words that it has said: mpirun acts upon an end at once.
            if ended := [rank for rank, handle in alive.items() if handle in ready]:
                for rank in ended:
                    self._ended[rank] = time.monotonic()
                    self._statuses[rank] = wait_status(self._handles[rank], self._processes[rank])
                self._came_to_nothing()
            for file in ready:
                if file is self._listening:
                    self._lines[file.accept()[0]] = -1
                elif isinstance(file, socket.socket) and self._hear(file):
                    return

    def _all_found(self) -> bool:
        return bool(self._here) and len(self._handles) >= self._here

    def _look(self) -> None:
        """Find ranks among the processes that the launcher has started."""
        for folder in os.listdir("/proc"):
            with contextlib.suppress(OSError, ValueError, IndexError):
                process = int(folder)
                if process in self._processes.values() or int(stat_fields(process)[1]) != self._launcher:
                    continue
                environment = _environment(process)
                rank = int(environment[self._variable]) if self._variable in environment else -1
                if 0 <= rank < self._size and rank not in self._handles:
                    self._handles[rank] = os.pidfd_open(process)
                    self._processes[rank] = process
                    self._found_at = time.monotonic()
                    if (place := next((environment[name] for name in _PLACES if name in environment), None)) is not None:
                        self._places[rank] = int(place)

    def _hear(self, line: socket.socket) -> bool:
        """Something came from a rank; True if MPI has started."""
        try:
            word = line.recv(64)
        except OSError:
            word = b""
        if word[:1] == COMES:
            self._lines[line] = rank = int(word[1:])
            self._come[rank] = int.from_bytes(line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[:4], sys.byteorder)
        elif not word:
            line.close()
            del self._lines[line]
        return word == STARTED

    def _came_to_nothing(self) -> None:
        """Name a rank that has been killed before it called connect. mpirun notices that too, kills the others, often before the
        first one's PID is gone, and throws away what others write: so be quick. Where a rank that has called connect has ended by
        itself, it may be the cause."""
        signals = {rank: status & 0x7F for rank, status in self._statuses.items() if status is not None}
        by_mpirun = (signal.SIGKILL, signal.SIGTERM)
        killed = [rank for rank, number in signals.items() if number and rank not in self._come]
        if self._said or not killed or any(signals.get(rank, 0) not in by_mpirun for rank in self._ended if rank in self._come):
            return
        rank = next((rank for rank in killed if signals[rank] not in by_mpirun), killed[0])
        self._write(f"rank {rank} of {self._size}: {self._how(rank)}", self._speech)

    def _wrong(self) -> str | None:
        """Sentence to print if the job can no longer begin; None if it still can."""
        now = time.monotonic()
        for rank, ended in self._ended.items():
            if now - ended > _TOGETHER_SECONDS and len(self._ended) < len(self._handles):
                return f"rank {rank} of {self._size}: {self._how(rank)}"
        if self._here and not self._ended and now - self._found_at > _ABSENT_SECONDS and (absent := self._absent()):
            one = len(absent) == 1
            return (
                f"{_ranks(absent)} of {self._size} ended before {'it' if one else 'they'} called connect ({socket.gethostname()}). "
                f"{'It was' if one else 'They were'} gone before rank {self._first} called it, so the exit code is not known; "
                f"see what {'it has' if one else 'they have'} said"
            )
        waited = now - self._began
        if (late := sorted(set(self._handles) - set(self._come))) and waited > self._limit:
            return f"{_ranks(late)} of {self._size} {_have(late)} not called {self._advice()}. Still there: " + ", ".join(
                f"rank {rank} (pid {self._processes[rank]} on {socket.gethostname()})" for rank in late
            )
        if waited > 1.1 * self._limit + 2:  # the process of the node where one is missing can say more, and comes first
            far = sorted(set(range(self._size)) - set(self._come))
            who = f"not all of {_ranks(far)} of {self._size}, which are not on {socket.gethostname()},"
            return f"{who} have called {self._advice()}"
        return None

    def _advice(self) -> str:
        within = f"connect within {self._limit:g} s after rank {self._first} did"
        return f"{within}; TASKFLOW_START_SECONDS sets another limit (0 = none)"

    def _absent(self) -> list[int]:
        """Ranks of this node whose processes are not there; empty if all are, or nobody can know their numbers."""
        if self._here == self._size:
            return sorted(set(range(self._size)) - set(self._handles) - set(self._come))
        starts = {rank - place for rank, place in self._places.items()}
        if len(starts) != 1:  # not neighbours
            return []
        start = starts.pop()
        return sorted(set(range(start, start + self._here)) - set(self._handles) - set(self._come))

    def _how(self, rank: int) -> str:
        status = self._statuses[rank]
        what = "ended, nobody knows how,"
        if status is not None:
            number = status & 0x7F
            name = signal.Signals(number).name if number in set(signal.Signals) else "?"
            what = f"killed by signal {number} ({name})" if number else f"ended with exit code {status >> 8}"
        when = "while MPI started" if rank in self._come else "before it called connect"
        return f"{what} {when} (pid {self._processes[rank]} on {socket.gethostname()}); see what it has said"

    def _end(self, cause: str) -> None:
        """Say it, and end the ranks of this node: mpirun sees those that MPI has begun to start, and ends the job."""
        self._write(cause, 2)
        time.sleep(_READ_SECONDS)
        for rank, handle in self._handles.items():
            with contextlib.suppress(OSError):
                if rank in self._come and self._come[rank] != self._processes[rank]:  # started by a program in between
                    os.kill(self._come[rank], signal.SIGKILL)
                signal.pidfd_send_signal(handle, signal.SIGKILL)

    def _write(self, cause: str, file: int) -> None:
        if cause == self._said:  # srun, unlike mpirun, may let a job go on of which a rank was killed
            return
        self._said = cause
        with contextlib.suppress(OSError):  # nobody reads it
            os.write(file, f"taskflow: {cause}\n".encode())


_PLACES = ("MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK", "PALS_LOCAL_RANKID", "SLURM_LOCALID")


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def _have(ranks: list[int]) -> str:
    return "has" if len(ranks) == 1 else "have"


def main(listening: str, first: str, size: str, here: str, launcher: str, variable: str, limit: str) -> None:
    """Run the process that watches the ranks' arrivals."""
    if not os.fork():
        Arrivals(int(listening), int(first), int(size), int(here), int(launcher), variable, float(limit)).run()
    os._exit(0)
