"""step: round, floor, ceil, trunc or sign, whose derivative is 0 (PyTorch: torch.round and so on)."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np

from taskflow.operators.operator import NOTHING, Array, Call, Example, register
from taskflow.operators.tensor import Tensor
from taskflow.operators.unary import Unary, example


def _sign(x: Array, out: Array) -> None:
    np.sign(x, out=out)
    out[np.isnan(x)] = 0  # as PyTorch has it


FUNCTIONS: dict[str, Any] = {"round": np.rint, "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "sign": _sign}


@register("step")
class StepFunction(Unary):
    """y = a ``function`` of x that is constant but for jumps: round (halves to even), floor, ceil, trunc or sign."""

    function: str
    kept = NOTHING

    def forward(self, call: Call) -> None:
        FUNCTIONS[self.function](call.inputs[0], out=call.outputs[0])

    @classmethod
    def example(cls, random: Random) -> Example:
        return example(cls(random.choice([*FUNCTIONS])), random)


def step(input: Tensor, function: str, *, name: str | None = None) -> Tensor:
    """Round floats to whole numbers ("round" with halves to even, "floor", "ceil", "trunc"), or take their "sign". Any shape in,
    the same out; the gradient is 0, as in PyTorch. Raises ValueError for another function."""
    if function not in FUNCTIONS:
        raise ValueError(f"step: function must be one of {', '.join(FUNCTIONS)}, got {function!r}")
    return input.graph.apply(StepFunction(function), (input,), name=name)[0]
