"""exp, log, sqrt, rsqrt, sin, cos, abs, pow: elementary functions, element by element (PyTorch: torch.exp and so on). They share
every rule but the arithmetic."""

from __future__ import annotations

from random import Random

import numpy as np

from taskflow.operators.operator import INPUTS, Array, Call, Example, register
from taskflow.operators.tensor import Tensor
from taskflow.operators.unary import Unary, example


class Elementary(Unary):
    """x -> y = `value` of x, element by element; the derivative is `slope` of x or of y."""

    __slots__ = ()

    def value(self, x: Array) -> Array:
        """Return the function's value at x."""
        raise NotImplementedError

    def slope(self, x: Array, y: Array) -> Array:
        """Return its derivative, from the array that `keeps` leaves, x or y."""
        raise NotImplementedError

    def forward(self, call: Call) -> None:
        call.outputs[0][...] = self.value(call.inputs[0])

    def backward(self, call: Call) -> None:
        if (dx := call.grad_inputs[0]) is not None:
            dx.put(call.grad * self.slope(call.inputs[0], call.outputs[0]))


@register("exp")
class Exp(Elementary):
    """y = e to the x."""

    def value(self, x: Array) -> Array:
        return np.exp(x)

    def slope(self, x: Array, y: Array) -> Array:
        return y


@register("log")
class Log(Elementary):
    """y = the natural logarithm of x."""

    kept = INPUTS
    positive = True

    def value(self, x: Array) -> Array:
        return np.log(x)

    def slope(self, x: Array, y: Array) -> Array:
        return 1 / x


@register("sqrt")
class Sqrt(Elementary):
    """y = the square root of x; the derivative at 0 is infinite."""

    positive = True

    def value(self, x: Array) -> Array:
        return np.sqrt(x)

    def slope(self, x: Array, y: Array) -> Array:
        return 0.5 / y


@register("rsqrt")
class Rsqrt(Elementary):
    """y = 1 / the square root of x."""

    positive = True

    def value(self, x: Array) -> Array:
        return 1 / np.sqrt(x)

    def slope(self, x: Array, y: Array) -> Array:
        return -0.5 * y * y * y


@register("sin")
class Sin(Elementary):
    """y = the sine of x."""

    kept = INPUTS

    def value(self, x: Array) -> Array:
        return np.sin(x)

    def slope(self, x: Array, y: Array) -> Array:
        return np.cos(x)


@register("cos")
class Cos(Elementary):
    """y = the cosine of x."""

    kept = INPUTS

    def value(self, x: Array) -> Array:
        return np.cos(x)

    def slope(self, x: Array, y: Array) -> Array:
        return -np.sin(x)


@register("abs")
class Abs(Elementary):
    """y = absolute value of x; the derivative at 0 is 0."""

    kept = INPUTS

    def value(self, x: Array) -> Array:
        return np.abs(x)

    def slope(self, x: Array, y: Array) -> Array:
        return (x > 0).astype(x.dtype) - (x < 0)  # of NaN 0, as PyTorch's sign


@register("pow")
class Power(Elementary):
    """y = x to the power of a number, which is not trained and not 0."""

    exponent: float
    kept = INPUTS

    def value(self, x: Array) -> Array:
        return _power(x, self.exponent)

    def slope(self, x: Array, y: Array) -> Array:
        return self.exponent * _power(x, self.exponent - 1)

    @classmethod
    def example(cls, random: Random) -> Example:
        exponent = random.choice((2.0, 2.0, 3.0, -1.0, 0.5, -1.5, 2.5))
        drawn = example(cls(exponent), random)
        return Example(drawn.operator, drawn.inputs, positive=exponent != int(exponent))


def _power(x: Array, exponent: float) -> Array:
    """x to the power of a number. Some powers are quicker another way, in which PyTorch takes them, too: the square root of minus
    infinity is NaN, and one over that of -0 is minus infinity."""
    if exponent == 1:
        return x
    if exponent == 2:
        return x * x
    if exponent == 0.5:
        return np.sqrt(x)
    if exponent == -0.5:
        return 1 / np.sqrt(x)
    return np.power(x, exponent)


def exp(input: Tensor, *, name: str | None = None) -> Tensor:
    """e to the power of every element. Any shape in, the same shape out."""
    return input.graph.apply(Exp(), (input,), name=name)[0]


def log(input: Tensor, *, name: str | None = None) -> Tensor:
    """The natural logarithm of every element, which must be positive. Any shape in, the same shape out."""
    return input.graph.apply(Log(), (input,), name=name)[0]


def sqrt(input: Tensor, *, name: str | None = None) -> Tensor:
    """The square root of every element, which must be positive. Any shape in, the same shape out."""
    return input.graph.apply(Sqrt(), (input,), name=name)[0]


def rsqrt(input: Tensor, *, name: str | None = None) -> Tensor:
    """1 / the square root of every element, which must be positive. Any shape in, the same shape out."""
    return input.graph.apply(Rsqrt(), (input,), name=name)[0]


def sin(input: Tensor, *, name: str | None = None) -> Tensor:
    """The sine of every element. Any shape in, the same shape out."""
    return input.graph.apply(Sin(), (input,), name=name)[0]


def cos(input: Tensor, *, name: str | None = None) -> Tensor:
    """The cosine of every element. Any shape in, the same shape out."""
    return input.graph.apply(Cos(), (input,), name=name)[0]


def abs(input: Tensor, *, name: str | None = None) -> Tensor:
    """The absolute value of every element. Any shape in, the same shape out."""
    return input.graph.apply(Abs(), (input,), name=name)[0]


def pow(input: Tensor, exponent: float, *, name: str | None = None) -> Tensor:
    """Every element to the power of a number, which is not trained. Any shape in, the same shape out.

    Elements must be positive unless the exponent is a whole number. Raises ValueError for an exponent of 0.
    """
    if exponent == 0:
        raise ValueError("pow: exponent must not be 0; x to the power of 0 is 1 whatever x is")
    return input.graph.apply(Power(float(exponent)), (input,), name=name)[0]
