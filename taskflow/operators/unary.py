"""scale, shift, relu, tanh, sigmoid, gelu: one value in, one value out (PyTorch: torch.mul by a number, torch.add
of one, torch.relu, torch.tanh, torch.sigmoid, torch.nn.functional.gelu). They share every rule but the arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np

from taskflow.operators.operator import INPUTS, NOTHING, OUTPUTS, Call, Example, Operator, Spec, register, takes
from taskflow.operators.tensor import Tensor


class Unary(Operator):
    """x -> y of the same shape, element by element."""

    __slots__ = ()

    kept = OUTPUTS  # from which backward computes the derivative
    flops_per_element = 1
    positive = False  # whether it is defined for positive numbers only

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        takes(self.kind, inputs, 1)
        if not inputs[0].differentiable:
            raise ValueError(f"{self.kind}: input must be a float tensor, got {inputs[0]}")
        return (inputs[0],)

    @classmethod
    def example(cls, random: Random) -> Example:
        return example(cls(), random)  # those with attributes draw these too


class Activation(Unary):
    """One of the functions of `KernelSet.activate`, named by its kind."""

    __slots__ = ()

    def forward(self, call: Call) -> None:
        call.kernels.activate(self.kind, call.inputs[0], out=call.outputs[0])

    def backward(self, call: Call) -> None:
        if (dx := call.grad_inputs[0]) is not None:
            call.kernels.activate_backward(
                self.kind, call.outputs[0], call.grad, out=dx.array, accumulate=dx.accumulate
            )


@register("scale")
class Scale(Unary):
    """y = factor x."""

    factor: float
    kept = NOTHING

    def forward(self, call: Call) -> None:
        np.multiply(call.inputs[0], self.factor, out=call.outputs[0])

    def backward(self, call: Call) -> None:
        dx = call.grad_inputs[0]
        if dx is not None and dx.accumulate:
            dx.array += call.grad * self.factor
        elif dx is not None:
            np.multiply(call.grad, self.factor, out=dx.array)

    @classmethod
    def example(cls, random: Random) -> Example:
        return example(cls(random.uniform(-2, 2)), random)


@register("shift")
class Shift(Unary):
    """y = x + number."""

    number: float
    kept = NOTHING

    def forward(self, call: Call) -> None:
        np.add(call.inputs[0], self.number, out=call.outputs[0])

    def backward(self, call: Call) -> None:
        if (dx := call.grad_inputs[0]) is not None:
            dx.put(call.grad)

    @classmethod
    def example(cls, random: Random) -> Example:
        return example(cls(random.uniform(-2, 2)), random)


@register("relu")
class ReLU(Activation):
    """y = max(x, 0); the derivative at 0 is 0."""


@register("tanh")
class Tanh(Activation):
    """y = tanh(x)."""


@register("sigmoid")
class Sigmoid(Activation):
    """y = 1 / (1 + exp(-x))."""


@register("gelu")
class GELU(Unary):
    """y = x Phi(x), Phi the standard normal distribution (Hendrycks and Gimpel, arXiv 1606.08415), or with ``approximate``
    "tanh" the paper's approximation of it."""

    approximate: str = "none"
    kept = INPUTS

    def forward(self, call: Call) -> None:
        call.kernels.gelu(call.inputs[0], self.approximate == "tanh", out=call.outputs[0])

    def backward(self, call: Call) -> None:
        if (dx := call.grad_inputs[0]) is not None:
            call.kernels.gelu_backward(
                call.inputs[0], self.approximate == "tanh", call.grad, out=dx.array, accumulate=dx.accumulate
            )

    @classmethod
    def example(cls, random: Random) -> Example:
        return example(cls(random.choice(("none", "tanh"))), random)


def example(operator: Unary, random: Random) -> Example:
    """Draw any shape, with numbers that `Example` describes."""
    shape = tuple(random.randint(1, 5) for _ in range(random.randint(0, 4)))
    return Example(operator, (Spec(shape, np.dtype(np.float64)),), positive=operator.positive)


def scale(input: Tensor, factor: float, *, name: str | None = None) -> Tensor:
    """Every element times a number, which is not trained. Any shape in, the same shape out."""
    return input.graph.apply(Scale(float(factor)), (input,), name=name)[0]


def shift(input: Tensor, number: float, *, name: str | None = None) -> Tensor:
    """Every element plus a number, which is not trained. Any shape in, the same shape out."""
    return input.graph.apply(Shift(float(number)), (input,), name=name)[0]


def relu(input: Tensor, *, name: str | None = None) -> Tensor:
    """max(x, 0) of every element. Any shape in, the same shape out."""
    return input.graph.apply(ReLU(), (input,), name=name)[0]


def tanh(input: Tensor, *, name: str | None = None) -> Tensor:
    """tanh of every element. Any shape in, the same shape out."""
    return input.graph.apply(Tanh(), (input,), name=name)[0]


def sigmoid(input: Tensor, *, name: str | None = None) -> Tensor:
    """1 / (1 + exp(-x)) of every element. Any shape in, the same shape out."""
    return input.graph.apply(Sigmoid(), (input,), name=name)[0]


def gelu(input: Tensor, approximate: str = "none", *, name: str | None = None) -> Tensor:
    """x times the probability that a standard normal number is below x. Any shape in, the same shape out.

    ``approximate``: "none" is exact, "tanh" the usual approximation.
    """
    if approximate not in ("none", "tanh"):
        raise ValueError(f"gelu: approximate must be 'none' or 'tanh', got {approximate!r}")
    return input.graph.apply(GELU(approximate), (input,), name=name)[0]
