"""transpose: swaps two dimensions (PyTorch: torch.transpose)."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np

from taskflow.operators.operator import NOTHING, Call, Example, Operator, Reads, Spec, axis, register, takes
from taskflow.operators.tensor import Tensor
from taskflow.regions import Rect


@register("transpose")
class Transpose(Operator):
    """x (..., A, ..., B, ...) -> y (..., B, ..., A, ...). The new dimension 0 is the output's sample dimension."""

    calculates = False
    kept = NOTHING
    flops_per_element = 0

    dim0: int
    dim1: int

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        takes("transpose", inputs, 1)
        (x,) = inputs
        for dim in (self.dim0, self.dim1):
            axis("transpose", dim, len(x.shape))
        return (Spec(self._swap(x.shape), x.dtype),)

    def reads(self, inputs: Sequence[Spec], piece: Rect) -> Reads:
        return Reads((Rect(self._swap(piece.lo), self._swap(piece.hi)),))

    def forward(self, call: Call) -> None:
        call.outputs[0][...] = call.inputs[0].swapaxes(self.dim0, self.dim1)

    def backward(self, call: Call) -> None:
        if (dx := call.grad_inputs[0]) is not None:
            dx.put(call.grad.swapaxes(self.dim0, self.dim1))

    def _swap(self, values: tuple[int, ...]) -> tuple[int, ...]:
        swapped = list(values)
        swapped[self.dim0], swapped[self.dim1] = values[self.dim1], values[self.dim0]
        return tuple(swapped)

    @classmethod
    def example(cls, random: Random) -> Example:
        shape = tuple(random.randint(1, 5) for _ in range(random.randint(1, 4)))
        rank = len(shape)
        operator = cls(random.randint(-rank, rank - 1), random.randint(-rank, rank - 1))
        return Example(operator, (Spec(shape, np.dtype(np.float64)),))


def transpose(input: Tensor, dim0: int, dim1: int, *, name: str | None = None) -> Tensor:
    """Swap two dimensions. Dimension 0 of the result is its sample dimension, whatever it was before."""
    return input.graph.apply(Transpose(dim0, dim1), (input,), name=name)[0]
