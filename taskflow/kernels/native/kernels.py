"""NativeKernels: the compiled loops, and numpy's own BLAS for the larger matrix products."""

from __future__ import annotations

from taskflow.kernels.blas import find_blas
from taskflow.kernels.kernel_set import KernelSet
from taskflow.kernels.native._channels import NativeChannels
from taskflow.kernels.native._convolutions import NativeConvolutions
from taskflow.kernels.native._losses import NativeLosses
from taskflow.kernels.native._parts import NativeParts
from taskflow.kernels.native._pointwise import NativePointwise
from taskflow.kernels.native._pooling import NativePooling
from taskflow.kernels.native._products import NativeProducts, use_blas
from taskflow.kernels.native._random import NativeRandom
from taskflow.kernels.native._rows import NativeRows
from taskflow.kernels.native._scans import NativeScans
from taskflow.kernels.native._updates import NativeUpdates


class NativeKernels(
    NativeParts, NativeConvolutions, NativeProducts, NativePooling, NativeChannels, NativePointwise, NativeRows, NativeLosses,
    NativeRandom, NativeScans, NativeUpdates, KernelSet,
):
    """Kernels on float32 and float64 arrays, contiguous (strided over rows where a definition allows it); ``matmul`` takes what
    `numpy.matmul` takes."""

    __slots__ = ()
    name = "native"

    def __init__(self) -> None:
        _take_blas()


_blas_searched = False


def _take_blas() -> None:
    """Hand numpy's BLAS to the compiled module, once a process."""
    global _blas_searched
    if not _blas_searched:
        if (blas := find_blas()) is not None:
            use_blas(blas.sgemm, blas.dgemm, blas.wide)
        _blas_searched = True
