"""max_pool2d: the maximum of each window of an image (PyTorch: torch.nn.functional.max_pool2d)."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np

from taskflow.operators.operator import Call, Example, Spec, register
from taskflow.operators.tensor import Tensor
from taskflow.operators.window import Pair, Pool, SlidingWindow, pair, pool_example
from taskflow.regions import Rect


@register("max_pool2d")
class MaxPool2d(Pool):
    """x (N, C, H, W) -> y (N, C, Ho, Wo). Cuts of h and w read halos. Forward saves which element of each window was the
    largest (the first of equals), in one byte if the window has at most 256."""

    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair = (1, 1)
    ceil_mode: bool = False

    backward_flops_per_element = 1

    def saves(self, inputs: Sequence[Spec], piece: Rect) -> tuple[Spec, ...]:
        return (Spec(piece.shape, np.min_scalar_type(self.kernel[0] * self.kernel[1] - 1)),)

    def forward(self, call: Call) -> None:
        _, padding = self.sees(call.specs[0], call.piece)
        (x,), (y,), (index,) = call.inputs, call.outputs, call.saved
        call.kernels.max_pool2d(x, self.kernel, self.stride, padding, out=y, index=index, dilation=self.dilation)

    def backward(self, call: Call) -> None:
        if (dx := call.grad_inputs[0]) is not None:
            _, padding = self.sees(call.specs[0], call.piece)
            call.kernels.max_pool2d_backward(
                call.grad, call.saved[0], self.kernel, self.stride, padding, out=dx.array, accumulate=dx.accumulate,
                dilation=self.dilation,
            )

    def flops(self, inputs: Sequence[Spec], piece: Rect) -> int:
        return piece.volume * self.kernel[0] * self.kernel[1]

    @property
    def windows(self) -> tuple[SlidingWindow, ...]:
        each = zip(self.kernel, self.stride, self.padding, self.dilation)
        return tuple(SlidingWindow(k, s, p, p, d, self.ceil_mode) for k, s, p, d in each)

    @classmethod
    def example(cls, random: Random) -> Example:
        (h, w), spec = pool_example(random, dilated=True)
        sides = ((h.kernel, w.kernel), (h.stride, w.stride), (h.before, w.before), (h.dilation, w.dilation))
        return Example(cls(*sides, h.ceil), (spec,))


def max_pool2d(
    input: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    *,
    ceil_mode: bool = False,
    name: str | None = None,
) -> Tensor:
    """Take the largest value of each window.

    Args: input (N, C, H, W). ``kernel_size``, ``stride`` (the kernel's size if not given), ``padding`` (never the maximum; at
    most half of the kernel), ``dilation``: one integer, or (height, width). ``ceil_mode``: a last window that begins in the
    image counts even if it reaches beyond the padding. Returns (N, C, Ho, Wo).
    """
    kernel = pair("max_pool2d", "kernel_size", kernel_size, 1)
    step = kernel if stride is None else pair("max_pool2d", "stride", stride, 1)
    around, apart = pair("max_pool2d", "padding", padding, 0), pair("max_pool2d", "dilation", dilation, 1)
    return input.graph.apply(MaxPool2d(kernel, step, around, apart, ceil_mode), (input,), name=name)[0]
