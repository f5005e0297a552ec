"""GPUKernels: every kernel on a GPU: cuBLAS's products, cuDNN's convolutions, and our own compiled kernels for the rest."""

from __future__ import annotations

from typing import Any

import numpy as np

from taskflow.kernels.gpu.convolutions import Convolutions, Direction
from taskflow.kernels.gpu.images import ImagesOnGPU
from taskflow.kernels.gpu.launching import LaunchingDevice
from taskflow.kernels.kernel_set import Array, Padding, Pair

NARROW_EDGE = 256
"""From this many rows, columns and terms on, a product in bf16 rounds its operands in memory first: cuBLAS multiplies those at the
full rate, float32 arrays at TF32's. Smaller products are bound by memory, and would read their operands twice."""


class GPUKernels(ImagesOnGPU):
    """Kernels on float32 and float64 arrays in the GPU's memory. Calls return before their work is done; work is done in order.

    An index or target out of range raises no error at once: the device's ``verify`` raises it later, or a loss is NaN.
    """

    __slots__ = ("convolutions", "without_cudnn")
    name = "gpu"

    def __init__(self, device: LaunchingDevice) -> None:
        super().__init__(device)
        self.convolutions: Convolutions | None = None
        """cuDNN's; without them, and for what they decline, patches and products."""
        self.without_cudnn = ""
        """Why cuDNN is not used, if it was to be."""

    def try_out(self) -> None:
        """Run one kernel and one matrix product, and wait for them; whatever is missing raises its own error. Raises
        ArithmeticError for a wrong answer."""
        x, out = self.xp.ones((2, 2), np.float32), self.xp.empty((2, 2), np.float32)
        self.matmul(x, x, out=out)
        self.activate("relu", out, out)
        found = self.device.to_host(out)
        if not (found == 2).all():
            raise ArithmeticError(f"a product of ones gave {found.tolist()}, not 2")

    def take_cudnn(self) -> None:
        """Use cuDNN for convolutions. If it is missing or does not work, ``without_cudnn`` says why."""
        device: Any = self.device
        try:
            self.convolutions = Convolutions(self.xp, device.compute, device.precision, self.rounded, self.widen)
        except Exception as error:  # of the frontend's own types, or of the linker's
            self.without_cudnn = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"

    def rounded(self, x: Array) -> Array:
        """Return a float array rounded to bfloat16, as uint16 of the same shape."""
        out = self.xp.empty(x.shape, np.uint16)
        self.device.round_into(x, out)
        return out

    def widen(self, narrow: Array, out: Array, accumulate: bool) -> None:
        """Convert bfloat16 (as uint16) to a float array, or add it to one."""
        self.device.widen(narrow, out, accumulate)

    def matmul(self, a: Array, b: Array, out: Array, accumulate: bool = False) -> None:
        if self.device.precision == "bf16" and out.dtype == np.float32 and min(*out.shape[-2:], a.shape[-1]) >= NARROW_EDGE:
            a, b = self._narrowed(a), self._narrowed(b)
        self.device.multiply(a, b, out, accumulate)

    def _narrowed(self, x: Array) -> Array:
        """A copy in bfloat16 with the layout of ``x``, if its rows or columns are one run of memory."""
        turned = x.swapaxes(-1, -2)
        if turned.flags.c_contiguous and not x.flags.c_contiguous:
            return self.rounded(turned).swapaxes(-1, -2)
        return self.rounded(x)

    def conv2d(
        self, x: Array, weight: Array, bias: Array | None, stride: Pair, padding: Padding, dilation: Pair, groups: int,
        out: Array,
    ) -> None:
        x, weight, cudnn = self._dense(x), self._dense(weight), self.convolutions
        if cudnn is None or not cudnn.run(Direction.FORWARD, x, weight, out, stride, padding, dilation):
            super().conv2d(x, weight, bias, stride, padding, dilation, groups, out)
        elif bias is not None:
            self._add_bias(bias, out)

    def conv2d_backward_data(
        self, dy: Array, weight: Array, stride: Pair, padding: Padding, dilation: Pair, groups: int, out: Array,
        accumulate: bool = False,
    ) -> None:
        dy, weight, cudnn = self._dense(dy), self._dense(weight), self.convolutions
        if cudnn is None or not cudnn.run(Direction.DATA, out, weight, dy, stride, padding, dilation, accumulate):
            super().conv2d_backward_data(dy, weight, stride, padding, dilation, groups, out, accumulate)

    def conv2d_backward_weight(
        self, x: Array, dy: Array, stride: Pair, padding: Padding, dilation: Pair, groups: int, out: Array,
        accumulate: bool = False,
    ) -> None:
        x, dy, cudnn = self._dense(x), self._dense(dy), self.convolutions
        if cudnn is None or not cudnn.run(Direction.WEIGHT, x, out, dy, stride, padding, dilation, accumulate):
            super().conv2d_backward_weight(x, dy, stride, padding, dilation, groups, out, accumulate)
