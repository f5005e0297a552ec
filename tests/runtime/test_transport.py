"""Messages arrive as they were sent; waiting is patient and can be woken; importing starts nothing."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from fast_and_slow import fast_among
from programs.start import mpirun
from starting import environment, needs_mpi

from taskflow.runtime.job.polling import Backoff, Doorbell, pace_for, poll, watchdog_limit
from taskflow.runtime.transport.base import verify_exchange
from taskflow.runtime.transport.local import LocalTransport


@pytest.mark.mpi
@needs_mpi
@pytest.mark.parametrize("ranks", fast_among([2, 3], [3]))
def test_mpi_messages(ranks: int) -> None:
    # Two ranks have a core each here or nearly so, three do not: both ways to wait are taken.
    ended = mpirun(ranks, "messages.py", str(ranks))
    assert (ended.code, ended.text) == (0, "all right\n")


@pytest.mark.mpi
@needs_mpi
def test_the_others_wait_patiently_while_one_plans() -> None:
    ended = mpirun(2, "patience.py", "4")
    assert (ended.code, ended.text) == (0, "planned\n")


@pytest.mark.mpi
@needs_mpi
def test_mpi_alone() -> None:
    ended = mpirun(1, "failing.py", "barrier")
    assert (ended.code, ended.text) == (0, "ready\n")


def test_an_exchange_gives_nothing_to_itself_and_fills_the_array() -> None:
    assert verify_exchange("x", np.zeros(7), [[0, 2, 1], [1, 0, 0], [3, 1, 0]], (0, 4, 5), 0) == 3
    for counts in ([[1, 2], [3, 0]], [[0, 2], [5, 1]], [[0, 2], [6, 0]], [[0, 2]], [[0, -2], [9, 0]], [[0, 2, 1], [4, 0, 1]]):
        with pytest.raises(ValueError, match=r"^x: needs for each rank how many elements"):
            verify_exchange("x", np.zeros(7), counts, (0, 4), 0)


def test_local_transport() -> None:
    transport = LocalTransport()
    assert (transport.rank, transport.size) == (0, 1)
    assert transport.broadcast({"a": 1}) == {"a": 1}
    assert transport.gather(5) == [5]
    transport.barrier()
    for call in (transport.sender, transport.receiver):
        with pytest.raises(ValueError, match=r"rank 1 \(tag 7\).*only rank 0"):
            call(np.zeros(2), 1, 7)
    with pytest.raises(ValueError, match="root"):
        transport.broadcast(1, root=1)
    assert (transport.bytes_sent, transport.bytes_received, transport.messages) == (0, 0, 0)
    transport.close()
    transport.close()


@pytest.mark.parametrize("module", [
    "taskflow", "taskflow.runtime", "taskflow.runtime.transport.mpi", "taskflow.runtime.job.launch",
])
def test_importing_starts_no_mpi(module: str) -> None:
    code = f"import sys, {module}; sys.exit('mpi4py' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=environment(), check=False).returncode == 0


def test_poll_sleeps_longer_and_longer_up_to_the_cap() -> None:
    sleeps: list[float] = []
    waited: list[float] = []
    poll(lambda: len(sleeps) == 6, Backoff(0.0, 1.0, 8.0), waited.append, lambda s: bool(sleeps.append(s)))
    assert sleeps == [1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    assert len(waited) == 6 and waited == sorted(waited)


def test_who_has_waited_long_looks_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    now, sleeps = [0.0], list[float]()
    monkeypatch.setattr("taskflow.runtime.job.polling.time", SimpleNamespace(perf_counter=lambda: now[0]))

    def sleep(seconds: float) -> bool:
        sleeps.append(seconds)
        now[0] += seconds
        return False

    pace = replace(pace_for(2, 2), spin_seconds=0.0)
    poll(lambda: now[0] > 60, pace, lambda waited: None, sleep)
    looks = 60 / pace.longest_sleep_seconds
    assert max(sleeps) == pace.patient_sleep_seconds and len(sleeps) < looks / 100
    done = 0.0
    for seconds in sleeps:  # a message that nobody rings for is a hundredth late, or the longest sleep
        assert seconds <= max(pace.longest_sleep_seconds, 0.01 * done + 1e-12)
        done += seconds


def test_poll_starts_over_when_rung() -> None:
    sleeps: list[float] = []

    def sleep(seconds: float) -> bool:
        sleeps.append(seconds)
        return len(sleeps) == 3

    poll(lambda: len(sleeps) == 5, Backoff(0.0, 1.0, 8.0), lambda waited: None, sleep)
    assert sleeps == [1.0, 2.0, 4.0, 1.0, 2.0]


def test_poll_spins_before_it_sleeps() -> None:
    looks = 0

    def done() -> bool:
        nonlocal looks
        looks += 1
        return looks == 5

    def never(seconds: float) -> bool:
        raise AssertionError("slept although the spin had not ended")

    poll(done, Backoff(60.0, 1.0, 1.0), lambda waited: None, never)
    assert looks == 5


@pytest.mark.skipif(not Doorbell.supported(), reason="a doorbell needs Linux's abstract sockets")
def test_doorbell_ends_a_sleep() -> None:
    mine, other = Doorbell(), Doorbell()
    try:
        assert mine.address != other.address
        assert not mine.sleep(0.0)
        for _ in range(100):  # more than the socket holds: no error, no wait
            other.ring(mine.address)
        assert mine.sleep(0.0) and not mine.sleep(0.0)
        began = time.monotonic()
        threading.Timer(0.05, other.ring, [mine.address]).start()
        assert mine.sleep(30.0) and time.monotonic() - began < 20
    finally:
        mine.close()
        other.ring(mine.address)  # nobody there: no error
        other.close()


def test_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pace_for(16, 2).spin_seconds < pace_for(2, 2).spin_seconds
    assert watchdog_limit(0) == 0 and watchdog_limit(2) == 2
    for seconds in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="watchdog_seconds: must be a number of seconds"):
            watchdog_limit(seconds)
    monkeypatch.delenv("TASKFLOW_WATCHDOG_SECONDS", raising=False)
    assert watchdog_limit() == 300
    monkeypatch.setenv("TASKFLOW_WATCHDOG_SECONDS", "7.5")
    assert watchdog_limit() == 7.5 and watchdog_limit(1) == 1
    for wrong in ("-1", "soon", "nan", "inf"):
        monkeypatch.setenv("TASKFLOW_WATCHDOG_SECONDS", wrong)
        with pytest.raises(ValueError, match=f"TASKFLOW_WATCHDOG_SECONDS.*{wrong}"):
            watchdog_limit()
    monkeypatch.setenv("TASKFLOW_LONGEST_SLEEP_SECONDS", "1e-5")
    assert pace_for(16, 2).longest_after(100) == pace_for(16, 2).first_sleep_seconds == 1e-5
    monkeypatch.setenv("TASKFLOW_LONGEST_SLEEP_SECONDS", "0")
    with pytest.raises(ValueError, match="more than 0"):
        pace_for(1, 1)
    with pytest.raises(ValueError, match="first sleep <= longest"):
        Backoff(0.0, 1.0, 0.5)
