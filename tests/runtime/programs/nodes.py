"""Several nodes on one machine: each has Linux namespaces of its own, so its own name, address, processes, shared memory and clock.

Messages between them go over TCP, on a bridge of virtual network cards, and nothing of one node's /proc, /dev/shm or abstract
sockets is seen on another; files are shared. That is what a cluster looks like to MPI and to taskflow. Needs root, `unshare`
and `ip`. As a program this file is a node's first process (``serve``), or what ssh is to a launcher (``run``).
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import select
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType

HERE = Path(__file__).resolve()
CLOCK_SECONDS = 1000
"""How much a node's clock is ahead of that of the node before."""


def why_not() -> str:
    """Why there can be no nodes here; empty if there can."""
    if sys.platform != "linux" or os.geteuid():
        return "nodes are emulated with Linux namespaces, which needs root"
    if missing := [name for name in ("unshare", "ip", "nsenter") if shutil.which(name) is None]:
        return f"nodes are emulated with unshare, ip and nsenter; {missing[0]} is not on PATH"
    tried = subprocess.run(
        ["unshare", "--net", "--uts", "--ipc", "--mount", "--pid", "--time", "--monotonic", "1", "--fork", "--mount-proc",
         "ip", "link", "add", "type", "veth"], capture_output=True, text=True, check=False,
    )
    return f"nodes are emulated with namespaces, which this kernel refuses: {tried.stderr.strip()}" if tried.returncode else ""


class Nodes:
    """``count`` nodes "node0", "node1", ... with the addresses 10.77.0.1, 10.77.0.2, ...; gone at the end of ``with``."""

    def __init__(self, count: int, environment: dict[str, str]) -> None:
        """``environment``: that of whatever is started on a node."""
        self._folder = tempfile.TemporaryDirectory(prefix="nodes")
        self.path = Path(self._folder.name)
        self.names = [f"node{i}" for i in range(count)]
        self.rsh = self.path / "rsh"
        """What a launcher calls instead of ssh: with options, which are passed over, a node, and a command line for its shell."""
        self._environment = environment
        self._starters: list[subprocess.Popen[bytes]] = []
        self._first: dict[str, int] = {}

    def __enter__(self) -> Nodes:
        hosts = "".join(f"10.77.0.{i + 1} {name}\n" for i, name in enumerate(self.names))
        (self.path / "hosts").write_text(f"127.0.0.1 localhost\n{hosts}")
        serve = shlex.join([sys.executable, "-I", "-S", str(HERE), "run", str(self.path)])
        self.rsh.write_text(f'#!/bin/sh\nexec {serve} "$@"\n')
        self.rsh.chmod(0o755)
        try:
            for name in self.names:
                self._start(name)
            self._connect()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        for name in list(self._first):
            self.end(name)
        for starter in self._starters:
            starter.communicate()
        self._folder.cleanup()

    def end(self, name: str) -> None:
        """A node loses its power: all that runs there is gone."""
        with contextlib.suppress(OSError):
            os.kill(self._first.pop(name), signal.SIGKILL)

    def command(self, name: str, *command: str) -> list[str]:
        """The command line that runs ``command`` on a node, in the working directory of whoever calls it."""
        return [sys.executable, "-I", "-S", str(HERE), "exec", str(self.path), name, *command]

    def cut(self, name: str) -> None:
        """Pull a node's network cable."""
        self._in("node0", "ip", "link", "set", f"to-{name}", "down")

    def _start(self, name: str) -> None:
        ahead = CLOCK_SECONDS * self.names.index(name)
        log = self.path / f"{name}.log"
        self._starters.append(subprocess.Popen(
            ["unshare", "--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--mount-proc",
             "--time", "--monotonic", str(ahead), "--boottime", str(ahead),
             sys.executable, "-I", "-S", str(HERE), "serve", str(self.path), name],
            env=self._environment, stdin=subprocess.PIPE, stderr=log.open("w"), start_new_session=True,
        ))
        until = time.monotonic() + 20
        while True:
            try:
                line = _connect(self.path, name)
                break
            except OSError:
                if time.monotonic() > until:
                    raise RuntimeError(f"{name} does not start: {log.read_text()}") from None
                time.sleep(0.02)
        with line:
            process, _, _ = struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        self._first[name] = process

    def _in(self, name: str, *command: str) -> None:
        subprocess.run(["nsenter", "-t", str(self._first[name]), "-n", *command], check=True)

    def _connect(self) -> None:
        self._in("node0", "ip", "link", "add", "bridge", "type", "bridge")
        self._in("node0", "ip", "link", "set", "bridge", "up")
        for i, name in enumerate(self.names):
            self._in("node0", "ip", "link", "add", f"to-{name}", "type", "veth", "peer", "name", "eth0",
                     "netns", str(self._first[name]))
            self._in("node0", "ip", "link", "set", f"to-{name}", "master", "bridge", "up")
            self._in(name, "ip", "address", "add", f"10.77.0.{i + 1}/24", "dev", "eth0")
            self._in(name, "ip", "link", "set", "lo", "up")
            self._in(name, "ip", "link", "set", "eth0", "up")


# ---- a node's first process ------------------------------------------------------------------------------------------
def _connect(folder: Path, name: str) -> socket.socket:
    line = socket.socket(socket.AF_UNIX)
    try:
        line.connect(str(folder / f"{name}.socket"))
    except OSError:
        line.close()
        raise
    return line


def serve(folder: str, name: str) -> None:
    """Start what `run` asks for, with its files and in its folder, and wait for whatever ends."""
    socket.sethostname(name)
    os.environ["TMPDIR"] = f"{folder}/{name}"  # files there are named by PIDs
    os.mkdir(os.environ["TMPDIR"])
    for command in (["mount", "-t", "tmpfs", "none", "/dev/shm"], ["mount", "--bind", f"{folder}/hosts", "/etc/hosts"]):
        subprocess.run(command, check=True)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(f"{folder}/{name}.socket")
    listening.listen(64)
    listening.settimeout(0.02)
    lines: dict[int, socket.socket] = {}
    while not select.select([0], [], [], 0)[0]:  # the end of whoever has made this node is the node's end
        with contextlib.suppress(TimeoutError):
            _answer(listening.accept()[0], lines)
        for process, line in lines.items():
            with contextlib.suppress(OSError):
                for number in line.recv(16, socket.MSG_DONTWAIT):
                    os.kill(process, number)
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:  # also orphans, as the first process of a machine does
                if ended[0] in lines:
                    with contextlib.suppress(OSError), lines.pop(ended[0]) as line:
                        line.send(str(os.waitstatus_to_exitcode(ended[1])).encode())


def _answer(line: socket.socket, lines: dict[int, socket.socket]) -> None:
    line.setblocking(True)
    data, files, _, _ = socket.recv_fds(line, 1 << 20, 3)
    if not data:  # only looked whether we are here
        line.close()
        return
    folder, command = json.loads(data)
    process = os.fork()
    if process:
        lines[process] = line
        for file in files:
            os.close(file)
        return
    try:
        for wanted, file in enumerate(files):
            os.dup2(file, wanted)
        os.closerange(3, 1 << 12)
        os.setsid()
        os.chdir(folder)
        os.execvp(command[0], command)
    finally:
        os._exit(127)


def run(folder: str, name: str, command: list[str]) -> int:
    """Run a command on a node with this process's standard files, and return its exit code. Ctrl-C goes on to it."""
    with _connect(Path(folder), name) as line:
        signal.signal(signal.SIGINT, lambda number, frame: line.send(bytes([number])))
        files = array.array("i", [0, 1, 2])
        line.sendmsg(
            [json.dumps([os.getcwd(), command]).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)]
        )
        code = line.recv(16)
    return int(code or 255) % 256


def main(what: str, folder: str, *words: str) -> None:
    if what == "serve":
        serve(folder, words[0])
    if what == "exec":
        sys.exit(run(folder, words[0], list(words[1:])))
    options = 0
    while words[options].startswith("-"):
        options += 1
    sys.exit(run(folder, words[options], ["sh", "-c", " ".join(words[options + 1 :])]))


if __name__ == "__main__":
    main(*sys.argv[1:])
