"""Step scalars: the few numbers that change from step to step, in device memory, where a recorded step's kernels read them."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from taskflow.kernels.device import Array, ArrayDevice, Numbers

MOST = 256
"""Numbers; a step needs a handful, since equal ones share their place."""


class StepScalars:
    """Numbers of a step by key. Created before the first step is recorded; `set` is called before each step that is replayed."""

    __slots__ = ("_device", "_host", "_numbers", "_there")

    def __init__(self, device: ArrayDevice) -> None:
        self._device = device
        self._host = np.zeros(MOST)
        self._there: Array = device.xp.zeros(MOST, np.float64)
        self._numbers: dict[Hashable, tuple[int, int, Numbers]] = {}

    def place(self, key: Hashable, numbers: Numbers) -> Array:
        """Return the device address of the numbers of this key. Raises RuntimeError if there is no space left for them."""
        known = self._numbers.get(key)
        if known is None:
            first = max((last for _, last, _ in self._numbers.values()), default=0)
            last = first + len(numbers(0.0, 0, 0))
            if last > MOST:
                raise RuntimeError(f"a recorded step may have {MOST} numbers that change, and this one has more")
            known = self._numbers[key] = first, last, numbers
        first, last, _ = known
        return self._there[first:last]

    def set(self, lr: float, step: int, updates: int) -> None:
        """Send the numbers of one step to the device; arguments as `Recorder.set`."""
        if not self._numbers:
            return
        for first, last, numbers in self._numbers.values():
            self._host[first:last] = numbers(lr, step, updates)
        self._device.upload(self._host, self._there)
