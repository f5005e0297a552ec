"""Polling: waits without burning cores, by polling for a moment and then sleeping longer and longer between two polls.

A rank that blocks inside MPI spins. Where ranks outnumber cores it takes the core of the rank that it waits for. Measured with
16 ranks on 2 cores: a computing rank runs 8 to 10 times slower beside 15 that block, and at full speed beside 15 that poll as
here. Sleeping costs on average half of the longest sleep for each message. Within a node a Doorbell avoids that: the sender
wakes the receiver (a hop takes 550 us without it, 80 to 100 us with it).

Polling slows others down too: a rank that polls 4,000 times a second takes a tenth of a core, and evicts data of the core's
other process from its caches. Kernels that were measured meanwhile came out 5 to 20 % too slow. So a rank that has waited
longer sleeps longer, in proportion.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

WATCHDOG_VARIABLE = "TASKFLOW_WATCHDOG_SECONDS"
SLEEP_VARIABLE = "TASKFLOW_LONGEST_SLEEP_SECONDS"
START_VARIABLE = "TASKFLOW_START_SECONDS"
_WATCHDOG_SECONDS = 300.0
_START_SECONDS = 300.0


PATIENT_SHARE = 0.01  # of the time waited so far
_PATIENT_SLEEP_SECONDS = 0.05  # so that a rank that has failed is noticed soon


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pace at which a rank waits: it polls without a pause for ``spin_seconds``, then sleeps ``first_sleep_seconds``, twice as
    long each time, and at most ``longest_sleep_seconds``. In long waits it sleeps a hundredth of the time waited so far, at
    most ``patient_sleep_seconds``."""

    spin_seconds: float
    first_sleep_seconds: float
    longest_sleep_seconds: float
    patient_sleep_seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.spin_seconds < 0 or not 0 < self.first_sleep_seconds <= self.longest_sleep_seconds:
            raise ValueError(f"pace: needs spin >= 0 and 0 < first sleep <= longest sleep, in seconds, got {self}")

    def longest_after(self, waited: float) -> float:
        """Return the longest sleep, in seconds, after a wait of ``waited`` seconds."""
        return max(self.longest_sleep_seconds, min(self.patient_sleep_seconds, PATIENT_SHARE * waited))


def pace_for(ranks: int, cores: int) -> Backoff:
    """Return the pace for ``ranks`` ranks on a node with ``cores`` cores for them. TASKFLOW_LONGEST_SLEEP_SECONDS overrides the
    longest sleep, also in long waits. Raises ValueError if it is no positive number."""
    first = 20e-6
    crowded = ranks > cores
    longest = _seconds(SLEEP_VARIABLE, 1e-3 if crowded else 250e-6)
    patient = _seconds(SLEEP_VARIABLE, _PATIENT_SLEEP_SECONDS)
    if longest == 0:
        raise ValueError(f"{SLEEP_VARIABLE}: must be more than 0 seconds, got 0")
    # With a core for each rank sleeping saves nobody anything, and waking up takes up to half a millisecond: steps of two
    # ranks that send each other much became up to a quarter shorter. Only long waits, for data or measurements, sleep.
    return Backoff(20e-6 if crowded else 5e-3, min(first, longest), longest, patient)


def watchdog_limit(seconds: float | None = None) -> float:
    """Return how many seconds a rank may wait for one message; 0 is for ever. It is ``seconds``, else
    TASKFLOW_WATCHDOG_SECONDS, else 300. Raises ValueError if that is not a finite number, or negative."""
    if seconds is None:
        return _seconds(WATCHDOG_VARIABLE, _WATCHDOG_SECONDS)
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"watchdog_seconds: must be a number of seconds, 0 (never) or more, got {seconds}")
    return float(seconds)


def start_limit() -> float:
    """Return how many seconds MPI may take to start, which needs all ranks; 0 is for ever. It is TASKFLOW_START_SECONDS, else
    300. It is separate from the watchdog's limit, which may be short on purpose, while a start on a busy machine takes long."""
    return _seconds(START_VARIABLE, _START_SECONDS)


def _seconds(variable: str, default: float) -> float:
    text = os.environ.get(variable, "").strip()
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ValueError(f"{variable}: must be a number of seconds, 0 or more, got {text!r}")
    return value


def usable_cores() -> int:
    """Return the number of cores that this process may run on."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def node_cores() -> int:
    """Return the number of cores that the ranks of this node share. Some launchers bind each rank to cores of its own; then the
    process that started the rank still has all of them."""
    cores = usable_cores()
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            cores = max(cores, len(os.sched_getaffinity(os.getppid())))
    return cores


class Doorbell:
    """Socket by which other processes of this node end this process's sleep early. A ring only says "look again", so a lost one
    costs no more than the rest of a sleep. Linux only: it lives in the abstract socket namespace, which leaves no file behind."""

    __slots__ = ("_socket", "address")

    address: bytes
    """What others ring; unique on this node."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind("")  # the kernel picks a free address
        self.address = self._socket.getsockname()

    @staticmethod
    def supported() -> bool:
        """True if this system supports it."""
        return sys.platform == "linux"

    def ring(self, address: bytes) -> None:
        """Wake the process that owns ``address``. Never blocks, never fails: a full or closed socket needs no ring."""
        with contextlib.suppress(OSError):
            self._socket.sendto(b"!", address)

    def sleep(self, seconds: float) -> bool:
        """Sleep until ``seconds`` are over or somebody rings. Returns True if somebody did."""
        ready, _, _ = select.select([self._socket], [], [], seconds)
        if not ready:
            return False
        try:
            while True:  # rings that came together are one
                self._socket.recv(1)
        except BlockingIOError:
            return True

    def close(self) -> None:
        """Release the address; the doorbell cannot be used afterwards."""
        self._socket.close()


def plain_sleep(seconds: float) -> bool:
    """Sleep with the signature of ``Doorbell.sleep``; nobody rings."""
    time.sleep(seconds)
    return False


def poll(
    done: Callable[[], bool],
    pace: Backoff,
    between: Callable[[float], None],
    sleep: Callable[[float], bool] = plain_sleep,
) -> None:
    """Return when ``done()`` is true. Before each sleep ``between`` is called with the seconds waited so far, and may raise."""
    if done():
        return
    began = time.perf_counter()
    until = began + pace.spin_seconds
    while time.perf_counter() < until:
        if done():
            return
    pause = pace.first_sleep_seconds
    while not done():
        waited = time.perf_counter() - began
        between(waited)
        rung = sleep(pause)
        pause = pace.first_sleep_seconds if rung else min(2 * pause, pace.longest_after(waited))
