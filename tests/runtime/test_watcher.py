"""The watcher of killed ranks, with processes that are no ranks."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator

import pytest
from programs.start import LIMIT_SECONDS, processes_with

from taskflow.runtime.job import watcher
from taskflow.runtime.job.process_end import cause_of, is_ending

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(os, "pidfd_open"), reason="the watcher is for Linux"
)
# Connects to the address that the first argument names in hexadecimal, then does what its input says.
RANK = """
import os, socket, sys
line = socket.socket(socket.AF_UNIX)
if sys.argv[1]: line.connect(bytes.fromhex(sys.argv[1]))
print(flush=True)
for word in sys.stdin:
    command, _, argument = word.strip().partition(" ")
    if command == "say": line.send(argument.encode())
    if command == "close": line.close()
    if command == "exit": os._exit(int(argument))
    print(flush=True)
"""


class Job:
    """Two processes and their watcher."""

    def __init__(self, connected: tuple[bool, ...] = (True, True)) -> None:
        listening = socket.socket(socket.AF_UNIX)
        listening.bind("")
        listening.listen()
        address = listening.getsockname().hex()
        self.ranks = [
            subprocess.Popen([sys.executable, "-c", RANK, address if connects else ""], text=True,
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            for connects in connected
        ]
        for rank in self.ranks:
            rank.stdout.readline()
        self.mark = uuid.uuid4().hex
        self.watcher = subprocess.Popen(
            [sys.executable, "-I", "-S", watcher.__file__, str(listening.fileno())], pass_fds=(listening.fileno(),),
            stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "MARK": self.mark},
        )
        listening.close()
        with self.watcher.stdin as file:
            file.write(" ".join(["2", "1", "-", *(f"{rank}:{process.pid}" for rank, process in enumerate(self.ranks))]))
        assert self.watcher.wait(LIMIT_SECONDS) == 0  # the watcher itself goes on, as nobody's child

    def tell(self, rank: int, command: str) -> None:
        self.ranks[rank].stdin.write(command + "\n")
        self.ranks[rank].stdin.flush()
        self.ranks[rank].stdout.readline()

    def said(self) -> str:
        """What the watcher has said, once it has ended."""
        self.watcher.stdin = None
        return self.watcher.communicate(timeout=LIMIT_SECONDS)[1]

    def end(self) -> None:
        for rank in self.ranks:
            rank.kill()
            rank.wait()
            rank.stdin.close()
            rank.stdout.close()
        self.said()


@pytest.fixture
def job() -> Iterator[Job]:
    job = Job()
    yield job
    job.end()


def test_the_first_that_is_killed_is_named(job):
    job.ranks[1].kill()
    job.ranks[1].wait()  # two deaths at one moment have no order
    job.ranks[0].kill()
    assert job.said() == f"taskflow: rank 1 of 2: killed by signal 9 (SIGKILL) (pid {job.ranks[1].pid})\n"


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_the_order_of_deaths_counts_even_if_the_watcher_was_late(job, order):
    (watching,) = processes_with(job.mark)
    os.kill(watching, signal.SIGSTOP)
    for rank in order:
        job.ranks[rank].kill()
        job.ranks[rank].wait()  # so that only the pidfd still knows how it ended
    os.kill(watching, signal.SIGCONT)
    assert job.said().startswith(f"taskflow: rank {order[0]} of 2: ")


def test_exit_and_other_signals(job):
    job.tell(0, "exit 3")
    assert "rank 0 of 2: ended by _exit(3) in C, without leaving" in job.said()


def test_told_to_end(job):
    job.ranks[0].send_signal(signal.SIGTERM)
    assert "rank 0 of 2: told to end by signal 15 (SIGTERM)" in job.said()


def test_nothing_is_said_when_all_have_left(job):
    job.tell(0, "say L")
    job.tell(1, "say L")
    assert job.said() == ""  # it ends while they still live
    assert all(rank.poll() is None for rank in job.ranks)


def test_one_that_left_may_end_as_it_likes(job):
    job.tell(0, "say L")
    job.ranks[0].kill()
    job.ranks[0].wait()
    time.sleep(0.2)
    job.ranks[1].kill()
    assert "rank 1 of 2: killed" in job.said()


def test_nothing_is_said_after_a_rank_has_failed(job):
    job.tell(1, "say F")
    job.ranks[0].kill()
    assert job.said() == ""


def test_a_word_counts_that_was_said_just_before_the_end(job):
    job.tell(0, "say F")
    job.ranks[0].kill()
    assert job.said() == ""


def test_a_rank_that_closes_its_files_is_not_dead(job):
    job.tell(0, "close")
    time.sleep(watcher._END_SECONDS + 0.3)
    assert job.ranks[0].poll() is None
    job.ranks[1].kill()
    assert "rank 1 of 2: killed" in job.said()


def test_a_rank_that_never_connected_says_nothing_about_its_end():
    job = Job((True, False))
    job.ranks[1].kill()
    assert job.said() == ""
    job.end()


@pytest.mark.parametrize(
    "status,kills,text",
    [
        (9, 0, "killed by signal 9 (SIGKILL)"),
        (9, 1, "killed by signal 9 (SIGKILL); the kernel has killed 1 on this machine for want of memory"),
        (11 | 0x80, 1, "killed by signal 11 (SIGSEGV)"),
        (40, 0, "killed by signal 40 (?)"),
        (0, 0, "ended by _exit(0) in C"),
        (7 << 8, 0, "ended by _exit(7) in C"),
        (None, 0, "ended without a word: kill -9, out of memory, or a crash in C"),
        (None, 2, "or a crash in C; the kernel has killed 2"),
    ],
)
def test_causes(status, kills, text):
    assert text in cause_of(status, kills)


def test_imports_little():
    command = [sys.executable, "-I", "-S", "-X", "importtime", watcher.__file__]
    done = subprocess.run(command, capture_output=True, text=True)
    imported = {line.split("|")[-1].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "socket" in imported
    assert not {"numpy", "subprocess", "taskflow", "typing", "mpi4py"} & imported


def test_a_process_is_ending_before_anybody_has_waited_for_it() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        assert not is_ending(child.pid) and not is_ending(os.getpid())
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # ended, and still there
        assert is_ending(child.pid)
        child.wait()
        assert is_ending(child.pid)
