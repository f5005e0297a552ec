"""Whatever rank fails: the whole job ends within 10 s of that, non-zero, and names the rank and the cause once."""

from __future__ import annotations

import re
import sys

import pytest
from fast_and_slow import fast_among
from programs.start import LIMIT_SECONDS, MAKER, Ended, mpirun, output
from starting import needs_mpi

pytestmark = [pytest.mark.mpi, needs_mpi]
RANKS = 3
HANGS = "2"  # seconds of the watchdog: on a busy machine ranks that are well wait half a second for each other


linux = pytest.mark.skipif(sys.platform != "linux", reason="the watcher is for Linux")


def failing(*arguments: str, ranks: int = RANKS) -> Ended:
    ended = mpirun(ranks, "failing.py", *arguments, since="ready")
    assert ended.seconds < 10 + float(arguments[1] if len(arguments) > 1 else 0)
    assert "received what nobody sent" not in ended.text
    return ended


def waited(ended: Ended, what: str) -> bool:
    """Whether the watchdog says that it has waited for its limit, or somewhat longer: on a busy machine it looks late."""
    found = re.search(rf"watchdog: has waited (\d+\.\d) s {re.escape(what)}", ended.text)
    return found is not None and float(HANGS) <= float(found[1]) < float(HANGS) + 5


def assert_names_once(ended: Ended, who: str, tracebacks: int) -> None:
    assert ended.code != 0
    assert ended.text.count(who) == 1, ended.text
    assert ended.text.count("taskflow: rank") == 1, ended.text
    assert ended.text.count("Traceback") == tracebacks, ended.text


@pytest.mark.parametrize("case", fast_among(["exception", "finally", "after close"], ["finally", "after close"]))
def test_uncaught_exception(case: str) -> None:
    assert_names_once(failing(case), "taskflow: rank 2 of 3: ValueError: boom\n", 1)


def test_out_of_memory() -> None:
    assert_names_once(failing("memory"), "taskflow: rank 2 of 3: MemoryError", 1)


def test_same_error_everywhere() -> None:
    assert_names_once(failing("everywhere"), "KeyError: 'lost'\nTraceback", 1)


def test_hook_of_somebody_else() -> None:
    ended = failing("other hook")
    assert_names_once(ended, "taskflow: rank 2 of 3: ended by ValueError", 1)
    assert ended.text.count("ValueError: boom") == 1


@pytest.mark.parametrize("code", fast_among(["0", "2"], ["0"]))
def test_exit_while_others_wait(code: str) -> None:
    ended = failing("exit", "0", code)
    assert_names_once(ended, "but rank 2 has left the program", 0)
    assert "waits in conv1 forward 2 to receive 32 bytes from rank 2 (tag 5)" in ended.text


@pytest.mark.parametrize("case", fast_among(["barrier", "broadcast", "gather"], ["gather"]))
def test_exit_while_others_are_in_a_collective(case: str) -> None:
    ended = failing(case)
    assert_names_once(ended, "but rank 2 has left the program", 0)
    assert case in ended.text


def test_what_was_sent_before_the_end_arrives() -> None:
    ended = failing("last word")
    assert (ended.code, ended.text) == (0, "ready\n")


@pytest.mark.parametrize("code", fast_among([0, 2], [2]))
def test_exit_that_nobody_notices(code: int) -> None:
    ended = failing("unneeded", "0", str(code))
    assert (ended.code, ended.text) == (code, "ready\n" + 2 * "worked on\n")


@linux
@pytest.mark.parametrize("ranks", fast_among([2, 3, 5, 16], [5]))
def test_killed(ranks: int) -> None:
    """mpirun shows a PID at best, and often that of another rank; the watcher shows the rank."""
    ended = failing("kill", ranks=ranks)
    assert_names_once(ended, f"taskflow: rank {ranks - 1} of {ranks}: killed by signal 9 (SIGKILL)", 0)
    assert len(ended.text.splitlines()) < 25


@linux
def test_crash() -> None:
    assert_names_once(failing("crash"), "taskflow: rank 2 of 3: killed by signal 11 (SIGSEGV)", 0)


@linux
@pytest.mark.parametrize("code", fast_among([0, 3], [0]))
def test_exit_in_c(code: int) -> None:
    """The rank is named, and the job's code is not 0 even if the rank's is (mpirun alone returns 0 in 14 of 20 runs)."""
    ended = failing("gone in C", "0", str(code))
    assert ended.text.count("taskflow: rank") == 1, ended.text
    assert f"taskflow: rank 2 of 3: ended by _exit({code}) in C" in ended.text
    assert ended.code != 0


@pytest.mark.parametrize("code", fast_among(["0", "3"], ["0"]))
def test_os_exit(code: str) -> None:
    """mpirun alone takes os._exit(0) for success in 4 of 10 runs."""
    assert_names_once(failing("gone", "0", code), f"taskflow: rank 2 of 3: ended by os._exit({code})", 0)


def test_os_exit_of_a_forked_child_is_no_failure() -> None:
    ended = failing("fork")
    assert (ended.code, ended.text) == (0, "ready\n")


def test_ctrl_c() -> None:
    ended = mpirun(RANKS, "failing.py", "hang", interrupt_at="ready")
    assert ended.seconds < 10
    if MAKER == "Open MPI":  # it ends the ranks by other signals, and lets none of them speak
        assert ended.code != 0 and ended.text == "ready\n"
    else:
        assert_names_once(ended, "interrupted (Ctrl-C)\n", 0)


def test_a_job_whose_output_is_wanted_must_succeed_and_end() -> None:
    """What other tests rely on: output without errors of a job that succeeds; else what it said last."""
    assert output(RANKS, "failing.py", "fork", limit=LIMIT_SECONDS) == "ready\n"
    with pytest.raises(AssertionError, match=r"(?s)failing.py ended with code .*rank 2 of 3: ValueError: boom"):
        output(RANKS, "failing.py", "exception", limit=LIMIT_SECONDS)
    with pytest.raises(pytest.fail.Exception, match=r"failing.py hang: still running after 2 s; it said:"):
        output(RANKS, "failing.py", "hang", limit=2)


def test_an_all_reduce_that_one_rank_never_joins() -> None:
    ended = failing("all-reduce exit")
    assert_names_once(ended, "but rank 2 has left the program", 0)
    assert "waits in sum of conv1 to add up 32 bytes of ranks 0, 1, 2" in ended.text
    ended = failing("all-reduce hang", HANGS)
    assert_names_once(ended, "Rank 2 waits for nobody: it hangs, or computes", 0)
    assert waited(ended, "in sum of conv1 to add up 32 bytes of ranks 0, 1, 2"), ended.text


@pytest.mark.parametrize(("case", "what"), fast_among(SHARES := [
    ("reduce-scatter", "add up 32 bytes of ranks 0, 1, 2, a share for each"), ("all-gather", "gather 32 bytes from ranks 0, 1, 2"),
], SHARES[1:]))
def test_shares_that_one_rank_never_joins(case: str, what: str) -> None:
    ended = failing(f"{case} exit")
    assert_names_once(ended, "but rank 2 has left the program", 0)
    assert f"waits in share of conv1 to {what}" in ended.text
    ended = failing(f"{case} hang", HANGS)
    assert_names_once(ended, "Rank 2 waits for nobody: it hangs, or computes", 0)
    assert waited(ended, f"in share of conv1 to {what}"), ended.text


def test_watchdog() -> None:
    ended = failing("hang", HANGS)
    assert_names_once(ended, "in conv1 forward 2 to receive 32 bytes from rank 2 (tag 5)", 0)
    assert waited(ended, "in conv1 forward 2") and "TASKFLOW_WATCHDOG_SECONDS" in ended.text
    assert "Rank 2 waits for nobody: it hangs, or computes" in ended.text
