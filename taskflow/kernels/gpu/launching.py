"""Launching: what the GPU's kernel sets share: how one of the compiled kernels is called on arrays."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from taskflow.kernels.device import ArrayDevice
from taskflow.kernels.gpu.gemm import ColumnMajor, column_major, plan
from taskflow.kernels.kernel_set import Array, KernelSet

THREADS = 256  # of a block; MOST_THREADS in base.cu
MOST_BLOCKS = 4096
NULL = np.uint64(0)
Numbers = Callable[[float, int], Sequence[float]]
"""What changes from step to step, of its learning rate and its number from 0."""


class LaunchingDevice(ArrayDevice):
    """A device that runs the kernels of the .cu files of this room, and products of matrices."""

    __slots__ = ()
    waits = False
    precision: str = "fp32"
    """How float32 multiplies: fp32, tf32 or bf16."""

    @abstractmethod
    def launch(self, dtype: np.dtype[Any], name: str, blocks: int, arguments: tuple[Any, ...]) -> None:
        """Run kernel ``name``, compiled for arrays of ``dtype``, in so many blocks. Arguments: arrays, and numpy scalars of
        just the types that the kernel declares."""

    @abstractmethod
    def compile(self, dtype: np.dtype[Any]) -> int:
        """Compile every kernel for arrays of ``dtype`` now, not when the first of them is launched; how many there are."""

    @abstractmethod
    def gemm(self, call: ColumnMajor, first: Array, second: Array, out: Array, accumulate: bool) -> None:
        """cublasGemmStridedBatchedEx on the memory of the arrays; operands in uint16 are bfloat16s."""

    # ---- copies beside the kernels: each returns an event, whose ``done`` says whether it has come to pass ------------
    @abstractmethod
    def pinned(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """An array on the host that the device can copy from and to by itself."""

    @abstractmethod
    def copy_out(self, array: Array, staging: np.ndarray[Any, Any]) -> Any:
        """Copy to pinned memory, after all that was asked for so far."""

    @abstractmethod
    def copy_in(self, staging: np.ndarray[Any, Any], array: Array, after: Any) -> Any:
        """Copy from pinned memory when the event ``after`` has come to pass; what is asked for from now on waits for it."""

    @abstractmethod
    def mark(self, stream: Any = None) -> Any:
        """The event that all that was asked for so far is done."""

    @abstractmethod
    def wait_for(self, event: Any) -> None:
        """Return when an event has come to pass."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """A name that no other device of the job has."""

    @property
    @abstractmethod
    def facts(self) -> dict[str, int]:
        """``memory_bytes``, ``multiprocessors`` and ``cache_bytes`` of the card."""

    @property
    @abstractmethod
    def libraries(self) -> dict[str, str]:
        """Everything beside the card that times depend on, with its version."""

    def dial(self, key: Hashable, numbers: Numbers) -> Any:
        """Where a kernel finds ``numbers`` of each step, as float64, while a step is being recorded; else NULL. Equal keys stand
        for equal numbers."""
        return NULL

    @property
    def nccl_version(self) -> int:
        """NCCL's version as it counts; 0 if there is none."""
        return 0

    def multiply(self, a: Array, b: Array, out: Array, accumulate: bool) -> None:
        """As `KernelSet.matmul`; operands that lie as no call can read them are copied first."""
        known = plan(*_lies(a), *_lies(b), *_lies(out))
        if known is None:
            dense = self.xp.ascontiguousarray
            into = out if out.flags.c_contiguous else dense(out)
            self.multiply(dense(a), dense(b), into, accumulate)
            if into is not out:
                out[...] = into
        elif known.inner == 0:
            if not accumulate:
                out.fill(0)
        elif out.size:
            self.gemm(column_major(known), b, a, out, accumulate)


class Launching(KernelSet):
    """Calls kernels with as many blocks as their work needs."""

    __slots__ = ("_constants", "device")
    device: LaunchingDevice

    def __init__(self, device: LaunchingDevice) -> None:
        self.device = device
        self._constants: dict[Hashable, Array] = {}

    def constant(self, key: Hashable, make: Callable[[], np.ndarray[Any, Any]]) -> Array:
        found = self._constants.get(key)
        if found is None:
            host = make()
            found = self._constants[key] = self.xp.empty(host.shape, host.dtype)
            self.device.upload(host, found)
        return found

    def _each(self, of: Array, name: str, count: int, *arguments: Any) -> None:
        """A thread for each of ``count``."""
        if count:
            self.device.launch(of.dtype, name, min(-(-count // THREADS), MOST_BLOCKS), arguments)

    def _blocks(self, of: Array, name: str, count: int, *arguments: Any) -> None:
        """A block for each of ``count``."""
        if count:
            self.device.launch(of.dtype, name, min(count, 1 << 16), arguments)

    def _dense(self, x: Array) -> Array:
        """``x`` as one run of memory."""
        return x if x.flags.c_contiguous else self.xp.ascontiguousarray(x)

    def _integers(self, x: Array) -> Array:
        """Integers of any type as int64."""
        return self._dense(x if x.dtype == np.int64 else x.astype(np.int64))


def _lies(array: Array) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides, in elements."""
    return tuple(array.shape), tuple(stride // array.dtype.itemsize for stride in array.strides)


def whole(value: int) -> np.int64:
    """An Int argument."""
    return np.int64(value)


def flag(value: int) -> np.int32:
    """An int argument; a bool counts as 0 or 1."""
    return np.int32(value)


def factor(scale: Any) -> tuple[np.float64, Array]:
    """A scale that may be an array of one element: the number, and where on the device what it is multiplied with lies."""
    if isinstance(scale, (int, float)):
        return np.float64(scale), NULL
    return np.float64(1), scale if scale.dtype == np.float64 else scale.astype(np.float64)


def parts_of(rows: int, columns: int) -> int:
    """Into how many parts the rows of a sum go, so that there is work for many threads: it depends on the shape alone."""
    return max(1, min(rows // 32, (1 << 15) // max(columns, 1)))


def check_output(who: str, out: Array) -> None:
    """ValueError unless ``out`` is one run of memory."""
    if not out.flags.c_contiguous:
        raise ValueError(f"{who}: out must be C-contiguous, got shape {out.shape}, strides {out.strides}")
