"""Failure: whichever rank fails, the whole job ends within seconds with a non-zero code, and says once which rank and why.

MPI does not do this: a rank that raises or calls sys.exit waits for the others in MPI_Finalize, and they wait for its messages.
So an uncaught exception aborts the job. A rank that leaves the program tells the others; if one of them then needs a message
from it, that one ends the job. mpirun notices a rank that dies by a signal, but only ``watcher`` says which one it was.

mpirun cannot be trusted with a rank that ends by os._exit: MPICH's kills the others, and then in 4 of 10 runs returns that
rank's exit code, even if it is 0 (29 of 70 measured, with and without taskflow). So os._exit is intercepted too. A call of
_exit in C is not intercepted, but ``watcher`` names the rank. mpirun's code was then 0 in 14 of 20 runs. It is no longer (0 of
10) since the watcher holds the rank's connection to mpirun until another rank has been killed.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import time
import traceback
from collections.abc import Callable
from enum import IntEnum
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

from taskflow.runtime.job import segments
from taskflow.runtime.job.chain import Wait
from taskflow.runtime.job.lifeline import Lifeline
from taskflow.runtime.job.polling import Backoff, poll
from taskflow.runtime.job.watcher import FAILS, LEFT

if TYPE_CHECKING:
    from mpi4py import MPI

_NOTICE_TAG = 7
_TURN_SECONDS = 0.3
"""How long a failing rank waits for a lower one that fails too, so that one of them speaks."""
_ANSWER_SECONDS = 2.0
"""How long a rank that waits, and so looks often, may take to answer for whom."""
_SILENT_SECONDS = 5.0
"""How long a silent rank waits for the one that speaks to end the job."""
_FORWARD_SECONDS = 0.2
"""How long mpirun may need to pass on what it has read from this rank."""


class Notice(IntEnum):
    """Message between ranks: the sender has left, is about to end the job, asks for whom another rank waits, or answers that."""

    LEFT = 1
    FAILED = 2
    ASKS = 3
    WAITS = 4


class Notices:
    """Notices from the other ranks. A message is one byte and its contents, on a communicator without channels."""

    def __init__(self, comm: MPI.Comm) -> None:
        from mpi4py import MPI

        self._comm = comm
        self._any = MPI.ANY_SOURCE
        self._status = MPI.Status()
        self._sends: list[MPI.Request] = []
        self._told: set[Notice] = set()
        self.left: set[int] = set()
        """Ranks whose program has come to its end."""
        self.failed: set[int] = set()
        """Ranks that are about to end the job."""
        self.waiting: Callable[[], Wait] | None = None
        """For whom this rank waits, if it does: what it answers to one that asks."""
        self._answers: dict[int, Wait] = {}

    def announce(self, notice: Notice) -> None:
        """Tell all other ranks, without waiting for them; a second call does nothing."""
        if notice in self._told:
            return
        self._told.add(notice)
        text = bytes([notice])
        for peer in range(self._comm.size):
            if peer != self._comm.rank:
                self._sends.append(self._comm.Isend(text, peer, _NOTICE_TAG))

    def poll(self) -> None:
        """Receive what has arrived. Never blocks."""
        while self._comm.Iprobe(self._any, _NOTICE_TAG, self._status):
            source, text = self._status.source, bytearray(self._status.count)
            self._comm.Recv(text, source, _NOTICE_TAG)
            if text[0] == Notice.ASKS:
                if self.waiting is not None:
                    self._sends.append(self._comm.Isend(bytes([Notice.WAITS]) + self.waiting().pack(), source, _NOTICE_TAG))
            elif text[0] == Notice.WAITS:
                self._answers[source] = Wait.unpack(bytes(text[1:]))
            else:
                (self.left if text[0] == Notice.LEFT else self.failed).add(source)

    def ask(self, over: Callable[[], bool], ring: Callable[[int], None]) -> dict[int, Wait | None]:
        """Ask the ranks that this one waits for whom they wait for, and so on to the end of the chain. The answer is None for a
        rank that does not answer within a moment. Stops when ``over()``, or when another rank is about to end the job. ``ring``
        wakes a rank."""
        assert self.waiting is not None
        waits: dict[int, Wait | None] = {self._comm.rank: self.waiting()}
        asked: dict[int, float] = {}
        self._answers.clear()
        while not over() and not self.failed:
            unknown = {peer for wait in waits.values() if wait is not None for peer in wait.peers} - set(waits)
            if not unknown:
                break
            for peer in unknown - set(asked):
                asked[peer] = time.monotonic()
                self._sends.append(self._comm.Isend(bytes([Notice.ASKS]), peer, _NOTICE_TAG))
                ring(peer)
            time.sleep(0.01)
            self.poll()
            for peer in unknown:
                if peer in self._answers or time.monotonic() - asked[peer] > _ANSWER_SECONDS:
                    waits[peer] = self._answers.get(peer)
        return waits

    def delivered(self) -> bool:
        """True if everything announced is on its way and needs nothing more from this rank."""
        self._sends = [send for send in self._sends if not send.Test()]
        return not self._sends


class JobEnd:
    """End of a job of several ranks: how one of them fails, and how all of them leave."""

    def __init__(self, comm: MPI.Comm, abort: Callable[[int], object], sleep: Callable[[float], bool]) -> None:
        """``comm`` is for this object alone; ``abort`` ends all ranks with a code; ``sleep`` as in ``waiting.poll``."""
        self.rank, self.size = comm.rank, comm.size
        self.lifeline = Lifeline()
        self.notices = Notices(comm)
        self._abort = abort
        self._sleep = sleep
        self._before = getattr(sys, "last_value", None)
        self._process = os.getpid()
        self._exit = os._exit
        self._closers: list[Callable[[], None]] = []

    def watch(self) -> None:
        """Let an uncaught exception end the job from now on, and let the end of the program notify the others."""
        sys.excepthook = self._uncaught
        os._exit = self._exits
        atexit.register(self._leave)

    def at_exit(self, close: Callable[[], None]) -> None:
        """Call ``close`` when the program ends, before the other ranks are notified."""
        self._closers.append(close)

    def fail(self, cause: str, detail: str = "", code: int = 1) -> NoReturn:
        """Print "taskflow: rank 3 of 16: cause" and ``detail``, unless another rank does so, and end every rank."""
        self.lifeline.say(FAILS)
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        if self._speaks():
            write_error(f"taskflow: rank {self.rank} of {self.size}: {cause}\n{detail}")
            _let_output_out()
        segments.remove(segments.mapped([self._process]))  # nobody does after an abort; whoever maps them keeps them
        self._abort(code)
        self._exit(code)  # an abort that returns must not leave this rank running

    def _speaks(self) -> bool:
        """True if this is the rank that prints: the first that fails, and of several at once the lowest."""
        try:
            return self._claim()
        except BaseException:  # MPI may be what failed, or Ctrl-C came twice: better twice than silent
            return True

    def _claim(self) -> bool:
        notices = self.notices
        notices.poll()
        silent = bool(notices.failed)
        if not silent:
            notices.announce(Notice.FAILED)
            until = time.monotonic() + (_TURN_SECONDS if self.rank else 0.0)
            while not silent and time.monotonic() < until:
                time.sleep(0.01)
                notices.poll()
                silent = any(rank < self.rank for rank in notices.failed)
        if silent:
            time.sleep(_SILENT_SECONDS)  # the rank that speaks ends this one long before that
        return True

    def _uncaught(self, kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        if issubclass(kind, KeyboardInterrupt):
            self.fail("interrupted (Ctrl-C)", code=130)
        try:
            first, _, _ = str(value).partition("\n")
            cause = f"{kind.__name__}: {first}" if first else kind.__name__
            cause += "".join(f" ({note})" for note in getattr(value, "__notes__", ()))  # the task
            detail = "".join(traceback.format_exception(kind, value, trace))
        except BaseException:  # out of memory, or an exception that cannot print itself
            cause, detail = kind.__name__, ""
        self.fail(cause, detail)

    def _exits(self, status: int) -> NoReturn:
        """Replacement of os._exit. A forked child (multiprocessing ends its workers so) is no rank, and simply ends."""
        if os.getpid() == self._process:
            self.fail(f"ended by os._exit({status}); end a rank by sys.exit instead", code=status or 1)
        self._exit(status)

    def _leave(self) -> None:
        """The program of this rank has ended: tell the others, and stay until theirs have ended too, without holding
        a core as MPI_Finalize would. No limit: another rank may still have an hour's work that needs nobody."""
        try:
            shown = getattr(sys, "last_value", None)
            if shown is not self._before and not hasattr(sys, "ps1"):
                # Somebody replaced our hook after us, and it has printed an exception that ended the program.
                self.fail(f"ended by {type(shown).__name__} (shown above)")
            for close in self._closers:
                close()
            self.notices.announce(Notice.LEFT)
            poll(self._all_left, Backoff(0.0, 100e-6, 10e-3), lambda waited: None, self._sleep)
            self.lifeline.say(LEFT)
        except BaseException as error:
            self._uncaught(type(error), error, error.__traceback__)

    def _all_left(self) -> bool:
        self.notices.poll()
        return len(self.notices.left) == self.size - 1 and self.notices.delivered()


def write_error(text: str) -> None:
    """Write to standard error in one piece, so that the lines of two ranks do not mix."""
    data = text.encode(errors="backslashreplace")
    try:
        while data:
            data = data[os.write(2, data) :]
    except OSError:  # nobody reads it
        pass


def _let_output_out() -> None:
    """Wait, at most a second or so, until mpirun has taken what this rank has written. On an abort it throws away what
    it has not forwarded yet (on a busy machine the message of one job in ten was lost)."""
    until = time.monotonic() + 1.0
    while time.monotonic() < until and any(_unread(stream) for stream in (1, 2)):
        time.sleep(0.01)
    time.sleep(_FORWARD_SECONDS)


def _unread(stream: int) -> int:
    """Bytes that lie in the pipe behind a file descriptor; 0 where that cannot be known."""
    try:
        import fcntl
        import termios

        return int.from_bytes(fcntl.ioctl(stream, termios.FIONREAD, bytes(4)), sys.byteorder)
    except (ImportError, OSError):
        return 0
