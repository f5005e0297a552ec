"""cast: floats as floats of another type (PyTorch: tensor.to(dtype)); a gradient goes back in the type of the input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

from taskflow.floats import float_type
from taskflow.operators.operator import (
    Call,
    Dim,
    Example,
    Keeps,
    Operator,
    Reads,
    Spec,
    register,
    sample_and_attributes,
    takes,
)
from taskflow.operators.tensor import Tensor
from taskflow.regions import Rect


@register("cast")
@dataclass(frozen=True, slots=True)
class Cast(Operator):
    """x (N, ...) floats -> the nearest floats of ``dtype``. Every dimension can be cut."""

    dtype: np.dtype[Any]

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        takes("cast", inputs, 1)
        if not inputs[0].differentiable:
            raise ValueError(f"cast: takes floats, got {inputs[0]}")
        return (Spec(inputs[0].shape, self.dtype),)

    def dims(self, inputs: Sequence[Spec]) -> tuple[Dim, ...]:
        return sample_and_attributes(inputs[0].shape)

    def reads(self, inputs: Sequence[Spec], piece: Rect) -> Reads:
        return Reads((piece,))

    def writes(self, inputs: Sequence[Spec], piece: Rect) -> tuple[Rect, ...]:
        return (piece,)

    def keeps(self, inputs: Sequence[Spec]) -> Keeps:
        return Keeps(inputs=False, weights=False, outputs=False)

    def forward(self, call: Call) -> None:
        call.outputs[0][...] = call.inputs[0]

    def backward(self, call: Call) -> None:
        if (dx := call.grad_inputs[0]) is not None:
            dx.put(call.grad)

    def flops(self, inputs: Sequence[Spec], piece: Rect) -> int:
        return piece.volume

    @classmethod
    def example(cls, random: Random) -> Example:
        shape = tuple(random.randint(1, 4) for _ in range(random.randint(1, 3)))
        return Example(cls(np.dtype(np.float64)), (Spec(shape, np.dtype(np.float64)),))  # differences need all digits


def cast(input: Tensor, dtype: str | np.dtype[Any], *, name: str | None = None) -> Tensor:
    """Return floats (N, ...) in another float type, such as float32 for a sum in a network of bfloat16; the input itself if it
    has that type."""
    wanted = float_type(dtype)
    return input if input.dtype == wanted else input.graph.apply(Cast(wanted), (input,), name=name)[0]
