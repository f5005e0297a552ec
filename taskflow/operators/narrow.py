"""narrow: a range of one dimension (PyTorch: torch.narrow, torch.select)."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np

from taskflow.operators.operator import NOTHING, Call, Example, Operator, Reads, Spec, axis, positive, register, takes
from taskflow.operators.reshape import reshape
from taskflow.operators.tensor import Tensor
from taskflow.regions import Rect


@register("narrow")
class Narrow(Operator):
    """x -> its elements ``start`` up to ``start`` + ``length`` of ``dim``."""

    calculates = False
    kept = NOTHING
    flops_per_element = 0

    dim: int
    start: int
    length: int

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        takes("narrow", inputs, 1)
        (x,) = inputs
        dim = axis("narrow", self.dim, len(x.shape))
        positive("narrow", length=self.length)
        if not 0 <= self.start <= x.shape[dim] - self.length:
            raise ValueError(
                f"narrow: start={self.start} and length={self.length} must lie in dim {dim} of {x}"
            )
        return (Spec((*x.shape[:dim], self.length, *x.shape[dim + 1 :]), x.dtype),)

    def reads(self, inputs: Sequence[Spec], piece: Rect) -> Reads:
        offset = [0] * piece.ndim
        offset[self.dim] = self.start
        return Reads((piece.shift(offset),))

    def forward(self, call: Call) -> None:
        call.outputs[0][...] = call.inputs[0]

    def backward(self, call: Call) -> None:
        if (dx := call.grad_inputs[0]) is not None:
            dx.put(call.grad)

    @classmethod
    def example(cls, random: Random) -> Example:
        shape = tuple(random.randint(1, 5) for _ in range(random.randint(1, 4)))
        dim = random.randint(-len(shape), len(shape) - 1)
        start = random.randrange(shape[dim])
        operator = cls(dim, start, random.randint(1, shape[dim] - start))
        return Example(operator, (Spec(shape, np.dtype(np.float64)),))


def narrow(input: Tensor, dim: int, start: int, length: int, *, name: str | None = None) -> Tensor:
    """Take ``length`` elements of ``dim``, beginning with ``start`` (which counts from the end if it is negative)."""
    first = start if start >= 0 else start + input.shape[axis("narrow", dim, input.ndim)]
    return input.graph.apply(Narrow(dim, first, length), (input,), name=name)[0]


def select(input: Tensor, dim: int, index: int, *, name: str | None = None) -> Tensor:
    """Take element ``index`` of ``dim``, and drop that dimension: the last time step of (N, T, H) is ``select(x, 1, -1)``."""
    one = narrow(input, dim, index, 1, name=name and f"{name}.narrow")
    at = axis("select", dim, input.ndim)
    return reshape(one, (*input.shape[:at], *input.shape[at + 1 :]), name=name or "select")
