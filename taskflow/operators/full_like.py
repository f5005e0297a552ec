"""full_like: one number everywhere, whatever was there (PyTorch: torch.full_like, torch.Tensor.fill_)."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np

from taskflow.operators.operator import NOTHING, Call, Example, Reads, Spec, register
from taskflow.operators.tensor import Tensor
from taskflow.operators.unary import Unary
from taskflow.regions import Rect


@register("full_like")
class FullLike(Unary):
    """y = ``number``, also where x is infinite or not a number. Of x only the shape and the type count; no gradient goes to it."""

    number: float
    kept = NOTHING
    flops_per_element = 0  # it moves memory
    calculates = False
    stops_gradient = True

    def reads(self, inputs: Sequence[Spec], piece: Rect) -> Reads:
        nothing = (0,) * len(inputs[0].shape)
        return Reads((Rect(nothing, nothing),))

    def forward(self, call: Call) -> None:
        call.outputs[0][...] = self.number

    @classmethod
    def example(cls, random: Random) -> Example:
        shape = tuple(random.randint(1, 5) for _ in range(random.randint(1, 4)))
        return Example(cls(random.choice((0.0, -1.5, 2.0))), (Spec(shape, np.dtype(np.float64)),))


def full_like(input: Tensor, number: float, *, name: str | None = None) -> Tensor:
    """A number in place of all numbers of ``input``, of which nothing else counts. Any shape of floats in, the same out."""
    return input.graph.apply(FullLike(float(number)), (input,), name=name)[0]
