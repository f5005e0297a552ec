"""avg_pool2d: the mean of each window of an image (PyTorch: torch.nn.functional.avg_pool2d)."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np

from taskflow.operators.operator import Array, Call, Example, Spec, register
from taskflow.operators.tensor import Tensor
from taskflow.operators.window import Pair, Pool, SlidingWindow, pair, pool_example
from taskflow.regions import Rect


@register("avg_pool2d")
class AvgPool2d(Pool):
    """x (N, C, H, W) -> y (N, C, Ho, Wo). Cuts of h and w read halos. ``count_include_pad``: padding counts as zeros; else the
    mean is over elements of the image only."""

    kernel: Pair
    stride: Pair
    padding: Pair
    count_include_pad: bool
    ceil_mode: bool = False

    def forward(self, call: Call) -> None:
        _, padding = self.sees(call.specs[0], call.piece)
        (x,), (y,) = call.inputs, call.outputs
        call.kernels.sum_pool2d(x, self.kernel, self.stride, padding, self._shares(call), out=y)

    def backward(self, call: Call) -> None:
        if (dx := call.grad_inputs[0]) is not None:
            _, padding = self.sees(call.specs[0], call.piece)
            call.kernels.sum_pool2d_backward(
                call.grad, self.kernel, self.stride, padding, self._shares(call),
                out=dx.array, accumulate=dx.accumulate,
            )

    def flops(self, inputs: Sequence[Spec], piece: Rect) -> int:
        return piece.volume * (self.kernel[0] * self.kernel[1] + 1)

    def backward_flops(self, inputs: Sequence[Spec], piece: Rect) -> int:
        return self.flops(inputs, piece)

    def _shares(self, call: Call) -> Array:
        """One over the number of elements that each window of the piece counts, (Ho, Wo)."""
        spec, piece = call.specs[0], call.piece
        key = ("avg_pool2d", self, spec.shape[2:], piece.lo[2:], piece.hi[2:], spec.dtype.str)
        return call.kernels.constant(key, lambda: self._shares_on_host(call))

    def _shares_on_host(self, call: Call) -> np.ndarray[Any, Any]:
        rows, columns = (
            self._counts(window, call.specs[0].shape[i], call.piece.lo[i], call.piece.hi[i])
            for i, window in enumerate(self.windows, 2)
        )
        return np.asarray(1 / (rows[:, None] * columns), call.specs[0].dtype)

    def _counts(self, window: SlidingWindow, size: int, low: int, high: int) -> np.ndarray[Any, Any]:
        starts = np.arange(low, high) * window.stride - window.before
        if self.count_include_pad:  # what a last window has beyond the padding does not count
            counts: np.ndarray[Any, Any] = np.minimum(starts + window.kernel, size + window.after) - starts
        else:
            counts = np.minimum(starts + window.kernel, size) - np.maximum(starts, 0)
        return counts

    @property
    def windows(self) -> tuple[SlidingWindow, ...]:
        each = zip(self.kernel, self.stride, self.padding)
        return tuple(SlidingWindow(k, s, p, p, ceil=self.ceil_mode) for k, s, p in each)

    @classmethod
    def example(cls, random: Random) -> Example:
        (h, w), spec = pool_example(random, dilated=False)
        sides = ((h.kernel, w.kernel), (h.stride, w.stride), (h.before, w.before))
        return Example(cls(*sides, random.random() < 0.5, h.ceil), (spec,))


def avg_pool2d(
    input: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    *,
    count_include_pad: bool = True,
    ceil_mode: bool = False,
    name: str | None = None,
) -> Tensor:
    """Take the mean of each window.

    Args: input (N, C, H, W). ``kernel_size``, ``stride`` (the kernel's size if not given), ``padding`` (at most half of the
    kernel): one integer, or (height, width). ``count_include_pad``: padding counts as zeros. ``ceil_mode``: a last window that
    begins in the image counts even if it reaches beyond the padding. Returns (N, C, Ho, Wo).
    """
    kernel = pair("avg_pool2d", "kernel_size", kernel_size, 1)
    step = kernel if stride is None else pair("avg_pool2d", "stride", stride, 1)
    operator = AvgPool2d(kernel, step, pair("avg_pool2d", "padding", padding, 0), count_include_pad, ceil_mode)
    return input.graph.apply(operator, (input,), name=name)[0]
