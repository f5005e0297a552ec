"""GPUKernels: every kernel on a GPU: cuBLAS's products, cuDNN's convolutions, and our own compiled kernels for the rest."""

from __future__ import annotations

from taskflow.kernels.gpu.images import ImagesOnGPU
from taskflow.kernels.kernel_set import Array


class GPUKernels(ImagesOnGPU):
    """Arrays of float32 and float64 in the GPU's memory. Calls return before they are done; they are done in order.

    An index or target out of range is not an error at once: the device's ``verify`` raises it, or a loss is not a number.
    """

    __slots__ = ()
    name = "gpu"

    def matmul(self, a: Array, b: Array, out: Array, accumulate: bool = False) -> None:
        self.device.multiply(a, b, out, accumulate)
