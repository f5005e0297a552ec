"""to_float: integers or truth values as floats (PyTorch: tensor.float())."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

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


@register("to_float")
@dataclass(frozen=True, slots=True)
class ToFloat(Operator):
    """Integers or truth values (N, ...) -> the same numbers as floats of ``dtype``. Every dimension can be cut. There is no
    gradient."""

    dtype: np.dtype[Any]

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        takes("to_float", inputs, 1)
        if inputs[0].dtype.kind not in "iub":
            raise ValueError(f"to_float: takes integers or truth values, got {inputs[0]}")
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
        pass  # integers have no gradient

    def flops(self, inputs: Sequence[Spec], piece: Rect) -> int:
        return piece.volume

    @classmethod
    def example(cls, random: Random) -> Example:
        shape = tuple(random.randint(1, 4) for _ in range(random.randint(1, 3)))
        return Example(cls(np.dtype(np.float64)), (Spec(shape, np.dtype(np.int64)),), high=5)


def to_float(input: Tensor, *, name: str | None = None) -> Tensor:
    """Return integers or truth values as floats, in the graph's float type. Any shape in, the same shape out."""
    return input.graph.apply(ToFloat(np.dtype(input.graph.dtype)), (input,), name=name)[0]
