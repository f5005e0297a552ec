"""NCCL's communicators without GPUs: what they move goes through files, and they wait for each other as NCCL's streams do.

A send is over when its receiver has taken it, a receive when it is there, a sum when all have come: so ranks that start their
messages in different orders stand still here, as they would there.
"""

from __future__ import annotations

import ctypes
import itertools
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np

NCCL_UINT8, NCCL_FLOAT32, NCCL_FLOAT64, NCCL_SUM = range(4)
TYPES = {NCCL_UINT8: np.uint8, NCCL_FLOAT32: np.float32, NCCL_FLOAT64: np.float64}
LIMIT_SECONDS = 40


def get_unique_id() -> str:
    return tempfile.mkdtemp(prefix="fake-nccl")


class NcclCommunicator:
    def __init__(self, size: int, identity: str, rank: int) -> None:
        self.size, self.rank, self.folder = size, rank, Path(identity)
        self.numbers: dict[str, itertools.count[int]] = {}
        self.calls = 0

    def send(self, pointer: int, count: int, kind: int, peer: int, stream: int) -> None:
        path = self._next(f"{self.rank} to {peer}")
        self._put(path, self._array(pointer, count, kind))
        self._until(lambda: not path.exists(), f"send to {peer}")

    def recv(self, pointer: int, count: int, kind: int, peer: int, stream: int) -> None:
        path = self._next(f"{peer} to {self.rank}")
        self._until(path.exists, f"receive from {peer}")
        self._array(pointer, count, kind)[:] = np.load(path)
        path.unlink()

    def allReduce(self, source: int, target: int, count: int, kind: int, operation: int, stream: int) -> None:
        assert operation == NCCL_SUM and kind in (NCCL_FLOAT32, NCCL_FLOAT64)
        base = self._next("sum")
        paths = [base.with_name(f"{base.name} of {rank}") for rank in range(self.size)]
        self._put(paths[self.rank], self._array(source, count, kind))
        self._until(lambda: all(path.exists() for path in paths), "sum")
        self._array(target, count, kind)[:] = sum(np.load(path) for path in paths)

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
