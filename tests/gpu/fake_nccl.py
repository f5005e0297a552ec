"""NCCL's communicators without GPUs: what they move goes through files, and they wait for each other as NCCL's streams do.

A send is over when its receiver has taken it, a receive when it is there, a sum when all have come: so ranks that start their
messages in different orders stand still here, as they would there.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np

NCCL_UINT8, NCCL_FLOAT32, NCCL_FLOAT64, NCCL_SUM = range(4)
TYPES = {NCCL_UINT8: np.uint8, NCCL_FLOAT32: np.float32, NCCL_FLOAT64: np.float64}
LIMIT_SECONDS = 120


def get_unique_id() -> str:
    return tempfile.mkdtemp(dir=os.environ["FAKE_NCCL_FOLDER"])


_group: list[tuple[Callable[[], Callable[[], None] | None], bool]] | None = None  # whether it sends


def groupStart() -> None:
    global _group
    assert _group is None
    _group = []


def groupEnd() -> None:
    """Until here nothing of the group begins."""
    global _group
    assert _group is not None, "ncclGroupEnd without ncclGroupStart"
    calls, _group = _group, None
    # NCCL runs them together: what one receives may wait for what this rank sends.
    first, rest = ([call for call, sends in calls if sends == which] for which in (True, False))
    ends = [call() for call in first]
    for call in [*rest, *ends]:
        if call is not None:
            call()


def grouped(call: Callable[..., Callable[[], None] | None]) -> Callable[..., None]:
    """What waits in a group; what it returns waits for its end."""

    @functools.wraps(call)
    def ask(*arguments: object) -> None:
        if _group is not None:
            _group.append((functools.partial(call, *arguments), call.__name__ == "send"))
        elif (end := call(*arguments)) is not None:
            end()

    return ask


class NcclCommunicator:
    def __init__(self, size: int, identity: str, rank: int) -> None:
        self.size, self.rank, self.folder = size, rank, Path(identity)
        self.numbers: dict[str, itertools.count[int]] = {}
        self.calls = 0

    @grouped
    def send(self, pointer: int, count: int, kind: int, peer: int, stream: int) -> Callable[[], None]:
        path = self._next(f"{self.rank} to {peer}")
        self._put(path, self._array(pointer, count, kind))
        return lambda: self._until(lambda: not path.exists(), f"send to {peer}")

    @grouped
    def recv(self, pointer: int, count: int, kind: int, peer: int, stream: int) -> None:
        path = self._next(f"{peer} to {self.rank}")
        self._until(path.exists, f"receive from {peer}")
        self._array(pointer, count, kind)[:] = np.load(path)
        path.unlink()

    @grouped
    def allReduce(self, source: int, target: int, count: int, kind: int, operation: int, stream: int) -> None:
        assert operation == NCCL_SUM and kind in (NCCL_FLOAT32, NCCL_FLOAT64)
        self._array(target, count, kind)[:] = sum(self._everybodys("sum", self._array(source, count, kind)))

    @grouped
    def reduceScatter(self, source: int, target: int, count: int, kind: int, operation: int, stream: int) -> None:
        """Equal shares; in place if the target is the rank's share of the source, and else nothing may overlap."""
        assert operation == NCCL_SUM and kind in (NCCL_FLOAT32, NCCL_FLOAT64)
        self._apart(source, self.size * count, target, count, kind)
        sums = sum(self._everybodys("scatter", self._array(source, self.size * count, kind)))
        self._array(target, count, kind)[:] = sums[self.rank * count : (self.rank + 1) * count]  # type: ignore[index]

    @grouped
    def allGather(self, source: int, target: int, count: int, kind: int, stream: int) -> None:
        assert kind in TYPES
        self._apart(target, self.size * count, source, count, kind)
        found = self._everybodys("gather", self._array(source, count, kind))
        assert {len(share) for share in found} == {count}
        self._array(target, self.size * count, kind)[:] = np.concatenate(found)

    @grouped
    def reduce(self, source: int, target: int, count: int, kind: int, operation: int, root: int, stream: int) -> None:
        """Only the root's target is written."""
        assert operation == NCCL_SUM and kind in (NCCL_FLOAT32, NCCL_FLOAT64) and 0 <= root < self.size
        total = sum(self._everybodys("reduce", self._array(source, count, kind)))
        if self.rank == root:
            self._array(target, count, kind)[:] = total

    @grouped
    def broadcast(self, source: int, target: int, count: int, kind: int, root: int, stream: int) -> None:
        """Only the root's source is read."""
        assert kind in TYPES and 0 <= root < self.size and count < 1 << 31  # CuPy's is an int
        path = self._next(f"broadcast of {root}")
        if self.rank == root:
            self._put(path, self._array(source, count, kind))
        self._until(path.exists, "broadcast")
        self._array(target, count, kind)[:] = np.load(path)

    def _everybodys(self, what: str, mine: np.ndarray) -> list[np.ndarray]:
        base = self._next(what)
        paths = [base.with_name(f"{base.name} of {rank}") for rank in range(self.size)]
        self._put(paths[self.rank], mine)
        self._until(lambda: all(path.exists() for path in paths), what)
        return [np.load(path) for path in paths]

    def _apart(self, whole: int, many: int, share: int, count: int, kind: int) -> None:
        """NCCL's rule for working in place."""
        size = np.dtype(TYPES[kind]).itemsize
        in_place = share == whole + self.rank * count * size
        assert in_place or share + count * size <= whole or whole + many * size <= share, "buffers overlap"

    def check_async_error(self) -> None:
        pass

    def destroy(self) -> None:
        pass

    def _next(self, what: str) -> Path:
        self.calls += 1
        return self.folder / f"{what} {next(self.numbers.setdefault(what, itertools.count()))}.npy"

    def _put(self, path: Path, array: np.ndarray) -> None:
        part = path.with_name(f"part {path.name}")
        with part.open("wb") as file:
            np.save(file, array)
        part.rename(path)

    def _until(self, done: object, what: str) -> None:
        until = time.monotonic() + LIMIT_SECONDS
        while not done():  # type: ignore[operator]
            if time.monotonic() > until:
                raise RuntimeError(f"fake NCCL, rank {self.rank} of {self.size}: {what} never ends")
            time.sleep(2e-4)

    def _array(self, pointer: int, count: int, kind: int) -> np.ndarray:
        dtype = np.dtype(TYPES[kind])
        return np.frombuffer((ctypes.c_char * (count * dtype.itemsize)).from_address(pointer), dtype)


def install(device: object) -> None:
    """Make ``cupy.cuda.nccl`` this module, and give a `HostDevice` what NCCLTransport asks of a GPU's."""
    nccl = sys.modules[__name__]
    cuda = ModuleType("cupy.cuda")
    cuda.nccl = nccl  # type: ignore[attr-defined]
    cupy = ModuleType("cupy")
    cupy.cuda = cuda  # type: ignore[attr-defined]
    sys.modules.update({"cupy": cupy, "cupy.cuda": cuda, "cupy.cuda.nccl": nccl})
    kind = type(device)
    kind.nccl_version = 23203  # type: ignore[attr-defined]
    kind.transfer = SimpleNamespace(ptr=0)  # type: ignore[attr-defined]
    kind.follow = lambda self, stream: None  # type: ignore[attr-defined]
    kind.compute_after = lambda self, event: None  # type: ignore[attr-defined]
