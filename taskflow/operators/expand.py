"""expand: repeats dimensions of size 1, or adds dimensions before the first (PyTorch: torch.Tensor.expand)."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np

from taskflow.operators.binary import seen_by, summed_into
from taskflow.operators.operator import NOTHING, Call, Example, Operator, Reads, Spec, register, takes
from taskflow.operators.tensor import Tensor
from taskflow.regions import Rect


@register("expand")
class Expand(Operator):
    """x -> y of a shape that x broadcasts to; the gradient is the sum over the repetitions. Every dimension of y can be cut;
    along a repeated one, each piece reads the same part of x."""

    shape: tuple[int, ...]
    kept = NOTHING
    flops_per_element = 0  # it moves memory

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        takes("expand", inputs, 1)
        (x,) = inputs
        skip = len(self.shape) - len(x.shape)
        fits = skip >= 0 and all(mine in (1, size) for mine, size in zip(x.shape, self.shape[skip:]))
        if not fits or any(size < 1 for size in self.shape):
            raise ValueError(f"expand: sizes must be 1 or those of {list(self.shape)}, counted from the last, got {x}")
        return (Spec(self.shape, x.dtype),)

    def reads(self, inputs: Sequence[Spec], piece: Rect) -> Reads:
        return Reads((seen_by(inputs[0].shape, piece),))

    def forward(self, call: Call) -> None:
        call.outputs[0][...] = call.inputs[0]

    def backward(self, call: Call) -> None:
        if (target := call.grad_inputs[0]) is not None:
            summed_into(call, target, call.grad)

    @classmethod
    def example(cls, random: Random) -> Example:
        shape = tuple(random.randint(1, 4) for _ in range(random.randint(1, 4)))
        given = tuple(random.choice((1, size)) for size in shape[random.randint(0, len(shape) - 1) :])
        return Example(cls(shape), (Spec(given, np.dtype(np.float64)),))


def expand(input: Tensor, shape: Sequence[int], *, name: str | None = None) -> Tensor:
    """Repeat dimensions of size 1 to those of ``shape``: (N, 1, C) -> (N, T, C); further ones come before the first."""
    return input.graph.apply(Expand(tuple(shape)), (input,), name=name)[0]
