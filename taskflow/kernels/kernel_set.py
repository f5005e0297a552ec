"""KernelSet: the arithmetic that operators call, arrays in and arrays out. Imports nothing of taskflow's other packages.

It is composed of the groups of ``definitions/``, where each kernel is stated and defined. Sets with kernels of their own
(compiled loops, GPU libraries) must agree with the definitions, and a test compares them.

`NumpyKernels` is the readable reference, which uses every definition. The groups name their compiled twins and the tests that hold
each pair equal. oneDNN's kernels (onednn/_onednn.pyx) have no definitions of their own; tests/kernels/test_onednn_kernels.py holds
them equal to these.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from taskflow.kernels.definitions import (
    Array,
    ChannelKernels,
    ConvolutionKernels,
    Key,
    LossKernels,
    Padding,
    Pair,
    PartKernels,
    PointwiseKernels,
    PoolingKernels,
    ProductKernels,
    RandomKernels,
    RowKernels,
    ScanKernels,
    Split,
    UpdateKernels,
)
from taskflow.kernels.device import HOST, ArrayDevice

__all__ = ["KERNELS", "Array", "KernelSet", "Key", "Padding", "Pair", "Split"]


class KernelSet(
    PartKernels, ConvolutionKernels, ProductKernels, PoolingKernels, ChannelKernels, PointwiseKernels, RowKernels, LossKernels,
    RandomKernels, ScanKernels, UpdateKernels, ABC,
):
    """One implementation of every kernel: a faster one, or the definition itself."""

    __slots__ = ()

    name: str
    device: ArrayDevice = HOST
    """Where the arrays lie that its kernels take."""
    threads: int = 1
    """How many threads of the host a large kernel runs on, those of numpy's BLAS apart (the library counts its own)."""

    @property
    def xp(self) -> Any:
        """Module that its arrays are of: numpy, or one with numpy's interface."""
        return self.device.xp

    def constant(self, key: Hashable, make: Callable[[], np.ndarray[Any, Any]]) -> Array:
        """Return an array that operators compute on the host and only read. ``key`` identifies its contents, so that a device
        can cache it."""
        return make()


KERNELS: tuple[str, ...] = tuple(
    name for group in KernelSet.__mro__ if group.__module__.startswith("taskflow.kernels.definitions.")
    for name in vars(group) if not name.startswith("_")
)
"""The names of all kernels."""


class NumpyKernels(KernelSet):
    """Kernels in plain numpy; work wherever numpy does."""

    __slots__ = ()
    name = "numpy"
