"""DirectFile: a file that is written past the system's cache of files (O_DIRECT), where there is that.

The cache is of no use to a checkpoint, which goes to the disk at once and is hardly ever read. Its pages cost more processor time
than everything else about a checkpoint: they are found, cleared, filled and given back, while others train.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
from pathlib import Path
from types import TracebackType

_PAGE = 4096  # bytes: no device asks for more than that at once
_TOGETHER = 8 << 20  # bytes that are written at once: a disk's speed is reached long before
_DIRECT = getattr(os, "O_DIRECT", 0)  # only Linux has it


class DirectFile:
    """File ``path``, which must be there and empty, to be written from its begin to its end. A context manager. All of its methods
    raise OSError; where the file system (one in memory, say) does not write directly, it is written as any other file."""

    def __init__(self, path: str | Path) -> None:
        self._file = os.open(path, os.O_WRONLY)
        self._direct = _made_direct(self._file)
        self._room = mmap.mmap(-1, _TOGETHER)  # begins at a page, as a direct write must
        self._used = 0

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes; a part of them stays here until there are enough, or the file is closed."""
        rest = memoryview(data)
        while rest:
            count = min(len(rest), _TOGETHER - self._used)
            self._room[self._used : self._used + count] = rest[:count]
            self._used, rest = self._used + count, rest[count:]
            if self._used == _TOGETHER:
                self._flush()

    def __enter__(self) -> DirectFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Write what is left, unless an error ends the block."""
        try:
            if kind is None:
                self._flush()
        finally:
            os.close(self._file)
            self._room.close()

    def _flush(self) -> None:
        """Write all that is here; the end of a file is seldom a whole page."""
        with memoryview(self._room) as room:
            whole = self._used // _PAGE * _PAGE if self._direct else 0
            done = 0
            if whole:
                try:
                    done = os.write(self._file, room[:whole])
                except OSError as failure:
                    if failure.errno != errno.EINVAL:  # it says so of a file system that took O_DIRECT and cannot do it
                        raise
            if self._direct and done < self._used:
                self._buffered()
            while done < self._used:
                done += os.write(self._file, room[done : self._used])
        self._used = 0

    def _buffered(self) -> None:
        """From here on as any other file: after the last whole page, and after a part that did not go to the disk."""
        fcntl.fcntl(self._file, fcntl.F_SETFL, fcntl.fcntl(self._file, fcntl.F_GETFL) & ~_DIRECT)
        self._direct = False


def _made_direct(file: int) -> bool:
    """Let an open file be written directly; False if it is none of a disk (a pipe would be cut into packets) or cannot be."""
    if not _DIRECT or not stat.S_ISREG(os.fstat(file).st_mode):
        return False
    try:
        fcntl.fcntl(file, fcntl.F_SETFL, fcntl.fcntl(file, fcntl.F_GETFL) | _DIRECT)
    except OSError:
        return False
    return True
