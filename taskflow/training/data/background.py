"""Background: processes beside a rank that prepare samples while it computes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Job = Callable[[], Array]
"""Makes one sample. With processes it is sent to them, so it must be picklable: a partial of a module's function."""


class Background:
    """Pool of ``count`` processes, started with the first job. With 0, jobs run in this process when their result is asked for.

    They are spawned rather than forked, since forking a process in which MPI runs is not safe. They end with this process, even
    if it is killed.
    """

    def __init__(self, count: int) -> None:
        if count < 0:
            raise ValueError(f"Background: the number of processes must be 0 or more, got {count}")
        self.count = count
        self._pool: ProcessPoolExecutor | None = None

    def start(self, jobs: Sequence[Job]) -> Callable[[], list[Array]]:
        """Start the jobs. Returns a function that waits for them and returns their results in order. It raises what a job
        raises, and RuntimeError if a process died."""
        if not self.count:
            return lambda: [job() for job in jobs]
        if self._pool is None:
            self._pool = ProcessPoolExecutor(self.count, multiprocessing.get_context("spawn"), _begin)
        # Enough parts that all processes have work, not so small that sending them is most of it.
        size = max(1, min(16, -(-len(jobs) // self.count)))
        pending = [self._pool.submit(_all, jobs[i : i + size]) for i in range(0, len(jobs), size)]
        return lambda: _results(pending)

    def close(self) -> None:
        """End the processes; jobs that have not begun are dropped. Safe to call twice."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None


def _results(pending: Sequence[Future[list[Array]]]) -> list[Array]:
    try:
        return [array for future in pending for array in future.result()]
    except BrokenProcessPool as error:
        raise RuntimeError(
            "a background process that makes samples has died, perhaps for want of memory; use fewer of them"
        ) from error


def _all(jobs: Sequence[Job]) -> list[Array]:
    return [job() for job in jobs]


def _begin() -> None:
    """First thing in a new process: Ctrl-C is the rank's business, and nobody may outlive the rank."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
