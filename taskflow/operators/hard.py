"""hardtanh, clamp, leaky_relu, hardsigmoid, hardswish: functions made of straight lines (PyTorch: torch.nn.functional.hardtanh,
torch.clamp, leaky_relu, hardsigmoid, hardswish; relu6 is hardtanh between 0 and 6). They share every rule of `unary` but the
arithmetic. At the corners, derivatives are PyTorch's.

Hard swish: Howard et al., "Searching for MobileNetV3", arXiv 1905.02244, section 5.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import ge, gt, le, lt
from random import Random

import numpy as np

from taskflow.floats import is_narrow
from taskflow.operators.operator import INPUTS, Array, Call, Example, Spec, register
from taskflow.operators.tensor import Tensor
from taskflow.operators.unary import Unary, example


@register("hardtanh")
class Hardtanh(Unary):
    """y = min(max(x, low), high); the derivative at both bounds is 0."""

    low: float
    high: float

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        if not self.low < self.high:
            raise ValueError(f"hardtanh: low must be below high, got {self.low} and {self.high}")
        return Unary.output(self, inputs)

    def forward(self, call: Call) -> None:
        _between(call.inputs[0], self.low, self.high, call.outputs[0])

    def backward(self, call: Call) -> None:
        if (dx := call.grad_inputs[0]) is not None:
            y = call.outputs[0]
            dx.put(call.grad * ((y > self.low) & (y < self.high)))

    @classmethod
    def example(cls, random: Random) -> Example:
        return example(cls(random.uniform(-1.2, -0.3), random.uniform(0.3, 1.2)), random)


@register("clamp")
class Clamp(Unary):
    """y = min(max(x, low), high), None: without that bound. The derivative at the bounds is 1, or 0 where ``strict`` (as in
    PyTorch before and since 2.14); of NaN it is 0, unlike `hardtanh`'s."""

    low: float | None
    high: float | None
    strict: bool
    kept = INPUTS

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        if self.low is None and self.high is None:
            raise ValueError("clamp: needs low, high or both")
        return Unary.output(self, inputs)

    def forward(self, call: Call) -> None:
        _between(call.inputs[0], self.low, self.high, call.outputs[0])

    def backward(self, call: Call) -> None:
        if (dx := call.grad_inputs[0]) is not None:
            x = call.inputs[0]
            above, below = (gt, lt) if self.strict else (ge, le)
            passes = x == x if self.low is None else above(x, self.low)
            dx.put(call.kernels.xp.where(passes if self.high is None else passes & below(x, self.high), call.grad, 0))

    @classmethod
    def example(cls, random: Random) -> Example:
        low, high = random.uniform(-1.2, -0.3), random.uniform(0.3, 1.2)
        bounds = random.choice(((low, high), (low, None), (None, high)))
        return example(cls(bounds[0], bounds[1], random.random() < 0.5), random)


@register("leaky_relu")
class LeakyReLU(Unary):
    """y = x above 0, elsewhere slope x; the derivative at 0 is the slope."""

    slope: float
    kept = INPUTS

    def forward(self, call: Call) -> None:
        (x,), (y,) = call.inputs, call.outputs
        np.multiply(x, self.slope, out=y)
        np.copyto(y, x, where=x > 0)

    def backward(self, call: Call) -> None:
        if (dx := call.grad_inputs[0]) is not None:
            dx.put(call.kernels.xp.where(call.inputs[0] > 0, call.grad, call.grad * self.slope))

    @classmethod
    def example(cls, random: Random) -> Example:
        return example(cls(random.uniform(0.0, 0.5)), random)


@register("hardsigmoid")
class Hardsigmoid(Unary):
    """y = min(max(x / 6 + 1 / 2, 0), 1); the derivative at both bounds is 0."""

    def forward(self, call: Call) -> None:
        _rise(call.inputs[0], call.outputs[0])

    def backward(self, call: Call) -> None:
        if (dx := call.grad_inputs[0]) is not None:
            y = call.outputs[0]
            dx.put(call.grad * ((y > 0) & (y < 1)) * (1 / 6))


@register("hardswish")
class Hardswish(Unary):
    """y = x min(max(x / 6 + 1 / 2, 0), 1)."""

    kept = INPUTS

    def forward(self, call: Call) -> None:
        (x,), (y,) = call.inputs, call.outputs
        _rise(x, y)
        np.multiply(y, x, out=y)

    def backward(self, call: Call) -> None:
        if (dx := call.grad_inputs[0]) is not None:
            x = call.inputs[0]
            xp = call.kernels.xp
            slope = _rise(x, xp.empty(x.shape, x.dtype))
            slope += xp.where((x > -3) & (x < 3), x * (1 / 6), 0)
            dx.put(slope * call.grad)


def _between(x: Array, low: float | None, high: float | None, out: Array) -> None:
    """out = min(max(x, low), high); NaN stays, and -0 is no less than 0."""
    if high is None:
        out[...] = x
    else:
        np.minimum(x, high, out=out)
    if low is not None:
        np.copyto(out, low, where=out < low)


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


def clamp(
    input: Tensor, low: float | None = None, high: float | None = None, *, strict: bool = False, name: str | None = None,
) -> Tensor:
    """Limit every element from below by ``low``, from above by ``high``, or both. Any shape in, the same shape out. Where an
    element is at a bound its gradient passes, as in torch.clamp before PyTorch 2.14; with ``strict`` it stops, as since then.
    Raises ValueError without a bound.

    For a 16-bit tensor the bounds are rounded to its type."""
    if is_narrow(input.dtype):
        low, high = (None if bound is None else float(input.dtype.type(bound)) for bound in (low, high))
    low, high = (None if bound is None else float(bound) for bound in (low, high))
    return input.graph.apply(Clamp(low, high, strict), (input,), name=name)[0]


def leaky_relu(input: Tensor, slope: float = 0.01, *, name: str | None = None) -> Tensor:
    """Every element above 0 as it is, others times ``slope``. Any shape in, the same shape out."""
    return input.graph.apply(LeakyReLU(float(slope)), (input,), name=name)[0]


def hardsigmoid(input: Tensor, *, name: str | None = None) -> Tensor:
    """x / 6 + 1 / 2 of every element, at least 0 and at most 1. Any shape in, the same shape out."""
    return input.graph.apply(Hardsigmoid(), (input,), name=name)[0]


def hardswish(input: Tensor, *, name: str | None = None) -> Tensor:
    """x times its `hardsigmoid`, of every element. Any shape in, the same shape out."""
    return input.graph.apply(Hardswish(), (input,), name=name)[0]
