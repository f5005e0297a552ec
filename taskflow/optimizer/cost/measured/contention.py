"""ContendingProcesses: other processes that run what is being measured at the same time, as the other ranks of a step do.

Cores share memory bandwidth and the last-level cache. So a task takes longer while the other cores work: twice as long if it
streams from memory, no longer if it stays in its core's cache (benchmarks/company.py, on two cores).
"""

from __future__ import annotations

import os
import pickle
import select
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import cycle
from typing import IO, Any

from taskflow.kernels import KernelSet, kernels_on

COPIES = 4  # of the work's arrays that a process takes in turn, so that it does not find them in its caches
RUNNING, CANNOT = b"r", b"c"

Make = Callable[[], tuple[Callable[[], object], Sequence[Any]]]


class OwnKernels:
    """Placeholder for the kernel set in what is sent to a process, which makes its own."""


# A Ctrl-C goes to all that run on a terminal; these end when this process closes their input.
PROGRAM = f"import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); from {__name__} import main; main()"
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class ContendingProcesses:
    """Group of ``count`` processes, with ``threads`` each (None: as this process's environment says). They start when they are
    first needed and end with this process."""

    def __init__(self, count: int, threads: int | None = None) -> None:
        if count < 0:
            raise ValueError(f"ContendingProcesses: count must be at least 0, got {count}")
        self.count = count
        self._threads = dict.fromkeys(THREADS, str(threads)) if threads is not None else {}
        self._processes: list[subprocess.Popen[bytes]] = []

    @contextmanager
    def beside(self, make: partial[Any]) -> Iterator[list[int]]:
        """Let every process run, within the block and again and again, the action that ``make`` (a call with pickleable
        arguments and a kernel set) makes. Yields a list that afterwards holds how often each ran it; it is empty if the action
        cannot be sent, for instance because its operator is defined in the main program."""
        runs: list[int] = []
        try:
            request = pickle.dumps((make.func, tuple(_without_kernels(a) for a in make.args), make.keywords))
        except (pickle.PicklingError, AttributeError, TypeError):
            yield runs
            return
        with self._in_order():
            while len(self._processes) < self.count:
                self._processes.append(subprocess.Popen(
                    [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                    env={**os.environ, **self._threads, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                ))
            for process in self._processes:
                _send(process.stdin, request)
            busy = [process for process in self._processes if _answer(process, 1) == RUNNING]
        try:
            yield runs
        finally:
            with self._in_order():
                for process in busy:
                    _send(process.stdin, b"")
                runs += [struct.unpack("<q", _answer(process, 8))[0] for process in busy]

    @contextmanager
    def _in_order(self) -> Iterator[None]:
        """Keep messages to the processes in order. If a Ctrl-C or a fault interrupts one, nobody knows what the processes send
        next: so they are ended, and the next measurement starts others."""
        try:
            yield
        except BaseException:
            for process in self._processes:
                process.kill()
            self.close()
            raise

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            assert process.stdin is not None and process.stdout is not None
            with suppress(OSError):  # what is still to be written to a process that has ended
                process.stdin.close()
            process.wait()
            process.stdout.close()
        self._processes.clear()


def _without_kernels(argument: Any) -> Any:
    return OwnKernels() if isinstance(argument, KernelSet) else argument


def _send(pipe: IO[bytes] | None, message: bytes) -> None:
    assert pipe is not None
    pipe.write(struct.pack("<q", len(message)) + message)
    pipe.flush()


def _answer(process: subprocess.Popen[bytes], size: int) -> bytes:
    assert process.stdout is not None
    answer = process.stdout.read(size)
    if len(answer) < size:
        raise RuntimeError(f"measured costs: a process that works beside the measured one ended with {process.wait()}")
    return answer


def _receive() -> bytes | None:
    """The next message; None at the end of the input. Unbuffered, so that `select` sees what there is."""
    def read(size: int) -> bytes:
        parts = b""
        while len(parts) < size and (part := os.read(0, size - len(parts))):
            parts += part
        return parts

    head = read(8)
    return read(struct.unpack("<q", head)[0]) if len(head) == 8 else None


def _work(kernels: KernelSet, request: bytes, out: int) -> None:
    """Run what is asked for until the next message."""
    try:
        function, arguments, keywords = pickle.loads(request)
        result = [
            function(*(kernels if isinstance(a, OwnKernels) else a for a in arguments), **keywords)[0] for _ in range(COPIES)
        ]
        for action in result:
            action()
    except Exception:  # whatever the operator raises: the measuring process raises it too
        os.write(out, CANNOT)
        return
    os.write(out, RUNNING)
    runs = 0
    for action in cycle(result):
        action()
        runs += 1
        if select.select([0], [], [], 0)[0]:
            break
    if _receive() is not None:
        os.write(out, struct.pack("<q", runs))


def main() -> None:
    """Run the load of one process."""
    with suppress(OSError, AttributeError):  # a rank that is bound to a core must not keep its company there
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    out = os.dup(1)
    os.dup2(2, 1)  # nothing else may be written to where answers go
    kernels = kernels_on("cpu")
    while (request := _receive()) is not None:
        _work(kernels, request, out)
