"""Shared memory: arrays that several ranks of one machine share, without a name in any file system.

The lowest rank of those that share an array makes a file in memory (memfd_create(2)). The others open it through that process's
file descriptors in /proc. It vanishes with the last process that has mapped it, however that process ends. Where a rank cannot
open it (on another machine or container, or another system than Linux), nothing is shared.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from taskflow.runtime.job import node_key
from taskflow.runtime.transport import Transport

PAGE = 2 << 20  # bytes; large pages, which need fewer entries in the processor's table of them
_MARK_BYTES = 32


@dataclass(frozen=True, slots=True)
class SharedArray:
    """An array (length,) that ``ranks`` want to share; ``key`` is its name on all of them."""

    key: str
    length: int
    dtype: np.dtype[Any]
    ranks: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return self.length * self.dtype.itemsize

    @property
    def maker(self) -> int:
        return min(self.ranks)


def common_arrays(wanted: Sequence[SharedArray], transport: Transport) -> dict[str, np.ndarray[Any, Any] | None]:
    """Return by key the arrays that ranks now share, filled with zeros; None for arrays of other ranks. Collective: every rank
    calls it with the same ``wanted`` and gets the same keys."""
    places = _everywhere(transport, node_key() if hasattr(os, "memfd_create") else None)
    one_machine = [w for w in wanted if places[w.maker] is not None and len({places[r] for r in w.ranks}) == 1]
    if not one_machine:
        return {}
    offsets = _offsets(one_machine)
    result = _make(one_machine, offsets, transport.rank)
    where = _everywhere(transport, None if result is None else (os.getpid(), result[0], result[1]))
    mine = [w for w in one_machine if transport.rank in w.ranks]
    found = {maker: _map(where[maker]) for maker in {w.maker for w in mine}}
    everybody = all(_everywhere(transport, all(memory is not None for memory in found.values())))
    if result is not None:
        os.close(result[0])  # by now the others have opened it, or failed to
    if not everybody:
        return {}
    return {w.key: _carve(found[w.maker], offsets[w.key], w) if w in mine else None for w in one_machine}


def _everywhere(transport: Transport, value: Any) -> list[Any]:
    """The value of every rank, on every rank."""
    found: list[Any] = transport.broadcast(transport.gather(value))
    return found


def _offsets(wanted: Sequence[SharedArray]) -> dict[str, int]:
    """Offset of each array in its maker's file, after the mark."""
    ends: dict[int, int] = {}
    offsets = {}
    for each in wanted:
        offsets[each.key] = ends.get(each.maker, PAGE)
        ends[each.maker] = offsets[each.key] + -(-each.nbytes // PAGE) * PAGE
    return offsets


def _make(wanted: Sequence[SharedArray], offsets: Mapping[str, int], rank: int) -> tuple[int, bytes] | None:
    """The file of this rank and the mark at its beginning; None if it makes none, or cannot."""
    ends = [offsets[w.key] + w.nbytes for w in wanted if w.maker == rank]
    if not ends:
        return None
    mark = os.urandom(_MARK_BYTES)
    try:
        file = os.memfd_create("taskflow weights")
    except OSError:
        return None
    try:
        os.ftruncate(file, max(ends))
        os.pwrite(file, mark, 0)
    except OSError:
        os.close(file)
        return None
    return file, mark


def _map(where: tuple[int, int, bytes] | None) -> mmap.mmap | None:
    """The file that a process has told of, as memory; None if this is not it, or it cannot be opened."""
    if where is None:
        return None
    process, number, mark = where
    try:
        file = os.open(f"/proc/{process}/fd/{number}", os.O_RDWR)
    except OSError:
        return None
    try:
        memory = mmap.mmap(file, os.fstat(file).st_size)
    except (OSError, ValueError):
        return None
    finally:
        os.close(file)
    if memory[:_MARK_BYTES] != mark:
        return None
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without: smaller pages do
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def _carve(memory: Any, offset: int, wanted: SharedArray) -> np.ndarray[Any, Any]:
    return np.frombuffer(memory, wanted.dtype, wanted.length, offset)
