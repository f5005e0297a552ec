"""erf: the error function, element by element (PyTorch: torch.erf). The normal distribution function is (1 + erf(x / sqrt 2)) / 2.

numpy has no such function. Near 0 it is its power series; elsewhere 1 - exp(-x x) times a function that is nearly straight, as the
polynomial through its values at Chebyshev's points.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from taskflow.operators.elementary import Elementary
from taskflow.operators.operator import INPUTS, Array, register
from taskflow.operators.tensor import Tensor

NEAR, FAR = 1.0, 6.0  # from FAR on it is 1 in double precision
TERMS = 20  # of the power series: the last is below 1e-19 at NEAR
DEGREE = 30


@register("erf")
class Erf(Elementary):
    """y = 2 / sqrt(pi) times the integral of exp(-t t) from 0 to x."""

    kept = INPUTS

    def value(self, x: Array) -> Array:
        size = np.abs(x)
        return np.where(size < NEAR, _near(np.minimum(np.maximum(x, -NEAR), NEAR)), np.copysign(_far(size), x))

    def slope(self, x: Array, y: Array) -> Array:
        return 2 / math.sqrt(math.pi) * np.exp(-x * x)


def _near(x: Array) -> Array:
    """The series x (1 - x x / 3 + ...) 2 / sqrt(pi)."""
    squares, total = x * x, 0.0 * x
    for n in reversed(range(TERMS)):
        total = total * squares + 2 / math.sqrt(math.pi) * (-1) ** n / (math.factorial(n) * (2 * n + 1))
    return total * x


def _far(size: Array) -> Array:
    """Of absolute values from `NEAR` on, by Clenshaw's rule."""
    size = np.minimum(np.maximum(size, NEAR), FAR)
    at = (2 * size - (NEAR + FAR)) / (FAR - NEAR)
    one, two = 0.0 * at, 0.0 * at
    for coefficient in reversed(_coefficients()[1:]):
        one, two = 2 * at * one - two + coefficient, one
    return 1 - np.exp(-size * size) * (at * one - two + _coefficients()[0])


@cache
def _coefficients() -> tuple[float, ...]:
    """Chebyshev's coefficients of exp(x x) (1 - erf(x)) between `NEAR` and `FAR`."""
    def values(at: Array) -> Array:
        numbers = ((FAR - NEAR) * at + NEAR + FAR) / 2
        return np.array([math.exp(x * x) * math.erfc(x) for x in numbers.tolist()])

    return tuple(np.polynomial.chebyshev.chebinterpolate(values, DEGREE).tolist())


def erf(input: Tensor, *, name: str | None = None) -> Tensor:
    """The error function of every element. Any shape in, the same shape out."""
    return input.graph.apply(Erf(), (input,), name=name)[0]
