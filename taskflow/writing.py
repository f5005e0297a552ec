"""Writing of files and JSON: readers see no file, the old one or the complete new one, and only valid JSON.

A new file is written beside the old one under a name of this process, reaches the disk, and only then takes its place.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from zlib import crc32

_ROOM = 85  # bytes of what is added to a name while a file is written, at most


@contextmanager
def replacing(path: str | Path, lasting: bool = True) -> Iterator[Path]:
    """Return the name of a file to write beside ``path``, which replaces ``path`` when the block ends; ``lasting``: only after it
    has reached the disk.

    If an error ends the block, the old file is unchanged and nothing is left beside it. What killed processes of this host have
    left there is removed. Behind a link, the file that it leads to is replaced; a device or a pipe is written itself. An OSError
    that names no file (a full disk names none) gets the name of this one.
    """
    target = Path(os.path.realpath(path))
    fresh = target if _is_device(target) else beside(target)
    try:
        if fresh == target:
            yield target
            return
        _sweep(target)
        with _held(fresh) as file:
            yield fresh
            if lasting:
                os.fsync(file)
            os.replace(fresh, target)
        if lasting:
            _flush(target.parent)
    except OSError as error:
        if error.errno is None or error.filename not in (None, str(fresh)):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        if fresh != target:
            with suppress(OSError):
                fresh.unlink()


def beside(path: Path) -> Path:
    """Return the name of the file that is written first: ``FILE.HOST.PID.tmp``; a thread has a PID of its own."""
    return path.with_name(f"{_stem(path)}.{_host()}.{threading.get_native_id()}.tmp")


def unwritable(path: str | Path) -> str | None:
    """Return why no file of this name can be written here; None if one can. Asked before the work, so that nobody waits for a
    result that cannot be saved."""
    if not str(path):
        return "the name is empty"
    real = Path(os.path.realpath(path))
    try:
        if real.is_dir():
            return "it is a folder; give the name of a file"
        if not real.parent.is_dir() or not os.access(real if _is_device(real) else real.parent, os.W_OK):
            return f"there is no folder {Path(path).absolute().parent} in which you may write"
        beside(real).exists()
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            return error.strerror
        size = len(os.fsencode(Path(path).name))
        return f"{error.strerror}: {size} bytes; most file systems take 255, and 4095 with the folders (less {_ROOM} of ours)"
    return None


def _stem(path: Path) -> str:
    """How the names of the files begin that are written before ``path``; a short text in place of a name that is too long."""
    longest = len(os.fsencode(f"{path.name}.{_host()}")) + len(".4194304.tmp")  # the largest PID of Linux
    return path.name if longest <= os.pathconf(path.parent, "PC_NAME_MAX") else f"{crc32(os.fsencode(path.name)):08x}"


def _host() -> str:
    return re.sub(r"[^\w-]", "-", os.uname().nodename, flags=re.ASCII)


def _is_device(path: Path) -> bool:
    return path.exists() and not path.is_file() and not path.is_dir()


@contextmanager
def _held(path: Path) -> Iterator[int]:
    """A new file, locked until the block ends: PIDs do not tell who lives in another container."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield file
    finally:
        os.close(file)


def _sweep(target: Path) -> None:
    """Remove what dead processes of this host have left beside a file. Older names have no host."""
    left = re.compile(rf"{re.escape(_stem(target))}\.(?:{re.escape(_host())}\.)?(\d+)\.tmp")
    with suppress(OSError):
        for name in os.listdir(target.parent):
            if (found := left.fullmatch(name)) and not _lives(int(found[1])):
                _remove_if_free(target.with_name(name))


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # somebody else's
        return True
    return True


def _remove_if_free(path: Path) -> None:
    with suppress(OSError), open(path, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()


def _flush(folder: Path) -> None:
    """Let a new name reach the disk, where the file system can do that for a folder."""
    with suppress(OSError):
        file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(file)
        finally:
            os.close(file)


def json_text(value: Any, indent: int | None = None, packed: bool = False) -> str:
    """Return ``value`` as JSON; ``packed``: without spaces. Raises ValueError if a number in it is not finite, since JSON has
    neither NaN nor Infinity."""
    return json.dumps(value, indent=indent, separators=(",", ":") if packed else None, allow_nan=False)


def one_line(error: Exception) -> str:
    """Return an error's text on one line; for an error of the system, in words and with the file's name; for a lack
    of memory, that it is one."""
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, MemoryError):
        text = f"not enough memory on this machine{f': {text}' if text else ''}"
    return " ".join(text.split())


def path_text(path: str) -> str:
    """Return a path as a file's text says it, the same under every locale; `taskflow.reading.path_here` turns it back. A byte
    that is not UTF-8 is half of a surrogate pair, as PEP 383 has it."""
    with suppress(UnicodeEncodeError):  # no path of this locale
        return os.fsencode(path).decode("utf-8", "surrogateescape")
    return path


def shown(path: str) -> str:
    """Return a path, or a part of one, as a name that can be printed: bytes that are not UTF-8 are replaced."""
    return path_text(path).encode("utf-8", "surrogateescape").decode("utf-8", "replace")
