"""Segments: what MPICH, UCX and Intel's MPI keep in /dev/shm, how much a job needs there, and what is left of jobs that failed.

``watcher`` imports it without the package, so it imports nothing of taskflow.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterable

FOLDER = "/dev/shm"
_NAME = re.compile(r"(?:mpich_sh(?:m|ar)|ucx_shm_posix|Intel_MPI)_\w+")
_MAPPED = re.compile(rf"\S+-\S+ .{{4}} \S+ (\S+ \d+) +{FOLDER}/({_NAME.pattern})( \(deleted\))?")
_SETTLED_SECONDS = 5.0
"""After this long a segment that somebody has made is mapped, too."""
RANK_BYTES, LEAN_BYTES = 5_500_000, 1_100_000
"""What a rank takes of it in MPICH 5.0.2 over UCX (measured: 5.39 and 1.06 MB a rank with 2 to 16 ranks, x86-64), and where UCX
has its own part (``posix``) elsewhere."""


def space(parent: int) -> tuple[int, int] | None:
    """Return the free bytes of /dev/shm, with those that the children of a process have taken, and all; None where there is
    none."""
    with contextlib.suppress(OSError):
        found = os.statvfs(FOLDER)
        total = found.f_blocks * found.f_frsize
        return min(found.f_bavail * found.f_frsize + _taken(parent), total), total
    return None


def mapped(processes: Iterable[int]) -> set[str]:
    """Return the names of the segments that these processes map."""
    return {name for process in processes for _, name, _ in _maps(process)}


def remove(names: Iterable[str]) -> None:
    """Remove segments."""
    for name in names:
        with contextlib.suppress(OSError):
            os.unlink(f"{FOLDER}/{name}")


def remove_unmapped(names: Iterable[str]) -> None:
    """Remove those that no process maps."""
    if wanted := set(names):
        remove(wanted - mapped(int(name) for name in os.listdir("/proc") if name.isdigit()))


def left_behind() -> list[str]:
    """Return the names of this user's segments that may be of jobs that have ended: not made just now."""
    found = []
    with contextlib.suppress(OSError):
        for entry in os.scandir(FOLDER):
            with contextlib.suppress(OSError):
                about = entry.stat(follow_symlinks=False)
                old = time.time() - max(about.st_mtime, about.st_ctime) > _SETTLED_SECONDS
                if old and about.st_uid == os.getuid() and _NAME.fullmatch(entry.name):
                    found.append(entry.name)
    return found


def _taken(parent: int) -> int:
    """Bytes of the segments that the children of a process map."""
    sizes: dict[str, int] = {}
    for name in os.listdir("/proc") if parent else ():
        with contextlib.suppress(OSError, ValueError, IndexError):
            with open(f"/proc/{name}/stat", "rb") as file:
                if int(name) and int(file.read().rpartition(b")")[2].split()[1]) != parent:
                    continue
            for at, _, size in _maps(int(name)):
                sizes[at] = max(sizes.get(at, 0), size)
    return sum(sizes.values())


def _maps(process: int) -> list[tuple[str, str, int]]:
    """Where a segment is, its name and the bytes that a process maps of it."""
    found = []
    with contextlib.suppress(OSError), open(f"/proc/{process}/maps", encoding="utf-8", errors="replace") as file:
        for line in file:
            if (match := _MAPPED.match(line)) is not None:
                first, last = (int(end, 16) for end in line.split(" ", 1)[0].split("-"))
                found.append((match[1], match[2], last - first))
    return found
