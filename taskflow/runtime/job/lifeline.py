"""Lifeline: a rank's connection to the watcher of its node (`watcher`), and how the watchers of a job are started."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import stat
import struct
import sys

from taskflow.runtime.job import watcher
from taskflow.runtime.job.node import node_key

_RANKS = 4096
"""Connections that wait to be accepted; the kernel may allow fewer."""
_START_SECONDS = 10.0
_ADDRESSES = 10
"""How many of the first node's addresses the others try."""


class Lifeline:
    """Connection of a rank to its node's watcher. It does nothing before ``begin``, and where there is no watcher."""

    def __init__(self) -> None:
        self._listening: socket.socket | None = None
        self._meeting: socket.socket | None = None
        self._line: socket.socket | None = None
        self._process = os.getpid()
        self.node = node_key().encode()
        """Where this process runs."""
        self.address = b""
        """Where the watcher listens if this rank starts it; empty where there can be none."""
        if sys.platform == "linux" and hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):
                self._listening = socket.socket(socket.AF_UNIX)
                self._listening.bind("")  # the kernel picks a free address, which leaves no file behind
                self._listening.listen(_RANKS)  # so that the others can connect before the watcher runs
                self.address = self._listening.getsockname()

    def invite(self) -> bytes:
        """Return, on rank 0 of a job on several nodes and before ``begin``, the address of its watcher for the other nodes'
        watchers and the password that they must send, at most 63 bytes. Empty if they cannot connect."""
        with contextlib.suppress(OSError):
            if addresses := _addresses()[:_ADDRESSES]:
                self._meeting = socket.socket()
                self._meeting.bind(("", 0))
                self._meeting.listen(_RANKS)
                return secrets.token_bytes(16) + struct.pack("!H", self._meeting.getsockname()[1]) + b"".join(addresses)
        return b""

    def begin(self, rank: int, nodes: list[bytes], addresses: list[bytes], processes: list[int], invitation: bytes) -> None:
        """Connect to the watcher; the first rank of a node starts it. Every rank calls this with what all ranks have told, by
        rank (their ``node``, ``address`` and process), and what `invite` returned on rank 0. A watcher that does not start is
        no error."""
        listening, self._listening = self._listening, None
        meeting, self._meeting = self._meeting, None
        with listening or contextlib.nullcontext(), meeting or contextlib.nullcontext(), contextlib.suppress(OSError):
            here = [peer for peer, node in enumerate(nodes) if node == nodes[rank]]
            one_node = len(here) == len(nodes)
            if listening is None or len(nodes) < 2 or not all(addresses) or not (one_node or invitation):
                return
            self._line = _highest(socket.socket(socket.AF_UNIX))
            self._line.setblocking(False)
            self._line.connect(addresses[here[0]])
            if (file := _launcher_file()) is not None:
                socket.send_fds(self._line, [watcher.HOLD], [file])
            if rank == here[0]:
                _start(listening, meeting, {peer: processes[peer] for peer in here}, nodes, b"" if one_node else invitation)

    def say(self, word: bytes) -> None:
        """Tell the watcher LEFT, this rank's program is over, or FAILS, it is about to end the job. Never fails."""
        if self._line is not None and os.getpid() == self._process:
            with contextlib.suppress(OSError):  # no watcher, or one that has ended
                self._line.send(word, socket.MSG_NOSIGNAL)


def _launcher_file() -> int | None:
    """The connection by whose end mpirun learns of this process's: PMI's, where it is an open file."""
    with contextlib.suppress(OSError, ValueError):
        file = int(os.environ.get("PMI_FD", ""))
        if stat.S_ISSOCK(os.fstat(file).st_mode):
            return file
    return None


def _addresses() -> list[bytes]:
    """The IPv4 addresses of this machine that another could reach, 4 bytes each."""
    import fcntl

    found: list[bytes] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # a card without such an address
                request = struct.pack("256s", name.encode()[:15])
                found.append(fcntl.ioctl(line, _SIOCGIFADDR, request)[20:24])
    return [address for address in found if address[0] != 127]


_SIOCGIFADDR = 0x8915


def _highest(line: socket.socket) -> socket.socket:
    """The same socket under a number above those of all files that are open."""
    import fcntl

    with line:
        above = 1 + max(int(name) for name in os.listdir("/proc/self/fd"))
        return socket.socket(fileno=fcntl.fcntl(line, fcntl.F_DUPFD_CLOEXEC, above))


def _start(
    listening: socket.socket, meeting: socket.socket | None, ranks: dict[int, int], nodes: list[bytes], invitation: bytes
) -> None:
    """Start the watcher and return when it knows the ranks. It leaves this process's children by a fork of its own."""
    import subprocess

    files = [listening.fileno(), *([] if meeting is None else [meeting.fileno()])]
    words = [
        str(len(nodes)), str(len(set(nodes))), invitation.hex() or "-", *(f"{rank}:{process}" for rank, process in ranks.items())
    ]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        started = subprocess.Popen(
            [sys.executable, "-I", "-S", os.path.abspath(watcher.__file__), *map(str, files)],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=files, start_new_session=True, cwd="/",
        )
        # Not as arguments, which others of this machine can read: what is invited to must stay between us.
        started.communicate(" ".join(words).encode(), timeout=_START_SECONDS)
