"""Device: where arrays lie, and how they get there and back. The CPU's is numpy itself; a GPU's is in `taskflow.kernels.gpu`."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np

Array = Any  # of the device's array module
HostArray = np.ndarray[Any, Any]


class DeviceMissing(OSError):
    """A device that was asked for is not there; the message says in one sentence what is missing and what mends it."""


class Device:
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


HOST = Device()
