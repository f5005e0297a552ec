"""Device: where arrays lie, and how they get there and back. The CPU's is numpy itself; a GPU's is in `taskflow.kernels.gpu`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import numpy as np

Array = Any  # of the device's array module
HostArray = np.ndarray[Any, Any]


class DeviceMissing(OSError):
    """A device that was asked for is not there; the message says in one sentence what is missing and what mends it."""


class Recorder(ABC):
    """Records what actions ask a device for, to have it done again as one whole. What changes from step to step, a learning
    rate and the step's number, is set before."""

    @abstractmethod
    def record(self, actions: Sequence[Callable[[], object]]) -> Callable[[], None]:
        """Call the actions, whose work is noted and not done; the function that is returned has it done. Whatever they raise
        comes as `NotRecorded`, after which the device is as before."""

    @abstractmethod
    def set(self, lr: float, step: int) -> None:
        """The learning rate, and the number from 0, of the step that is done next."""


class NotRecorded(RuntimeError):
    """Something that a device was asked for cannot be recorded. ``number``: of the action that asked, if that is known."""

    def __init__(self, message: str, number: int | None = None) -> None:
        super().__init__(message)
        self.number = number


class ArrayDevice:
    """The memory that a kernel set works in. This one is the host's: nothing is copied and everything is done at once."""

    __slots__ = ()

    name = "cpu"
    xp: Any = np
    """The array module: numpy, or one with its interface."""
    waits = True
    """Whether a call has done its work when it returns; if not, `synchronize` waits for it."""

    def carve(self, block: Array, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """The array of ``shape`` that begins at byte ``offset`` of a block of bytes."""
        return np.ndarray(shape, dtype, buffer=block, offset=offset)

    def to_host(self, array: Array) -> HostArray:
        """A copy of an array in the host's memory, when everything before it is done."""
        return np.array(array)

    def upload(self, host: HostArray, out: Array) -> None:
        """Fill ``out`` from an array of the same shape in the host's memory, which may change afterwards."""
        out[...] = host

    def number(self, value: Array) -> Any:
        """An array of one element as a factor for a kernel: a float, or where reading it would wait, the array."""
        return float(value)

    def require(self, fits: Array, values: Array, message: str) -> None:
        """ValueError with ``message`` unless all of ``fits`` is true; "{given}" in it is the first of ``values`` (of that
        shape) that does not. Where asking would wait, `verify` raises it."""
        if not fits.all():
            raise ValueError(message.replace("{given}", str(values[~fits][0])))

    def verify(self) -> None:
        """Raise what `require` has found since the last time."""

    def timed(self, action: Callable[[], object]) -> float:
        """Run ``action``: the seconds that its work takes, not counting what was asked for before."""
        start = perf_counter()
        action()
        return perf_counter() - start

    def synchronize(self) -> None:
        """Return when all that was asked for is done."""

    def activate(self) -> None:
        """Let the calls of this thread go to this device."""

    def recorder(self) -> Recorder | None:
        """A new one, or None where recording would gain nothing."""
        return None


HOST = ArrayDevice()
