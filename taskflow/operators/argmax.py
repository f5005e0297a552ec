"""argmax: where the largest number of the last dimension is, the first of equal ones (PyTorch: torch.argmax)."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np

from taskflow.operators.operator import NOTHING, Call, Example, Operator, Reads, Spec, register, takes
from taskflow.operators.tensor import Tensor
from taskflow.regions import Rect


@register("argmax")
class ArgMax(Operator):
    """x (N, ..., B) numbers -> y (N, ...) integers: the position of the first largest. Every dimension of y can be cut; B is read
    whole. There is no gradient."""

    kept = NOTHING

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        takes("argmax", inputs, 1)
        if len(inputs[0].shape) < 2:
            raise ValueError(f"argmax: input must have two dimensions or more, got {inputs[0]}")
        return (Spec(inputs[0].shape[:-1], np.dtype(np.int64)),)

    def reads(self, inputs: Sequence[Spec], piece: Rect) -> Reads:
        return Reads((Rect((*piece.lo, 0), (*piece.hi, inputs[0].shape[-1])),))

    def forward(self, call: Call) -> None:
        call.outputs[0][...] = call.kernels.xp.argmax(call.inputs[0], axis=-1)

    def flops(self, inputs: Sequence[Spec], piece: Rect) -> int:
        return piece.volume * inputs[0].shape[-1]

    @classmethod
    def example(cls, random: Random) -> Example:
        shape = tuple(random.randint(1, 4) for _ in range(random.randint(1, 3)))
        return Example(cls(), (Spec((*shape, random.randint(2, 5)), np.dtype(np.int64)),), high=4)


def argmax(input: Tensor, *, name: str | None = None) -> Tensor:
    """The position of the largest number of the last dimension, the first of equal ones. (N, ..., B) in, integers (N, ...) out."""
    return input.graph.apply(ArgMax(), (input,), name=name)[0]
