"""A rank that never comes to ``connect`` is named, long before the others have waited for TASKFLOW_START_SECONDS."""

from __future__ import annotations

import os
import sys

import pytest
from fast_and_slow import fast_among
from programs.start import MAKER, Ended, mpirun
from starting import needs_mpi

from taskflow.runtime.job import arrive

pytestmark = [
    pytest.mark.mpi, needs_mpi,
    pytest.mark.skipif(sys.platform != "linux" or not hasattr(os, "pidfd_open"), reason="arrivals are watched on Linux"),
]
LATE = "4"  # seconds after which the others have called connect, also on a busy machine
mpich = pytest.mark.skipif(MAKER == "Open MPI", reason="Open MPI's mpirun ends the job by itself, and names the rank")


ENDS = [
    ("kill", "killed by signal 9 (SIGKILL)"), ("crash", "killed by signal 11 (SIGSEGV)"), ("exit", "ended with exit code 3"),
    ("exit well", "ended with exit code 0"), ("import", "ended with exit code 1"), ("gone", "ended with exit code 4"),
]


def early(case: str, seconds: str, ranks: int = 3, **extra: str) -> Ended:
    return mpirun(ranks, "early.py", case, seconds, extra=extra, since="starts\n")


def assert_names_once(ended: Ended, text: str) -> None:
    assert ended.code != 0
    assert ended.text.count("taskflow: ") == 1, ended.text
    assert f"taskflow: rank 1 of 3{text}" in ended.text


@mpich
@pytest.mark.parametrize(("case", "how"), fast_among(ENDS, ENDS[3:4]))
def test_a_rank_that_ends_while_the_others_wait(case: str, how: str) -> None:
    ended = early(case, LATE)
    assert_names_once(ended, f": {how} before it called connect (pid ")
    assert ended.seconds < 60, "within seconds, not after TASKFLOW_START_SECONDS"
    assert ended.text.count("ModuleNotFoundError: No module named 'a_module_that_is_not_there'") == (case == "import")


@mpich
@pytest.mark.parametrize("case", fast_among(["exit", "exit well", "import", "gone"], ["exit"]))
def test_a_rank_that_ends_before_anybody_waits(case: str) -> None:
    ended = early(case, "0")
    assert ended.code != 0 and ended.seconds < 60
    assert ended.text.count("taskflow: ") == 1 and "taskflow: rank 1 of 3" in ended.text, ended.text
    assert "before it called connect" in ended.text


@mpich
def test_a_rank_that_is_killed_before_anybody_waits() -> None:
    """Nobody is there to name it; but mpirun ends the job, maybe before rank 0 has come to say that it starts."""
    ended = mpirun(3, "early.py", "kill", "0")
    assert ended.code != 0 and ended.seconds < 60 and "connected" not in ended.text


def test_a_rank_that_hangs_before_it_connects() -> None:
    ended = early("hang", "0", TASKFLOW_START_SECONDS="2")
    assert_names_once(ended, " has not called connect within 2 s after rank ")
    assert "Still there: rank 1 (pid " in ended.text and ended.seconds < 30


def test_who_watches_may_fail_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then no rank waits longer for what it says."""
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert arrive(0, 2, 2, "PMI_RANK", 60.0) is None


def test_the_same_error_everywhere_is_each_ranks_own() -> None:
    ended = early("everywhere", "0")
    assert ended.code != 0 and "taskflow: " not in ended.text
    # mpirun may end the others before they have written theirs.
    assert 1 <= ended.text.count("ModuleNotFoundError: ") <= 3


@pytest.mark.parametrize("ranks", fast_among([2, 3], [2]))
def test_nothing_is_said_of_ranks_that_come_late(ranks: int) -> None:
    ended = early("late", "7", ranks)  # longer than an absent rank is waited for
    assert (ended.code, ended.text) == (0, "starts\nconnected\n")
