"""Device: where arrays live, and how they get there and back. The CPU's is numpy itself; a GPU's is in `taskflow.kernels.gpu`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from taskflow.kernels.definitions import put

Array = Any  # of the device's array module
HostArray = np.ndarray[Any, Any]
Numbers = Callable[[float, int, int], Sequence[float]]
"""What changes from step to step, of its learning rate, its number from 0, and the number of updates before it."""


class DeviceMissing(OSError):
    """Error for a device that is not available. The message says in one sentence what is missing and how to get it."""


class Recorder(ABC):
    """Records the work that actions ask of a device, so that it can be replayed as a whole. What changes from step to step
    (learning rate and step number, for instance) is set before each replay."""

    @abstractmethod
    def record(self, actions: Sequence[Callable[[], object]]) -> Callable[[], None]:
        """Call the actions with their work recorded but not executed. Returns a function that executes it. Any error is raised
        as `NotRecorded`, and the device is then as before."""

    @abstractmethod
    def set(self, lr: float, step: int, updates: int) -> None:
        """Set the learning rate of the step that is replayed next, its number (from 0), and the number of updates before it:
        fewer than steps where gradients have overflowed."""


class NotRecorded(RuntimeError):
    """Error for work that cannot be recorded. ``number``: of the action that asked for it, if known."""

    def __init__(self, message: str, number: int | None = None) -> None:
        super().__init__(message)
        self.number = number


class ArrayDevice:
    """Memory that a kernel set works in. This class is the host's: nothing is copied, and every call is synchronous."""

    __slots__ = ()

    name = "cpu"
    xp: Any = np
    """The array module: numpy, or one with its interface."""
    waits = True
    """Whether a call has done its work when it returns; if not, `synchronize` waits for it."""

    def carve(self, block: Array, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return the array of ``shape`` that begins at byte ``offset`` of a block of memory."""
        return np.ndarray(shape, dtype, buffer=block, offset=offset)

    def to_host(self, array: Array, out: HostArray | None = None) -> HostArray:
        """Return a copy of an array in the host's memory, after all earlier work on the device: a new array, or ``out``, of the
        same shape and type, row by row."""
        if out is None:
            return np.array(array)
        np.copyto(out, array)
        return out

    def upload(self, host: HostArray, out: Array) -> None:
        """Fill ``out`` from an array of the same shape in the host's memory, which may be changed as soon as this returns."""
        out[...] = host

    def widen(self, narrow: Array, out: Array | None = None, accumulate: bool = False) -> Array:
        """Return an array of 16-bit floats in float32: a new one, or ``out`` filled with it, or with it added."""
        if out is None:
            return narrow.astype(np.float32)
        with np.errstate(invalid="ignore", over="ignore"):  # gradients may have overflowed, which is noticed at the step's end
            put(narrow, out, accumulate)
        return out

    def round_into(self, value: Array, out: Array) -> None:
        """Round float32 numbers to the nearest ones of ``out``'s 16-bit type, ties to even. Those too large for float16 become
        infinite."""
        with np.errstate(over="ignore"):
            out[...] = value

    def number(self, value: Array) -> Any:
        """Return an array of one element as a factor for a kernel: a float, or the array itself where reading it would have to
        wait."""
        return float(value)

    def scalar(self, key: Hashable, numbers: Numbers) -> Any:
        """Return where work that is being recorded finds ``numbers`` of each step, as float64; None while nothing is recorded.
        Equal keys stand for equal numbers."""
        return None

    def require(self, fits: Array, values: Array, message: str) -> None:
        """Raise ValueError with ``message`` unless all of ``fits`` is true. "{given}" in the message stands for the first of
        ``values`` (of the same shape) that does not fit. On an asynchronous device, `verify` raises it."""
        if not fits.all():
            raise ValueError(message.replace("{given}", str(values[~fits][0])))

    def verify(self) -> None:
        """Raise the error that `require` has found since the last call."""

    def timed(self, action: Callable[[], object]) -> float:
        """Run ``action`` and return the seconds that its work takes, without work that was queued before."""
        start = perf_counter()
        action()
        return perf_counter() - start

    def synchronize(self) -> None:
        """Wait until all queued work is done."""

    def activate(self) -> None:
        """Direct the calls of this thread to this device."""

    def recorder(self) -> Recorder | None:
        """Return a new recorder, or None where recording would gain nothing."""
        return None


HOST = ArrayDevice()
