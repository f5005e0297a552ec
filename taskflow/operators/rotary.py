"""rotary: rotary position embedding of queries and keys, with the pairs of Llama's ``rotate_half`` or with neighbours as pairs.

Su, Lu, Pan, Murtadha, Wen, Liu, "RoFormer", arXiv 2104.09864; scaled frequencies: Llama 3.1's published configuration.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import pi
from random import Random
from typing import Any

import numpy as np

from taskflow.operators.operator import NOTHING, Array, Call, Example, Operator, register
from taskflow.operators.spec import Dim, Spec, sample_and_attributes, takes
from taskflow.operators.tensor import Tensor

Scaling = tuple[float, float, float, int]
"""Factor, low and high frequency factor, and the context of the first training: ``rope_scaling`` of Llama 3.1."""


@register("rotary")
class Rotary(Operator):
    """x (N, T, ..., D) -> y of the same shape: at position t, elements i and i + D / 2 are rotated by the angle (t + offset)
    theta^(-2 i / D). With ``rates`` the angle is (t + offset) times number i of them. All are multiplied by ``factor``.
    With ``neighbours`` pairs are elements 2 i and 2 i + 1. The position is that in the whole tensor, so T may be cut. D cannot,
    since each element needs its partner. Nothing is saved: backward rotates the other way."""

    theta: float
    offset: int = 0
    scaling: Scaling | None = None
    rates: tuple[float, ...] | None = None
    factor: float = 1.0
    neighbours: bool = False
    kept = NOTHING
    flops_per_element = 3
    backward_flops_per_element = 3

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        takes("rotary", inputs, 1)
        (x,) = inputs
        if len(x.shape) < 3 or x.shape[-1] % 2 or not x.differentiable:
            raise ValueError(f"rotary: input must be a float tensor (N, T, ..., features) with even features, got {x}")
        if not self.theta > 0 or self.offset < 0:
            raise ValueError(f"rotary: theta must be above 0 and offset at least 0, got {self.theta} and {self.offset}")
        if self.rates is not None and len(self.rates) != x.shape[-1] // 2:
            raise ValueError(f"rotary: rates must be {x.shape[-1] // 2}, one for each pair of {x}, got {len(self.rates)}")
        if self.scaling is not None and not 0 < self.scaling[1] < self.scaling[2]:
            raise ValueError(f"rotary: scaling must be (factor, low, high, context) with low below high, got {self.scaling}")
        return (x,)

    def dims(self, inputs: Sequence[Spec]) -> tuple[Dim, ...]:
        shape = inputs[0].shape
        return sample_and_attributes(shape, fixed=len(shape) - 1)

    def forward(self, call: Call) -> None:
        cosine, sine = self._waves(call)
        first, second = self._pairs(call.inputs[0])
        low, high = self._pairs(call.outputs[0])
        low[...] = first * cosine - second * sine
        high[...] = second * cosine + first * sine

    def backward(self, call: Call) -> None:
        if (dx := call.grad_inputs[0]) is None:
            return
        cosine, sine = self._waves(call)
        first, second = self._pairs(call.grad)
        turned = call.kernels.xp.empty(call.grad.shape, call.grad.dtype)
        low, high = self._pairs(turned)
        low[...] = first * cosine + second * sine
        high[...] = second * cosine - first * sine
        dx.put(turned)

    def _pairs(self, x: Array) -> tuple[Array, Array]:
        """The first and the second elements of all pairs."""
        if self.neighbours:
            return x[..., 0::2], x[..., 1::2]
        half = x.shape[-1] // 2
        return x[..., :half], x[..., half:]

    def _waves(self, call: Call) -> tuple[Array, Array]:
        """Cosines and sines of the piece's positions, to stand beside one half of x."""
        shape, dtype = call.specs[0].shape, call.specs[0].dtype.str
        steps = (call.piece.lo[1] + self.offset, call.piece.hi[1] + self.offset)
        key = (*steps, shape[-1], self.theta, self.scaling, dtype, self.rates, self.factor)
        waves = call.kernels.constant(("rotary", *key), lambda: angles(*key))
        parts = [part.reshape(-1, *[1] * (len(shape) - 3), shape[-1] // 2) for part in waves]
        return parts[0], parts[1]

    @classmethod
    def example(cls, random: Random) -> Example:
        shape = (*(random.randint(1, 4) for _ in range(random.randint(2, 3))), 2 * random.randint(1, 3))
        scaling = random.choice((None, (8.0, 1.0, 4.0, 16)))
        rates = random.choice((None, tuple(random.uniform(0, 1) for _ in range(shape[-1] // 2))))
        operator = cls(
            random.choice((10.0, 10_000.0)), random.choice((0, 5)), scaling, rates, random.choice((1.0, 1.3)),
            random.random() < 0.5,
        )
        return Example(operator, (Spec(shape, np.dtype(np.float64)),))


@lru_cache(maxsize=64)
def angles(
    start: int, end: int, features: int, theta: float, scaling: Scaling | None, dtype: str,
    rates: tuple[float, ...] | None = None, factor: float = 1.0,
) -> np.ndarray[Any, Any]:
    """Return cosines and sines (2, end - start, features / 2), times ``factor``, for positions from ``start`` to below ``end``."""
    turned = np.arange(start, end)[:, None] * (frequencies(features, theta, scaling) if rates is None else np.array(rates))
    return (factor * np.stack((np.cos(turned), np.sin(turned)))).astype(dtype)


def frequencies(features: int, theta: float, scaling: Scaling | None = None) -> np.ndarray[Any, Any]:
    """Return the radians a position of each pair, (features / 2). With ``scaling``, waves longer than context / low are slowed
    by the factor, waves shorter than context / high are not, and those between are interpolated."""
    rates: np.ndarray[Any, Any] = theta ** (-np.arange(0, features, 2) / features)
    if scaling is None:
        return rates
    factor, low, high, context = scaling
    share = np.clip((context * rates / (2 * pi) - low) / (high - low), 0, 1)
    return rates * (share + (1 - share) / factor)


def rotary(
    input: Tensor, theta: float = 10_000.0, *, offset: int = 0, scaling: Scaling | None = None,
    rates: Sequence[float] | None = None, factor: float = 1.0, neighbours: bool = False, name: str | None = None,
) -> Tensor:
    """Rotate pairs of features by angles that grow with the position, so that products of queries and keys depend on their
    distance.

    Args: input (N, T, ..., D), such as (N, T, heads, D); D even. Pairs are elements i and i + D / 2 (Llama's ``rotate_half``).
    ``theta``: the base of the wave lengths. ``offset``: the position of the first element. ``scaling``: (factor, low, high,
    context) as in Llama 3.1. ``rates``: radians a position of each pair, in place of theta and scaling. ``factor``: of the result
    (YaRN). ``neighbours``: pairs are elements 2 i and 2 i + 1 (GPT-J). Returns the same shape.
    """
    chosen = None if rates is None else tuple(map(float, rates))
    return input.graph.apply(Rotary(float(theta), offset, scaling, chosen, factor, neighbours), (input,), name=name)[0]
