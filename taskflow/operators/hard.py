"""hardtanh, hardsigmoid, hardswish: activations made of straight lines (PyTorch: torch.nn.functional.hardtanh, hardsigmoid,
hardswish; relu6 is hardtanh between 0 and 6). They share every rule of `unary` but the arithmetic.

Hard swish: Howard et al., "Searching for MobileNetV3", arXiv 1905.02244, section 5.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import ClassVar

import numpy as np

from taskflow.floats import is_narrow
from taskflow.operators.operator import Array, Call, Example, Spec, register
from taskflow.operators.tensor import Tensor
from taskflow.operators.unary import Unary, example


@register("hardtanh")
@dataclass(frozen=True, slots=True)
class Hardtanh(Unary):
    """y = min(max(x, low), high); the derivative at both bounds is 0."""

    low: float
    high: float

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        if not self.low < self.high:
            raise ValueError(f"hardtanh: low must be below high, got {self.low} and {self.high}")
        return Unary.output(self, inputs)

    def forward(self, call: Call) -> None:
        np.maximum(call.inputs[0], self.low, out=call.outputs[0])
        np.minimum(call.outputs[0], self.high, out=call.outputs[0])

    def backward(self, call: Call) -> None:
        if (dx := call.grad_inputs[0]) is not None:
            y = call.outputs[0]
            dx.put(call.grad * ((y > self.low) & (y < self.high)))

    @classmethod
    def example(cls, random: Random) -> Example:
        return example(cls(random.uniform(-1.2, -0.3), random.uniform(0.3, 1.2)), random)


@register("hardsigmoid")
@dataclass(frozen=True, slots=True)
class Hardsigmoid(Unary):
    """y = min(max(x / 6 + 1 / 2, 0), 1); the derivative at both bounds is 0."""

    def forward(self, call: Call) -> None:
        _rise(call.inputs[0], call.outputs[0])

    def backward(self, call: Call) -> None:
        if (dx := call.grad_inputs[0]) is not None:
            y = call.outputs[0]
            dx.put(call.grad * ((y > 0) & (y < 1)) * (1 / 6))

    @classmethod
    def example(cls, random: Random) -> Example:
        return example(cls(), random)


@register("hardswish")
@dataclass(frozen=True, slots=True)
class Hardswish(Unary):
    """y = x min(max(x / 6 + 1 / 2, 0), 1)."""

    keeps_output: ClassVar[bool] = False
    keeps_input: ClassVar[bool] = True

    def forward(self, call: Call) -> None:
        (x,), (y,) = call.inputs, call.outputs
        _rise(x, y)
        np.multiply(y, x, out=y)

    def backward(self, call: Call) -> None:
        if (dx := call.grad_inputs[0]) is not None:
            x = call.inputs[0]
            slope = _rise(x, call.kernels.xp.empty(x.shape, x.dtype))
            slope += ((x > -3) & (x < 3)) * (x * (1 / 6))
            dx.put(slope * call.grad)

    @classmethod
    def example(cls, random: Random) -> Example:
        return example(cls(), random)


def _rise(x: Array, out: Array) -> Array:
    """out = min(max(x / 6 + 1 / 2, 0), 1)."""
    np.multiply(x, 1 / 6, out=out)
    np.add(out, 0.5, out=out)
    np.maximum(out, 0.0, out=out)
    np.minimum(out, 1.0, out=out)
    return out


def hardtanh(input: Tensor, low: float = -1.0, high: float = 1.0, *, name: str | None = None) -> Tensor:
    """Clamp every element between two bounds. Any shape in, the same shape out. Raises ValueError unless low < high.

    For a 16-bit tensor the bounds are rounded to its type."""
    if is_narrow(input.dtype):  # the derivative asks whether the rounded result is at a bound
        low, high = (float(input.dtype.type(bound)) for bound in (low, high))
    return input.graph.apply(Hardtanh(float(low), float(high)), (input,), name=name)[0]


def hardsigmoid(input: Tensor, *, name: str | None = None) -> Tensor:
    """x / 6 + 1 / 2 of every element, at least 0 and at most 1. Any shape in, the same shape out."""
    return input.graph.apply(Hardsigmoid(), (input,), name=name)[0]


def hardswish(input: Tensor, *, name: str | None = None) -> Tensor:
    """x times its `hardsigmoid`, of every element. Any shape in, the same shape out."""
    return input.graph.apply(Hardswish(), (input,), name=name)[0]
