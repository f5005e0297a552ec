"""cumsum: sums of all elements up to each one, along a dimension (PyTorch: torch.cumsum)."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np

from taskflow.operators.operator import NOTHING, Call, Dim, Example, Spec, axis, register, sample_and_attributes, takes
from taskflow.operators.tensor import Tensor
from taskflow.operators.unary import Unary


@register("cumsum")
class Cumsum(Unary):
    """y[..., i, ...] = the sum of x[..., 0 to i, ...] along ``dim``, of floats or integers. Every other dimension can be cut."""

    dim: int
    kept = NOTHING

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        takes("cumsum", inputs, 1)
        (y,) = inputs
        if not (y.differentiable or y.dtype.kind in "iu"):
            raise ValueError(f"cumsum: input must be floats or integers, got {y}")
        axis("cumsum", self.dim, len(y.shape))
        return (y,)

    def dims(self, inputs: Sequence[Spec]) -> tuple[Dim, ...]:
        shape = inputs[0].shape
        return sample_and_attributes(shape, fixed=self.dim % len(shape))

    def forward(self, call: Call) -> None:
        call.outputs[0][...] = np.cumsum(call.inputs[0], axis=self.dim)

    def backward(self, call: Call) -> None:
        if (dx := call.grad_inputs[0]) is not None:  # each element is in its own sum and all later ones
            dx.put(np.flip(np.cumsum(np.flip(call.grad, self.dim), axis=self.dim), self.dim))

    @classmethod
    def example(cls, random: Random) -> Example:
        shape = tuple(random.randint(1, 4) for _ in range(random.randint(1, 4)))
        return Example(cls(random.randint(-len(shape), len(shape) - 1)), (Spec(shape, np.dtype(np.float64)),))


def cumsum(input: Tensor, dim: int, *, name: str | None = None) -> Tensor:
    """Sums along ``dim`` of all elements up to each one. Any shape in, the same shape out."""
    return input.graph.apply(Cumsum(dim), (input,), name=name)[0]
