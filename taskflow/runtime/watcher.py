"""Names a rank that is killed: it cannot speak itself, and mpirun kills the others at once and shows no more than a PID.

The lowest rank starts one small process beside the job, in a session of its own, so that what ends the ranks passes it
by. Each rank holds a connection to it, and it sleeps until one of them says something or ends. A rank that leaves or
fails says so first; one that ends without a word is named, once. The watcher ends with the job. Linux only, and only
for jobs on one node: elsewhere a rank that mpirun kills looks the same as the one that was killed first.

Which one was first? A PID's end tells it badly: mpirun notices a death by the files that close, which comes before, and
on a busy machine those it kills in answer are often gone sooner (3 of 6 jobs). A process that dies closes its files from
the highest number down, so a connection with a number above those of mpirun's closes before mpirun can know.

Run as a program (``python -I -S watcher.py``) this file is that process, so it imports little and nothing of ours.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import sys
import time

LEFT, FAILS = b"L", b"F"
_RANKS = 4096
"""Connections that wait to be accepted; the kernel may allow fewer."""
_START_SECONDS = 10.0
_MEET_SECONDS = 2.0
"""How long the watcher's start may wait for the connections of the other ranks."""
_END_SECONDS = 5.0
"""How long after its connection a process may take to end (a GPU's driver takes a second)."""
_PIDFD_GET_INFO = 0xC040FF0B
"""_IOWR(0xFF, 11, 64 bytes), Linux 6.13; the exit status (last 4 of those bytes) since 6.15."""
_PIDFD_INFO_EXIT = 1 << 3


class Lifeline:
    """A rank's line to the watcher. Until ``begin`` was called, and where there is no watcher, it does nothing."""

    def __init__(self) -> None:
        self._listening: socket.socket | None = None
        self._line: socket.socket | None = None
        self._process = os.getpid()
        self.address = b""
        """Where the watcher listens if this rank starts it; empty where there can be none."""
        self.identity = b""
        """This process, and the namespaces in which its PID and the address mean something."""
        if sys.platform == "linux" and hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):
                spaces = [os.stat(f"/proc/self/ns/{kind}").st_ino for kind in ("pid", "net")]
                self._listening = socket.socket(socket.AF_UNIX)
                self._listening.bind("")  # the kernel picks a free address, which leaves no file behind
                self._listening.listen(_RANKS)  # so that the others can connect before the watcher runs
                self.address = self._listening.getsockname()
                self.identity = "{}.{}:{}".format(*spaces, self._process).encode()

    def begin(self, rank: int, address: bytes, identities: list[bytes]) -> None:
        """Every rank calls this: ``identities`` of all ranks, and the ``address`` of rank 0, which starts the watcher.
        A watcher that does not start is no error."""
        listening, self._listening = self._listening, None
        if listening is None:
            return
        spaces = {identity.partition(b":")[0] for identity in identities}
        with listening, contextlib.suppress(OSError):
            if not address or len(identities) < 2 or len(spaces) > 1:
                return
            self._line = _highest(socket.socket(socket.AF_UNIX))
            self._line.setblocking(False)
            self._line.connect(address)
            if rank == 0:
                _start(listening.fileno(), [identity.partition(b":")[2].decode() for identity in identities])

    def say(self, word: bytes) -> None:
        """LEFT: this rank's program is over. FAILS: it is about to end the job. Never fails."""
        if self._line is not None and os.getpid() == self._process:
            with contextlib.suppress(OSError):  # no watcher, or one that has ended
                self._line.send(word, socket.MSG_NOSIGNAL)


def _highest(line: socket.socket) -> socket.socket:
    """The same socket under a number above those of all files that are open."""
    import fcntl

    with line:
        above = 1 + max(int(name) for name in os.listdir("/proc/self/fd"))
        return socket.socket(fileno=fcntl.fcntl(line, fcntl.F_DUPFD_CLOEXEC, above))


def _start(listening: int, processes: list[str]) -> None:
    """Start the watcher and return when it knows the ranks. It leaves this process's children by a fork of its own."""
    import subprocess

    command = [sys.executable, "-I", "-S", os.path.abspath(__file__), str(listening), *processes]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=(listening,), start_new_session=True,
            cwd="/",
        ).wait(_START_SECONDS)


# ---- the watcher's own process ---------------------------------------------------------------------------------------
class Watcher:
    """Knows the ranks by their PIDs, and sleeps until one of them says something or ends."""

    def __init__(self, listening: int, processes: list[int]) -> None:
        """``processes``: by rank. ``listening``: a socket of this process, to which they connect."""
        self._processes = processes
        self._present = set(range(len(processes)))
        self._listening = socket.socket(fileno=listening)
        self._lines: dict[int, socket.socket] = {}
        self._handles: dict[int, int] = {}
        self._sources: dict[int, int] = {}
        self._kills = _out_of_memory_kills()
        self._events = select.epoll()
        self._events.register(listening, select.EPOLLIN)
        for rank, process in enumerate(processes):
            with contextlib.suppress(ProcessLookupError):  # its connection, if there was time for one, tells
                self._handles[rank] = os.pidfd_open(process)
                self._listen_to(rank, self._handles[rank])

    def meet(self) -> None:
        """Wait, a moment at most, until all ranks have connected: they do it at the same time."""
        until = time.monotonic() + _MEET_SECONDS
        while len(self._lines) < len(self._processes) and (rest := until - time.monotonic()) > 0:
            if select.select([self._listening], [], [], rest)[0]:
                self._accept()

    def run(self) -> None:
        """Return once a rank was named, one is about to end the job, or all have left."""
        while self._present:
            for file, _ in self._events.poll():  # in the order in which they became ready
                rank = self._sources.get(file)
                if rank is None:
                    self._accept()
                elif rank in self._present and self._is_over(rank, file):
                    return

    def _listen_to(self, rank: int, file: int) -> None:
        self._sources[file] = rank
        self._events.register(file, select.EPOLLIN)

    def _accept(self) -> None:
        line, _ = self._listening.accept()
        line.setblocking(False)
        process, _, _ = struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if process in self._processes:  # anybody of this machine may connect
            rank = self._processes.index(process)
            self._lines[rank] = line
            self._listen_to(rank, line.fileno())

    def _is_over(self, rank: int, file: int) -> bool:
        """Something came from a rank's line or process; True if that is the end of the watch."""
        line = self._lines.get(rank)
        if line is None:
            return True  # never connected, so that nobody can know how it ended
        try:
            word = line.recv(1)
        except OSError:
            word = b""
        if word == LEFT:
            self._present.discard(rank)
            self._events.unregister(line)
            with contextlib.suppress(KeyError):
                self._events.unregister(self._handles[rank])
        elif not word and self._has_ended(rank):
            self._name(rank)
            return True
        elif not word:  # it has closed its files, and lives
            self._events.unregister(line)
            del self._lines[rank]
        return word == FAILS

    def _has_ended(self, rank: int) -> bool:
        """Whether a rank's process has ended, or does within a moment: its files close first."""
        handle = self._handles.get(rank)
        return handle is None or bool(select.select([handle], [], [], _END_SECONDS)[0])

    def _name(self, rank: int) -> None:
        process = self._processes[rank]
        cause = _cause(_status(self._handles.get(rank), process), _out_of_memory_kills() - self._kills)
        text = f"taskflow: rank {rank} of {len(self._processes)}: {cause} (pid {process})\n"
        with contextlib.suppress(OSError):  # nobody reads it
            os.write(2, text.encode(errors="replace"))


def _status(handle: int | None, process: int) -> int | None:
    """The wait status of a process that has ended, which is not a child; None if the kernel does not tell."""
    with contextlib.suppress(OSError, ValueError):
        with open(f"/proc/{process}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        if fields[0] in (b"Z", b"X"):  # nobody has waited for it yet
            return int(fields[-1])
    if handle is None:
        return None
    with contextlib.suppress(OSError):
        import fcntl

        info = bytearray(_PIDFD_INFO_EXIT.to_bytes(8, sys.byteorder).ljust(64, b"\0"))
        fcntl.ioctl(handle, _PIDFD_GET_INFO, info)
        if int.from_bytes(info[:8], sys.byteorder) & _PIDFD_INFO_EXIT:
            return int.from_bytes(info[60:], sys.byteorder)
    return None


def _cause(status: int | None, kills: int) -> str:
    """In words; ``kills``: how many processes the kernel has killed for want of memory since the job began."""
    memory = f"; the kernel has killed {kills} on this machine for want of memory since the job began" if kills > 0 else ""
    if status is None:
        return f"ended without a word: kill -9, out of memory, or a crash in C{memory}"
    number = status & 0x7F
    if not number:
        return f"ended by _exit({status >> 8}) in C, without leaving the program"
    import signal

    name = signal.Signals(number).name if number in set(signal.Signals) else "?"
    if number == signal.SIGTERM:
        return "told to end by signal 15 (SIGTERM), maybe with all ranks, as by mpirun or a batch system"
    return f"killed by signal {number} ({name}){memory if number == signal.SIGKILL else ''}"


def _out_of_memory_kills() -> int:
    with contextlib.suppress(OSError, ValueError), open("/proc/vmstat", encoding="ascii") as file:
        return next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), 0)
    return 0


def main(listening: str, *processes: str) -> None:
    """The watcher's program: what ``_start`` gives it."""
    watcher = Watcher(int(listening), [int(process) for process in processes])
    watcher.meet()
    if not os.fork():
        watcher.run()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
