"""elu, softplus, mish: activations made of exponentials (PyTorch: torch.nn.functional.elu, also selu and celu; softplus; mish).
They share every rule of `elementary` but the arithmetic.

ELU: Clevert et al., arXiv 1511.07289. Mish: Misra, arXiv 1908.08681.
"""

from __future__ import annotations

from random import Random

import numpy as np

from taskflow.operators.elementary import Elementary
from taskflow.operators.operator import INPUTS, Array, Example, register
from taskflow.operators.tensor import Tensor
from taskflow.operators.unary import example


@register("elu")
class ELU(Elementary):
    """y = scale x above 0, elsewhere scale alpha (exp(rate x) - 1)."""

    alpha: float
    scale: float = 1.0
    rate: float = 1.0
    kept = INPUTS

    def value(self, x: Array) -> Array:
        y = np.empty_like(x)
        np.copyto(y, self.scale * self.alpha * np.expm1(self.rate * np.minimum(x, 0.0)))
        np.copyto(y, self.scale * x, where=x >= 0)  # a zero keeps its sign
        return y

    def slope(self, x: Array, y: Array) -> Array:
        above = x > 0
        below = np.exp(self.rate * np.minimum(x, 0.0))
        return self.scale * (above + ~above * (self.alpha * self.rate) * below)

    @classmethod
    def example(cls, random: Random) -> Example:
        return example(cls(*(random.uniform(0.5, 2) for _ in range(3))), random)


@register("softplus")
class Softplus(Elementary):
    """y = log(1 + exp(beta x)) / beta, and x itself where beta x is above the threshold."""

    beta: float
    threshold: float
    kept = INPUTS

    def value(self, x: Array) -> Array:
        scaled = self.beta * x
        y = np.empty_like(x)
        np.copyto(y, _log_one_plus_exp(scaled) / self.beta)
        np.copyto(y, x, where=scaled > self.threshold)
        return y

    def slope(self, x: Array, y: Array) -> Array:
        scaled = self.beta * x
        linear = scaled > self.threshold
        return linear + ~linear * _sigmoid(scaled)

    @classmethod
    def example(cls, random: Random) -> Example:
        return example(cls(random.uniform(0.5, 2), 20.0), random)


@register("mish")
class Mish(Elementary):
    """y = x tanh(log(1 + exp(x)))."""

    kept = INPUTS

    def value(self, x: Array) -> Array:
        return x * np.tanh(_log_one_plus_exp(x))

    def slope(self, x: Array, y: Array) -> Array:
        rise = np.tanh(_log_one_plus_exp(x))
        return rise + x * (1 - rise * rise) * _sigmoid(x)


def _log_one_plus_exp(x: Array) -> Array:
    return np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x)))


def _sigmoid(x: Array) -> Array:
    return 0.5 * np.tanh(0.5 * x) + 0.5


def elu(input: Tensor, alpha: float = 1.0, scale: float = 1.0, rate: float = 1.0, *, name: str | None = None) -> Tensor:
    """scale x of every element above 0, of others scale alpha (exp(rate x) - 1). Any shape in, the same shape out."""
    return input.graph.apply(ELU(float(alpha), float(scale), float(rate)), (input,), name=name)[0]


def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0, *, name: str | None = None) -> Tensor:
    """log(1 + exp(beta x)) / beta of every element; those where beta x is above the threshold as they are. Any shape in, the same
    shape out."""
    return input.graph.apply(Softplus(float(beta), float(threshold)), (input,), name=name)[0]


def mish(input: Tensor, *, name: str | None = None) -> Tensor:
    """x tanh(log(1 + exp(x))) of every element. Any shape in, the same shape out."""
    return input.graph.apply(Mish(), (input,), name=name)[0]
