"""Training that fails on one rank of three: the job ends within 10 s of that, non-zero, and names rank, task and cause once."""

from __future__ import annotations

import re
import sys

import pytest
from fast_and_slow import fast_among
from programs.start import MAKER, Ended, mpirun
from starting import needs_mpi

pytestmark = [pytest.mark.mpi, needs_mpi, pytest.mark.timeout(200)]
PROGRAM = "train_failing.py"


def fails(case: str, *message: str, trains: bool = True, limit: float = 60.0) -> Ended:
    """Run the case; each of ``message`` is a pattern in the one line that names the rank."""
    ended = mpirun(3, PROGRAM, case, str(limit), since="training\n" if trains else "connected\n")
    check(ended, *message)
    assert ("training\n" in ended.text) is trains, ended.text
    return ended


def check(ended: Ended, *message: str) -> None:
    assert ended.code != 0 and ended.seconds < 10, ended
    lines = [line for line in ended.text.splitlines() if line.startswith("taskflow: rank")]
    assert len(lines) == 1, ended.text
    for pattern in message:
        assert re.search(pattern, lines[0]), ended.text


def test_exception_in_a_task() -> None:
    task = r" \(in task lstm0\.1\[2\] backward @ 2\)" if sys.version_info >= (3, 11) else ""
    ended = fails("task", r"rank 2 of 3: FloatingPointError: boom" + task)
    assert ended.text.count("Traceback") == 1


@pytest.mark.parametrize("case", fast_among(["exit", "exit in a task"], ["exit in a task"]))
def test_exit_in_the_middle(case: str) -> None:
    fails(case, "waits in .+ to receive .+ from rank 2", "but rank 2 has left the program$")


@pytest.mark.skipif(sys.platform != "linux", reason="the watcher is for Linux")
def test_killed_in_the_middle() -> None:
    fails("kill", r"rank 2 of 3: killed by signal 9 \(SIGKILL\)")


def test_watchdog_names_task_and_peer() -> None:
    # Not less than 3 s: on a busy machine ranks that are well wait a second for each other. And it may look somewhat late.
    fails("sleep", r"rank [01] of 3: watchdog: has waited [3-7]\.\d s in .+ @ [01] waits for copy .+ from rank 2", limit=3.0)


def test_loss_that_is_no_number() -> None:
    ended = fails("nan", "rank 0 of 3: LossError: the loss became nan at step 4; lower the learning rate")
    assert ended.text.count("Traceback") == 1


@pytest.mark.parametrize("case,who", fast_among(SHAPES := [("shape", "rank 2"), ("shape everywhere", "rank 0")], SHAPES[1:]))
def test_wrong_feed(case: str, who: str) -> None:
    fails(case, who + r" of 3: ValueError: targets: each step needs int64\[6, 4\], got int64\[5, 4\]")


@pytest.mark.parametrize(
    "case,message",
    fast_among(STRATEGIES := [
        ("degrees", r"mapper nonsense: operator lstm1\.1: degree of n must be 1 to 6, got 7"),
        ("type", r"mapper nonsense, operator lstm1\.1: slice_task must return one degree"),
        ("processor", r"mapper nonsense: operator lstm1\.1: processor 3 does not exist; there are 0 to 2"),
        ("file", r"FileNotFoundError: strategy file missing/strategy\.json does not exist"),
    ], [STRATEGIES[0], STRATEGIES[3]]),
)
def test_wrong_strategy_ends_before_the_first_step(case: str, message: str) -> None:
    fails(case, "rank 0 of 3: .*" + message, trains=False)


@pytest.mark.parametrize("case,subject", fast_among(SUBJECTS := [
    ("disagree", "strategy"), ("seed", r"seed of rank 2 is not that of rank 0 \(2; 0\)"), ("order", "order of tasks"),
], SUBJECTS[1:]))
def test_ranks_that_disagree(case: str, subject: str) -> None:
    """What no rank can see alone, and what would go wrong in silence or wait for ever."""
    message = rf"rank [0-2] of 3: ValueError: Executor \(train\): every rank must make the same one .+{subject}"
    fails(case, message, trains=False)


def test_ctrl_c() -> None:
    ended = mpirun(3, PROGRAM, "none", interrupt_at="training")
    if MAKER == "Open MPI":  # it ends the ranks by other signals, and lets none of them speak
        assert ended.code != 0 and ended.seconds < 10 and "taskflow: rank" not in ended.text
    else:
        check(ended, r"rank \d of 3: interrupted \(Ctrl-C\)$")
    assert "Traceback" not in ended.text
