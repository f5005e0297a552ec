"""How a process that is no child has ended, in words, and which process has started the ranks. Linux only."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import sys

_PIDFD_GET_INFO = 0xC040FF0B
"""_IOWR(0xFF, 11, 64 bytes), Linux 6.13; the exit status (last 4 of those bytes) since 6.15."""
_PIDFD_INFO_EXIT = 1 << 3
_PIDFD_GETFD = 438
"""The number of this system call on every architecture; Linux 5.6."""
_EXITING = 0x4
"""PF_EXITING of a process's flags, set before its files close."""


def stat_fields(process: int) -> list[str]:
    """Return the words of /proc/PID/stat behind the name: state, parent, ...; the 20th is the time of the start. Raises OSError if
    there is no such process."""
    with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(")")[2].split()


def wait_status(handle: int | None, process: int) -> int | None:
    """Return the wait status of a process that has ended and is not a child; None if the kernel does not tell."""
    with contextlib.suppress(OSError, ValueError):
        fields = stat_fields(process)
        if fields[0] in ("Z", "X"):  # nobody has waited for it yet
            return int(fields[-1])
    if handle is None:
        return None
    with contextlib.suppress(OSError):
        import fcntl

        info = bytearray(_PIDFD_INFO_EXIT.to_bytes(8, sys.byteorder).ljust(64, b"\0"))
        fcntl.ioctl(handle, _PIDFD_GET_INFO, info)
        if int.from_bytes(info[:8], sys.byteorder) & _PIDFD_INFO_EXIT:
            return int.from_bytes(info[60:], sys.byteorder)
    return None


def cause_of(status: int | None, kills: int) -> str:
    """Return the cause of an end in words; ``kills``: the number of processes that the kernel has killed for lack of memory since
    the job began."""
    memory = f"; the kernel has killed {kills} on this machine for want of memory since the job began" if kills > 0 else ""
    if status is None:
        return f"ended without a word: kill -9, out of memory, or a crash in C{memory}"
    number = status & 0x7F
    if not number:
        return f"ended by _exit({status >> 8}) in C, without leaving the program"
    name = signal.Signals(number).name if number in set(signal.Signals) else "?"
    if number == signal.SIGTERM:
        return "told to end by signal 15 (SIGTERM), maybe with all ranks, as by mpirun or a batch system"
    return f"killed by signal {number} ({name}){memory if number == signal.SIGKILL else ''}"


def out_of_memory_kills() -> int:
    """Return how many processes the kernel has killed for lack of memory since it began."""
    with contextlib.suppress(OSError, ValueError), open("/proc/vmstat", encoding="ascii") as file:
        return next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), 0)
    return 0


def is_ending(process: int) -> bool:
    """True if a process is about to end or has ended."""
    try:
        return bool(int(stat_fields(process)[6]) & _EXITING)
    except OSError:
        return True


def mpirun_above(process: int, proxy: bool = False) -> tuple[int, int, int] | None:
    """Return mpirun's process, a handle on it and its standard error, if it runs on this node and that can be written. ``process``:
    a rank, or (``proxy``) what mpirun has started to start the ranks of this node."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for _ in range(1 if proxy else 2):
            process = int(stat_fields(process)[1])
        with open(f"/proc/{process}/comm", encoding="utf-8") as file:
            if file.read().startswith(("mpirun", "mpiexec")):
                handle = os.pidfd_open(process)
                return process, handle, _standard_error(process, handle)
    return None


def _standard_error(process: int, handle: int) -> int:
    """Return a file that writes where a process's standard error goes. Of a file on disk it is the same open file where that is
    allowed: another one has a place of its own, so that who writes after us, as the shell of a batch script, would overwrite it."""
    path = f"/proc/{process}/fd/2"
    if stat.S_ISREG(os.stat(path).st_mode):
        import ctypes

        same: int = ctypes.CDLL(None).syscall(_PIDFD_GETFD, handle, 2, 0)
        if same >= 0:
            return same
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOCTTY)
