"""Watcher: names a rank that is killed. The rank cannot report it itself, and mpirun kills the others at once and shows only a
PID.

The lowest rank of each node starts one small process beside the job, in a session of its own, so that signals to the ranks do
not reach it. Each rank holds a connection to it (`lifeline`), and it sleeps until one of them sends something or ends. A rank
that leaves or fails says so first. One that ends without a word is named, once, and if mpirun does not end the job, the
watchers do. They end with the job. Linux only.

The watcher must know which rank ended first, and the order in which PIDs vanish does not tell. mpirun notices a death when the
rank's files close, which happens before its PID vanishes. On a busy machine the ranks that mpirun then kills are often gone
sooner (3 of 6 jobs). But a dying process closes its files from the highest number down. So a connection with a higher number
than mpirun's closes before mpirun can know.

MPICH's mpirun and its relatives learn of a death from the end of the rank's PMI connection, and then discard further output. So
the watcher holds that connection too, and closes it after writing its message. Open MPI's mpirun leaves enough time.

On several nodes the watchers tell rank 0's over TCP as soon as a connection closes, and it takes the first report as the cause.
Order matters, since an MPI that loses a peer ends its own rank, which looks like a failure too. Rank 0's watcher also names a
node that no longer answers.

This file is run as a program (``python -I -S watcher.py``), so it imports little, and nothing of
taskflow but its neighbours ``segments`` and ``process_end``.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING or __name__ != "__main__":
    from taskflow.runtime.job import segments
    from taskflow.runtime.job.process_end import cause_of, is_ending, mpirun_above, out_of_memory_kills, wait_status
else:  # as a program it takes its neighbours without the package, whose import takes longer than all else
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    import segments
    from process_end import cause_of, is_ending, mpirun_above, out_of_memory_kills, wait_status

LEFT, FAILS, HOLD = b"L", b"F", b"H"
_MEET_SECONDS = 2.0
"""How long the watcher's start may wait for the connections of the other ranks."""
_END_SECONDS = 5.0
"""How long after its connection a process may take to end (a GPU's driver takes a second)."""
_READ_SECONDS = 0.2
"""How long mpirun may need to pass on what the watcher has written."""
_MPIRUN_SECONDS = 3.0
"""How long mpirun has to end the job after a death."""
_NODE_VARIABLE, _NODE_SECONDS = "TASKFLOW_NODE_SECONDS", 60.0
"""How long a node may not answer."""


class Watcher:
    """Process that knows the ranks of its node by their PIDs, and sleeps until one of them sends something or ends."""

    def __init__(
        self, listening: int, processes: dict[int, int], size: int, nodes: int = 1, meeting: int | None = None,
        invitation: bytes = b"",
    ) -> None:
        """``processes``: PIDs by rank. ``listening``: a socket of this process, to which they connect. ``size``: ranks of the job.
        ``meeting``: on rank 0's node, if there are several, the one to which the other nodes' watchers connect; these find it
        by the ``invitation``."""
        self._processes, self._size, self._nodes = processes, size, nodes
        self._present = set(processes)
        self._listening = socket.socket(fileno=listening)
        self._meeting = None if meeting is None else socket.socket(fileno=meeting)
        self._invitation = invitation
        self._decides = nodes == 1 or meeting is not None
        self._order: list[int] = []  # ranks whose connections have ended, and
        self._causes: dict[int, str] = {}  # what has come of it
        self._asked = False
        self._lines: dict[int, socket.socket] = {}
        self._handles: dict[int, int] = {}
        self._held: dict[int, list[int]] = {}
        self._sources: dict[int, int] = {}
        self._others: dict[int, Other] = {}
        self._kills = out_of_memory_kills()
        self._events = select.epoll()
        self._events.register(listening, select.EPOLLIN)
        for rank, process in processes.items():
            with contextlib.suppress(ProcessLookupError):  # its connection, if there was time for one, tells
                self._handles[rank] = os.pidfd_open(process)
                self._listen_to(rank, self._handles[rank])
        self._launcher = mpirun_above(next(iter(processes.values()), 0))
        if self._launcher is not None:
            self._events.register(self._launcher[1], select.EPOLLIN)

    def meet(self) -> None:
        """Wait, for a moment at most, until all ranks have connected, which they do at the same time."""
        until = time.monotonic() + _MEET_SECONDS
        while len(self._lines) < len(self._processes) and (rest := until - time.monotonic()) > 0:
            if select.select([self._listening], [], [], rest)[0]:
                self._accept()

    def run(self) -> bool:
        """Return once a rank was named and the job has ended (True), a rank is about to end the job, or all have left."""
        if self._meeting is not None:
            self._events.register(self._meeting, select.EPOLLIN)
        elif not self._decides:
            other = self._call()
            if other is None:
                return False  # nobody can know whose death was first
            self._add(other)
        while self._present or self._asked or (self._decides and any(other.name for other in self._others.values())):
            for file, _ in self._events.poll():  # in the order in which they became ready
                if self._meeting is not None and file == self._meeting.fileno():
                    self._add(Other(self._meeting.accept()[0]))
                elif file in self._others:
                    if self._hear(self._others[file]):
                        return True
                elif self._launcher is not None and file == self._launcher[1]:
                    if self._has_lost_launcher():
                        return True
                elif (rank := self._sources.get(file)) is None:
                    self._accept()
                elif rank in self._present and self._is_over(rank, file):
                    return False
            if self._order and (cause := self._causes.get(self._order[0])) is not None:
                if self._launcher_was_first():
                    return True
                _write(f"taskflow: rank {self._order[0]} of {self._size}: {cause}\n")
                time.sleep(_READ_SECONDS)
                # After _exit(0) mpirun may return 0: so it learns of a rank that was killed before it learns of that one.
                self._end_all(0.0 if "_exit(0)" in cause else _MPIRUN_SECONDS)
                return True
        self._tell("over")
        return False

    def await_ranks(self) -> None:
        """Wait, for some seconds at most, until the processes of this node's ranks have ended."""
        until = time.monotonic() + _END_SECONDS
        for handle in self._handles.values():
            select.select([handle], [], [], max(0.0, until - time.monotonic()))

    def _has_lost_launcher(self) -> bool:
        """mpirun has ended: say it, unless a rank has begun to end before (whose cause then tells which was first)."""
        assert self._launcher is not None
        self._events.unregister(self._launcher[1])
        if self._order or not self._present:
            return False
        self._say_launcher()
        return True

    def _launcher_was_first(self) -> bool:
        """A rank has ended. True, and said, if mpirun is ending too. It cannot know of a rank's end while its connections are held,
        so its own end came first, and its proxies have killed the ranks. Its files close before its PID vanishes: on a busy
        machine its ranks were gone sooner in 18 of 30 jobs."""
        if self._launcher is None or not self._held or not is_ending(self._launcher[0]):
            return False
        select.select([self._launcher[1]], [], [], _END_SECONDS)
        self._say_launcher()
        return True

    def _say_launcher(self) -> None:
        """Say how mpirun has ended, on its own standard error, and end the ranks."""
        assert self._launcher is not None
        process, handle, speech = self._launcher
        with contextlib.suppress(OSError):
            cause = cause_of(wait_status(handle, process), out_of_memory_kills() - self._kills)
            os.write(speech, f"taskflow: mpirun (pid {process}): {cause}; its job ends\n".encode())
        self._end_all()

    # ---- ranks of this node ------------------------------------------------------------------------------------------
    def _listen_to(self, rank: int, file: int) -> None:
        self._sources[file] = rank
        self._events.register(file, select.EPOLLIN)

    def _accept(self) -> None:
        line, _ = self._listening.accept()
        line.setblocking(False)
        process, _, _ = struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        for rank, expected in self._processes.items():
            if process == expected:  # anybody of this machine may connect
                self._lines[rank] = line
                self._listen_to(rank, line.fileno())

    def _is_over(self, rank: int, file: int) -> bool:
        """Something came from a rank's line or process; True if that is the end of the watch."""
        line = self._lines.get(rank)
        if line is None:  # never connected, so that nobody can know how it ended
            self._tell("quiet")
            return True
        try:
            word, files, _, _ = socket.recv_fds(line, 1, 1)
        except OSError:
            word, files = b"", []
        if word == HOLD:
            self._held[rank] = files
        elif word == LEFT:
            self._release(rank)
            self._forget(rank)
        elif word == FAILS:
            self._tell("quiet")
            return True
        elif not word:
            self._dying(rank)
            if self._has_ended(rank):
                self._died(rank)
                self._forget(rank)
            else:  # it has closed its files, and lives
                self._lives(rank)
                self._release(rank)
                self._events.unregister(line)
                del self._lines[rank]
        return False

    def _forget(self, rank: int) -> None:
        self._present.discard(rank)
        for file in (self._lines[rank].fileno(), self._handles.get(rank)):
            with contextlib.suppress(OSError, TypeError):
                self._events.unregister(file)  # type: ignore[arg-type]

    def _release(self, rank: int) -> None:
        for file in self._held.pop(rank, []):
            os.close(file)

    def _has_ended(self, rank: int) -> bool:
        """True if a rank's process has ended, or does within a moment: its files close first."""
        handle = self._handles.get(rank)
        return handle is None or bool(select.select([handle], [], [], _END_SECONDS)[0])

    def _dying(self, rank: int) -> None:
        self._order.append(rank) if self._decides else self._tell(f"dying {rank}")

    def _lives(self, rank: int) -> None:
        self._order.remove(rank) if self._decides else self._tell(f"lives {rank}")

    def _died(self, rank: int) -> None:
        process = self._processes[rank]
        status = wait_status(self._handles.get(rank), process)
        where = f" on {socket.gethostname()}" if self._nodes > 1 else ""
        cause = f"{cause_of(status, out_of_memory_kills() - self._kills)} (pid {process}{where})"
        if self._decides:
            self._causes[rank] = cause
        else:
            self._tell(f"died {rank} {cause}")
            self._asked = True  # what is held is held until it has been named

    def _end_ranks(self, seconds: float) -> None:
        """Give mpirun ``seconds`` to end them; then kill them, so that it ends the job."""
        if seconds:
            for rank in list(self._held):
                self._release(rank)
        alive = {rank: self._handles[rank] for rank in self._present if rank in self._handles}
        until = time.monotonic() + seconds
        while alive and (rest := until - time.monotonic()) > 0:
            ended = select.select(list(alive.values()), [], [], rest)[0]
            alive = {rank: handle for rank, handle in alive.items() if handle not in ended}
        for handle in alive.values():
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)

    # ---- watchers of other nodes -------------------------------------------------------------------------------------
    def _call(self) -> Other | None:
        """Connect to the watcher of rank 0's node; None if none of its addresses answers."""
        port, addresses = struct.unpack("!H", self._invitation[16:18])[0], self._invitation[18:]
        for at in range(0, len(addresses), 4):
            with contextlib.suppress(OSError):
                line = socket.create_connection((socket.inet_ntoa(addresses[at : at + 4]), port), _MEET_SECONDS)
                ranks = ",".join(map(str, sorted(self._processes)))
                other = Other(line, f"the node of rank 0, as seen from {socket.gethostname()},")
                other.say(f"{self._invitation[:16].hex()} {socket.gethostname()} {ranks}")
                return other
        return None

    def _add(self, other: Other) -> None:
        self._others[other.line.fileno()] = other
        self._events.register(other.line, select.EPOLLIN)

    def _tell(self, text: str) -> None:
        """Tell all other watchers that this one knows; those that a node does not decide for itself, to rank 0's."""
        for other in self._others.values():
            other.say(text)

    def _hear(self, other: Other) -> bool:
        """Something came from another node's watcher; True if that is the end of the watch."""
        try:
            texts = other.hear()
        except ConnectionResetError:
            texts = None
        except OSError as error:
            self._lost(other, f"does not answer any more ({os.strerror(error.errno or 0)}): switched off, or its network is gone")
            self._end_all()
            return True
        if texts is None:
            if self._decides and other.name:  # without a word: mpirun will know whether more has ended than the watcher
                self._lost(other, "has lost the watcher of its ranks: switched off, or all processes killed there")
            else:
                self._drop(other)
            return not self._decides
        for text in texts:
            if self._act(other, text):
                return True
            if other.line.fileno() not in self._others:  # not one of ours, or it has said all
                return False
        return False

    def _act(self, other: Other, text: str) -> bool:
        word, _, rest = text.partition(" ")
        if not other.name:
            if word != self._invitation[:16].hex():  # anybody of the network may connect
                self._drop(other)
            name, _, ranks = rest.partition(" ")
            other.name = f"node {name} (rank{'s' * (',' in ranks)} {ranks.replace(',', ', ')})"
        elif word == "quiet":
            self._tell("quiet")
            return True
        elif word == "end":
            self._end_ranks(float(rest))
            return True
        elif word == "over":
            self._drop(other)
        elif word == "dying":
            self._order.append(int(rest))
        elif word == "lives":
            self._order.remove(int(rest))
        elif word == "died":
            rank, _, cause = rest.partition(" ")
            self._causes[int(rank)] = cause
        return False

    def _drop(self, other: Other) -> None:
        del self._others[other.line.fileno()]
        self._events.unregister(other.line)
        other.line.close()  # from here on its number is -1

    def _lost(self, other: Other, how: str) -> None:
        self._drop(other)
        _write(f"taskflow: {other.name} {how}\n")

    def _end_all(self, seconds: float = _MPIRUN_SECONDS) -> None:
        self._tell(f"end {seconds}")
        self._end_ranks(seconds)


class Other:
    """Connection to another node's watcher: texts that end with a newline."""

    def __init__(self, line: socket.socket, name: str = "") -> None:
        """``name``: of its node; empty until it has said who it is."""
        self.line, self.name = line, name
        self._rest = b""
        line.setblocking(False)
        seconds = _node_seconds()
        if seconds:
            third = max(1, round(seconds / 3))
            line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, third)
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, third)
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2)

    def say(self, text: str) -> None:
        """Send a text. Never fails and never waits, since a job sends less than a socket holds."""
        with contextlib.suppress(OSError):
            self.line.send(text.encode() + b"\n", socket.MSG_NOSIGNAL)

    def hear(self) -> list[str] | None:
        """Return the texts that have come; None if no more will. Raises OSError if the node does not answer."""
        data = self.line.recv(1 << 16)
        if not data:
            return None
        *texts, self._rest = (self._rest + data).split(b"\n")
        return [text.decode(errors="replace") for text in texts]


def _node_seconds() -> float:
    with contextlib.suppress(ValueError):
        return max(0.0, float(os.environ.get(_NODE_VARIABLE, "") or _NODE_SECONDS))
    return _NODE_SECONDS


def _write(text: str) -> None:
    with contextlib.suppress(OSError):  # nobody reads it
        os.write(2, text.encode(errors="replace"))


def main(listening: str, meeting: str = "") -> None:
    """Run the watcher. Its arguments are the numbers of its sockets; its input is what ``lifeline._start`` writes."""
    size, nodes, invitation, *ranks = sys.stdin.read().split()
    processes = {int(rank): int(process) for rank, _, process in (pair.partition(":") for pair in ranks)}
    watcher = Watcher(
        int(listening), processes, int(size), int(nodes), int(meeting) if meeting else None,
        b"" if invitation == "-" else bytes.fromhex(invitation),
    )
    watcher.meet()
    names = segments.mapped(processes.values())
    if not os.fork() and watcher.run():
        watcher.await_ranks()
        segments.remove_unmapped(names)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
