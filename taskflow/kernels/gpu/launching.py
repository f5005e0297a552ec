"""Launching: how the GPU's kernel sets call a compiled kernel on arrays."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from taskflow.kernels.definitions import put
from taskflow.kernels.device import ArrayDevice, Numbers
from taskflow.kernels.gpu.gemm import ColumnMajor, column_major, plan
from taskflow.kernels.gpu.step_scalars import StepScalars
from taskflow.kernels.kernel_set import Array, KernelSet

THREADS = 256  # of a block; MOST_THREADS in base.cu
MOST_BLOCKS = 4096
MANY_BLOCKS = 512  # enough to keep any GPU busy
NULL = np.uint64(0)


class LaunchingDevice(ArrayDevice):
    """Device that runs the kernels of this package's .cu files, and matrix products."""

    __slots__ = ()
    waits = False
    precision: str = "fp32"
    """How float32 multiplies: fp32, tf32 or bf16."""
    dials: StepScalars | None
    """While a step is being recorded: where its kernels find what changes from step to step."""

    @abstractmethod
    def launch(self, dtype: np.dtype[Any], name: str, blocks: int, arguments: tuple[Any, ...]) -> None:
        """Run kernel ``name``, compiled for arrays of ``dtype``, with this many blocks. Arguments: arrays, and numpy scalars of
        exactly the types that the kernel declares."""

    @abstractmethod
    def compile(self, dtype: np.dtype[Any]) -> int:
        """Compile every kernel for arrays of ``dtype`` now rather than at the first launch. Returns their number."""

    @abstractmethod
    def gemm(self, call: ColumnMajor, first: Array, second: Array, out: Array, accumulate: bool) -> None:
        """Call cublasGemmStridedBatchedEx on the memory of the arrays; operands in uint16 are bfloat16."""

    # ---- copies beside the kernels: each returns an event, whose ``done`` says whether it has come to pass ------------
    @abstractmethod
    def pinned(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """Return an array on the host that the device can copy from and to by itself."""

    @abstractmethod
    def copy_out(self, array: Array, staging: np.ndarray[Any, Any]) -> Any:
        """Copy to pinned memory, after all work queued so far."""

    @abstractmethod
    def copy_in(self, staging: np.ndarray[Any, Any], array: Array, after: Any) -> Any:
        """Copy from pinned memory once the event ``after`` has completed; work queued from now on waits for the copy."""

    @abstractmethod
    def among_messages(self) -> AbstractContextManager[Any]:
        """Return a context in which kernels are queued after the copies and messages, beside the other kernels."""

    @abstractmethod
    def mark(self, stream: Any = None) -> Any:
        """Return an event that completes when all work queued so far is done."""

    @abstractmethod
    def wait_for(self, event: Any) -> None:
        """Wait until an event has completed."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """Name that no other device of the job has."""

    @property
    @abstractmethod
    def facts(self) -> dict[str, int]:
        """Return ``memory_bytes``, ``multiprocessors`` and ``cache_bytes`` of the card."""

    @property
    @abstractmethod
    def libraries(self) -> dict[str, str]:
        """Return everything apart from the card that times depend on, with its version."""

    @property
    def nccl_version(self) -> int:
        """Return NCCL's version as NCCL encodes it; 0 if there is none."""
        return 0

    def scalar(self, key: Hashable, numbers: Numbers) -> Any:
        """See `ArrayDevice`: an array on the device."""
        return None if self.dials is None else self.dials.place(key, numbers)

    def dial(self, key: Hashable, numbers: Numbers) -> Any:
        """Return the address from which a kernel reads what `scalar` returns; NULL while nothing is recorded."""
        place = self.scalar(key, numbers)
        return NULL if place is None else place

    # ---- 16-bit floats --------------------------------------------------------------------------------------------
    def widen(self, narrow: Array, out: Array | None = None, accumulate: bool = False) -> Array:
        """See `ArrayDevice`; arrays of uint16 are bfloat16."""
        if out is None:
            out = self.xp.empty(narrow.shape, np.float32)
        elif not out.flags.c_contiguous:
            put(self.widen(narrow), out, accumulate)
            return out
        self.each(out.dtype, "widen", out.size, half(narrow), self.xp.ascontiguousarray(bits(narrow)), out, flag(accumulate))
        return out

    def round_into(self, value: Array, out: Array) -> None:
        """See `ArrayDevice`."""
        into = bits(out)
        dense = into if into.flags.c_contiguous else self.xp.empty(into.shape, np.uint16)
        value = self.xp.ascontiguousarray(value)
        self.each(value.dtype, "round_to_16", value.size, half(out), value, dense)
        if dense is not into:
            into[...] = dense

    def each(self, dtype: np.dtype[Any], name: str, count: int, *arguments: Any) -> None:
        """Launch a kernel with a thread for each of ``count``, its first argument."""
        if count:
            self.launch(dtype, name, blocks_for(count), (whole(count), *arguments))

    def multiply(self, a: Array, b: Array, out: Array, accumulate: bool) -> None:
        """Multiply as `KernelSet.matmul` does; operands whose layout no call can read are copied first."""
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
            self.device.launch(of.dtype, name, blocks_for(count), arguments)

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


def bits(array: Array) -> Array:
    """Return the memory of an array of 16-bit floats as uint16."""
    return array.view(np.uint16)


def half(array: Array) -> np.int32:
    """Return the kernels' argument that tells float16 from bfloat16; arrays of uint16 are bfloat16."""
    return flag(array.dtype == np.float16)


def whole(value: int) -> np.int64:
    """Return an argument of the kernels' type Int."""
    return np.int64(value)


def flag(value: int) -> np.int32:
    """Return an int argument; a bool counts as 0 or 1."""
    return np.int32(value)


def factor(scale: Any) -> tuple[np.float64, Array]:
    """Split a scale, which may be an array of one element, into a number and the device address of the factor to multiply it
    with."""
    if isinstance(scale, (int, float)):
        return np.float64(scale), NULL
    return np.float64(1), scale if scale.dtype == np.float64 else scale.astype(np.float64)


def blocks_for(count: int) -> int:
    """Return the number of blocks that have a thread for each of ``count``."""
    return min(-(-count // THREADS), MOST_BLOCKS)


def parts_of(rows: int, columns: int) -> int:
    """Return the number of parts into which the rows of a sum are divided, so that there is work for many threads. It depends
    only on the shape."""
    return max(1, min(rows // 32, (1 << 15) // max(columns, 1)))


def check_output(who: str, out: Array) -> None:
    """Raise ValueError unless ``out`` is contiguous."""
    if not out.flags.c_contiguous:
        raise ValueError(f"{who}: out must be C-contiguous, got shape {out.shape}, strides {out.strides}")
