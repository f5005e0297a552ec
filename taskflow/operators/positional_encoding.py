"""positional_encoding: adds waves that distinguish positions (Vaswani et al., arXiv 1706.03762, section 3.5)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from random import Random
from typing import Any

import numpy as np

from taskflow.operators.operator import NOTHING, Call, Example, Operator, Spec, register, takes
from taskflow.operators.tensor import Tensor


@register("positional_encoding")
class PositionalEncoding(Operator):
    """x (N, T, H) -> x + waves (T, H): at position t, sin(t r) in column 2 i and cos(t r) in column 2 i + 1, with
    r = 10000^(-2 i / H)."""

    kept = NOTHING
    flops_per_element = 1
    backward_flops_per_element = 0

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        takes("positional_encoding", inputs, 1)
        (x,) = inputs
        if len(x.shape) != 3 or not x.differentiable:
            raise ValueError(f"positional_encoding: input must be a float tensor (N, T, features), got {x}")
        return (x,)

    def forward(self, call: Call) -> None:
        part = call.piece.slices(call.specs[0].rect)[1:]
        whole = (*call.specs[0].shape[1:], call.specs[0].dtype.str)
        added = call.kernels.constant(("positional_encoding", *whole), lambda: waves(*whole))
        np.add(call.inputs[0], added[part], out=call.outputs[0])

    def backward(self, call: Call) -> None:
        if (dx := call.grad_inputs[0]) is not None:
            dx.put(call.grad)

    @classmethod
    def example(cls, random: Random) -> Example:
        return Example(cls(), (Spec(tuple(random.randint(1, 5) for _ in range(3)), np.dtype(np.float64)),))


@lru_cache(maxsize=16)
def waves(steps: int, features: int, dtype: str) -> np.ndarray[Any, Any]:
    """Return the waves that are added, (steps, features)."""
    rates = 10000.0 ** (-2 * (np.arange(features) // 2) / features)
    angles = np.arange(steps)[:, None] * rates
    return np.where(np.arange(features) % 2, np.cos(angles), np.sin(angles)).astype(dtype)


def positional_encoding(input: Tensor, *, name: str | None = None) -> Tensor:
    """Add sines and cosines of the position to (N, T, H). Nothing is trained. The same shape out."""
    return input.graph.apply(PositionalEncoding(), (input,), name=name)[0]
