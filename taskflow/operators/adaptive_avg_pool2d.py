"""adaptive_avg_pool2d: means over windows, as many as the output has elements (PyTorch:
torch.nn.functional.adaptive_avg_pool2d)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from random import Random
from typing import Any

import numpy as np

from taskflow.operators.operator import NOTHING, Array, Call, Example, Operator, Reads, register
from taskflow.operators.spec import Dim, Soap, Spec, positive, takes
from taskflow.operators.tensor import Tensor
from taskflow.operators.window import Pair, pair
from taskflow.regions import Rect

NO_PADDING = ((0, 0), (0, 0))


@register("adaptive_avg_pool2d")
class AdaptiveAvgPool2d(Operator):
    """x (N, C, H, W) -> y (N, C, Ho, Wo): output i of a dimension is the mean of inputs i H // Ho up to, not including, ceil((i
    + 1) H / Ho). Computed as y = A x B with the matrices of these means. A dimension with one output (global pooling) is
    contracted: its input can be cut, and the pieces' partial sums are added."""

    size: Pair
    kept = NOTHING

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        takes("adaptive_avg_pool2d", inputs, 1)
        (x,) = inputs
        positive("adaptive_avg_pool2d", height=self.size[0], width=self.size[1])
        if len(x.shape) != 4 or not x.differentiable:
            raise ValueError(f"adaptive_avg_pool2d: input must be a float tensor (N, C, H, W), got {x}")
        return (Spec((*x.shape[:2], *self.size), x.dtype),)

    def dims(self, inputs: Sequence[Spec]) -> tuple[Dim, ...]:
        shape = inputs[0].shape
        spatial = (
            Dim(name, given, Soap.REDUCTION) if size == 1 else Dim(name, size, Soap.ATTRIBUTE)
            for name, given, size in zip("hw", shape[2:], self.size)
        )
        return (Dim("n", shape[0], Soap.SAMPLE), Dim("c", shape[1], Soap.ATTRIBUTE), *spatial)

    def reads(self, inputs: Sequence[Spec], piece: Rect) -> Reads:
        lo, hi = list(piece.lo), list(piece.hi)
        for i, (given, size) in enumerate(zip(inputs[0].shape[2:], self.size), 2):
            if size > 1:
                lo[i], hi[i] = lo[i] * given // size, -(-hi[i] * given // size)
        return Reads((Rect(tuple(lo), tuple(hi)),))

    def writes(self, inputs: Sequence[Spec], piece: Rect) -> tuple[Rect, ...]:
        lo, hi = list(piece.lo), list(piece.hi)
        for i, size in enumerate(self.size, 2):
            if size == 1:
                lo[i], hi[i] = 0, 1
        return (Rect(tuple(lo), tuple(hi)),)

    def forward(self, call: Call) -> None:
        if (windows := self._windows(call)) is not None:
            call.kernels.sum_pool2d(call.inputs[0], windows, windows, NO_PADDING, self._shares(call), out=call.outputs[0])
            return
        rows, columns = self._means(call)
        call.kernels.xp.matmul(rows @ call.inputs[0], columns.T, out=call.outputs[0])

    def backward(self, call: Call) -> None:
        dx, windows = call.grad_inputs[0], self._windows(call)
        if dx is not None and windows is not None:
            call.kernels.sum_pool2d_backward(
                call.grad, windows, windows, NO_PADDING, self._shares(call), out=dx.array, accumulate=dx.accumulate
            )
        elif dx is not None:
            rows, columns = self._means(call)
            dx.put(rows.T @ call.grad @ columns)

    def flops(self, inputs: Sequence[Spec], piece: Rect) -> int:
        # A piece is as many inputs as it reads where it is contracted, else as many outputs as it writes.
        windows = (-(-given // size) if size > 1 else 1 for given, size in zip(inputs[0].shape[2:], self.size))
        return piece.volume * prod(windows)

    def backward_flops(self, inputs: Sequence[Spec], piece: Rect) -> int:
        return self.flops(inputs, piece)

    def _windows(self, call: Call) -> Pair | None:
        """The size of the windows if they are all alike: what the piece reads, in as many parts as it writes."""
        if any(given % size for given, size in zip(call.specs[0].shape[2:], self.size)):
            return None
        read, write = call.reads.inputs[0].shape, call.writes[0].shape
        return read[2] // write[2], read[3] // write[3]

    def _shares(self, call: Call) -> Array:
        """One over the number of elements that each output is the mean of, whatever the piece has of them."""
        (height, width), spec = call.specs[0].shape[2:], call.specs[0]
        shape, share = call.writes[0].shape[2:], self.size[0] * self.size[1] / (height * width)
        key = ("adaptive_avg_pool2d shares", shape, share, spec.dtype.str)
        return call.kernels.constant(key, lambda: np.full(shape, share, spec.dtype))

    def _means(self, call: Call) -> tuple[Array, Array]:
        """The piece's part of both matrices of means, (Ho, H) and (Wo, W)."""
        read, write = call.reads.inputs[0], call.writes[0]
        rows, columns = (
            self._mean(call, size, given, slice(write.lo[i], write.hi[i]), slice(read.lo[i], read.hi[i]))
            for i, (size, given) in enumerate(zip(self.size, call.specs[0].shape[2:]), 2)
        )
        return rows, columns

    def _mean(self, call: Call, size: int, given: int, ours: slice, theirs: slice) -> Array:
        dtype = call.specs[0].dtype
        key = ("adaptive_avg_pool2d means", size, given, ours.start, ours.stop, theirs.start, theirs.stop, dtype.str)
        return call.kernels.constant(key, lambda: _matrix(size, given)[ours, theirs].astype(dtype))

    @classmethod
    def example(cls, random: Random) -> Example:
        size = (random.choice((1, random.randint(1, 5))), random.choice((1, random.randint(1, 5))))
        shape = tuple(random.randint(1, 7) for _ in range(4))
        return Example(cls(size), (Spec(shape, np.dtype(np.float64)),))


@lru_cache(maxsize=256)
def _matrix(outputs: int, size: int) -> np.ndarray[Any, Any]:
    """(outputs, size): row i holds 1 / n at the n inputs that output i is the mean of."""
    matrix = np.zeros((outputs, size))
    for i in range(outputs):
        low, high = i * size // outputs, -(-(i + 1) * size // outputs)
        matrix[i, low:high] = 1 / (high - low)
    return matrix


def adaptive_avg_pool2d(
    input: Tensor, output_size: int | Sequence[int], *, name: str | None = None
) -> Tensor:
    """Take means over windows that divide the image as evenly as possible.

    Args: input (N, C, H, W); ``output_size`` (height, width), or one integer for both; 1 is global pooling. Returns (N, C,
    height, width).
    """
    operator = AdaptiveAvgPool2d(pair("adaptive_avg_pool2d", "output_size", output_size, 1))
    return input.graph.apply(operator, (input,), name=name)[0]
