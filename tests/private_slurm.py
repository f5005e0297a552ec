"""A Slurm of one's own for a test: munged, slurmctld and a slurmd for each of several nodes, all of which are this machine, in a
folder, on ports that nobody uses. It needs the programs of Debian's slurm-wlm and munge, no systemd and no root."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from programs.start import JOB_VARIABLE, kill, processes_left, processes_with
from starting import environment

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol")
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
MISSING = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
needs_slurm = pytest.mark.skipif(
    bool(MISSING), reason=f"Slurm is not installed (no {', '.join(MISSING)}): apt install slurm-wlm munge"
)
DOWN_SECONDS = 8
"""How long a node may be silent until Slurm takes it as down."""
_START_SECONDS = 60.0
_NODE = "TASKFLOW_TEST_NODE"


class Slurm:
    """A running Slurm with nodes n1, n2, ..., of ``cores`` each, which this machine need not have."""

    def __init__(self, folder: Path, nodes: int, cores: int) -> None:
        self.folder, self.names = folder, [f"n{number}" for number in range(1, nodes + 1)]
        self.mark = uuid.uuid4().hex
        self.conf = folder / "slurm.conf"
        self.environment = environment({"SLURM_CONF": str(self.conf), "PATH": PATH, JOB_VARIABLE: self.mark})
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        ports = _free_ports(nodes + 1)
        for name in ("state", "log", *(f"spool/{name}" for name in self.names)):
            (folder / name).mkdir(parents=True)
        lines = [f"NodeName={name} NodeHostName=localhost NodeAddr=127.0.0.1 Port={port} CPUs={cores}"
                 for name, port in zip(self.names, ports[1:], strict=True)]
        words = {"folder": folder, "user": getpass.getuser(), "port": ports[0], "down": DOWN_SECONDS}
        self.conf.write_text(_CONF.format(**words, nodes="\n".join(lines)))

    def start(self) -> None:
        """Start all daemons, and wait until every node is idle."""
        munge = self.folder / "munge"
        munge.mkdir(mode=0o711)
        (munge / "key").write_bytes(os.urandom(1024))
        (munge / "key").chmod(0o400)
        words = [f"--{name}-file={munge / name}" for name in ("key", "pid", "log", "seed")]
        self._daemon("munged", "--foreground", "--force", f"--socket={munge / 'socket'}", *words)
        self.wait_for(lambda: (munge / "socket").exists(), "munged's socket")
        self._daemon("slurmctld", "-D", "-i")
        for name in self.names:
            self.start_node(name)
        self.wait_for(lambda: self.states() == {name: "idle" for name in self.names}, "all nodes idle")

    def start_node(self, name: str) -> None:
        """Start the daemon of a node, at first or again."""
        self._daemon(name, "-D", "-N", name, program="slurmd")

    def fail_node(self, name: str) -> None:
        """End a node without a word, as when its power is cut: its daemon, and all that runs there."""
        daemon = self._daemons[name]
        daemon.kill()
        daemon.wait()
        here = [process for process in processes_with(f"{JOB_VARIABLE}={self.mark}") if _node_of(process) == name]
        kill(here)

    def kill_rank(self, name: str) -> None:
        """Kill the rank of ``taskflow train`` that runs on a node, and nothing beside it."""
        there = processes_with(f"{JOB_VARIABLE}={self.mark}").items()
        found = [process for process, command in there if "taskflow train" in command and _node_of(process) == name]
        assert found, f"no rank runs on {name}"
        kill(found)

    def run(self, *words: str, limit: float = 120.0) -> subprocess.CompletedProcess[str]:
        """How a command of Slurm's ended; after ``limit`` seconds its processes are killed, and the test fails."""
        job = subprocess.Popen(
            words, cwd=self.folder, env=self.environment, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, start_new_session=True,
        )
        try:
            out, errors = job.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(job.pid, signal.SIGKILL)
            pytest.fail(f"{words}: still running after {limit:g} s:\n{job.communicate()}\n{self.logs()}")
        return subprocess.CompletedProcess(words, job.returncode, out, errors)

    def states(self) -> dict[str, str]:
        """The state of each node, as sinfo says it."""
        said = self.run("sinfo", "--noheader", "-N", "-o", "%N %T").stdout.split()
        return dict(zip(said[::2], said[1::2], strict=True))

    def job(self, number: str) -> dict[str, str]:
        """What scontrol says of a job."""
        words = self.run("scontrol", "-o", "show", "job", number).stdout.split()
        return dict(word.partition("=")[::2] for word in words if "=" in word)

    def wait_for(self, ready: Callable[[], bool], what: str, limit: float = _START_SECONDS) -> None:
        """Wait until ``ready``; after ``limit`` seconds the test fails."""
        until = time.monotonic() + limit
        while not ready():
            if time.monotonic() > until:
                pytest.fail(f"not within {limit:g} s: {what}\n{self.logs()}")
            time.sleep(0.2)

    def logs(self) -> str:
        """The end of what each daemon has said."""
        paths = sorted((self.folder / "log").iterdir())
        return "\n".join(f"{path.name}: {path.read_text(errors='replace')[-1500:]}" for path in paths)

    def stop(self) -> None:
        """End all: jobs, daemons, and whatever they have started."""
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            words = ["scancel", "--user", getpass.getuser()]
            subprocess.run(words, env=self.environment, timeout=20, capture_output=True, check=False)
        for daemon in reversed(self._daemons.values()):
            daemon.terminate()
        for daemon in self._daemons.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(10)
        kill(processes_with(f"{JOB_VARIABLE}={self.mark}"))
        for daemon in self._daemons.values():
            daemon.wait(10)
        assert not processes_left(f"{JOB_VARIABLE}={self.mark}")

    def _daemon(self, name: str, *words: str, program: str = "") -> None:
        found = shutil.which(program or name, path=PATH)
        assert found is not None
        with open(self.folder / "log" / name, "ab") as log:
            self._daemons[name] = subprocess.Popen(
                [found, *words], env={**self.environment, _NODE: name}, cwd=self.folder, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True,
            )


@contextlib.contextmanager
def private_slurm(folder: Path, nodes: int = 4, cores: int = 4) -> Iterator[Slurm]:
    """Within the block a Slurm runs, and nothing of it is left behind it."""
    slurm = Slurm(folder, nodes, cores)
    try:
        slurm.start()
        yield slurm
    finally:
        slurm.stop()


def _free_ports(count: int) -> Sequence[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _node_of(process: int) -> str:
    """The node that a process of Slurm's runs on: a task has Slurm's variable, its parent what its daemon was started with."""
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{process}/environ").read_text(errors="replace").split("\0")
        found = dict(word.partition("=")[::2] for word in words)
        return found.get("SLURMD_NODENAME") or found.get(_NODE, "")
    return ""


_CONF = """\
ClusterName=private
SlurmctldHost=localhost
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
SlurmctldPort={port}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdSpoolDir={folder}/spool/%n
StateSaveLocation={folder}/state
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
MailProg=/bin/true
MpiDefault=none
ReturnToService=2
SlurmdTimeout={down}
KillWait=2
JobRequeue=1
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
