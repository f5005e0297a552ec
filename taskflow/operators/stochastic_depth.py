"""stochastic_depth: leaves whole samples out of a branch at random (torchvision.ops.stochastic_depth, mode "row").

Huang, Sun, Liu, Sedra, Weinberger, "Deep networks with stochastic depth", arXiv 1603.09382.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np

from taskflow.operators.dropout import Dropout, generator_key
from taskflow.operators.operator import Array, Call, Example, Spec, register, takes
from taskflow.operators.tensor import Tensor
from taskflow.regions import Rect


@register("stochastic_depth")
class StochasticDepth(Dropout):
    """x (N, ...) -> y of the same shape: in training a whole sample is 0 with probability p, else x / (1 - p); in evaluation x.
    As for `dropout`, the choice depends on position, name, seed and step. Forward saves one byte for each sample."""

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        takes("stochastic_depth", inputs, 1)
        (x,) = inputs
        if not 0 <= self.p < 1:
            raise ValueError(f"stochastic_depth: p must be at least 0 and below 1, got {self.p}")
        if not x.shape or not x.differentiable:
            raise ValueError(f"stochastic_depth: input must be a float tensor (N, ...), got {x}")
        return (x,)

    def saves(self, inputs: Sequence[Spec], piece: Rect) -> tuple[Spec, ...]:
        return (Spec(piece.shape[:1], np.dtype(np.bool_)),)

    def forward(self, call: Call) -> None:
        (x,), (y,), (mask,) = call.inputs, call.outputs, call.saved
        if not call.state.training:
            y[...] = x
            return
        ones = call.kernels.xp.ones(mask.shape, x.dtype)
        key, samples = generator_key(call.state, call.name), call.specs[0].shape[:1]
        factors = call.kernels.xp.empty(mask.shape, x.dtype)
        call.kernels.dropout(key, call.state.step, samples, call.piece.lo[:1], self.p, ones, out=factors, mask=mask)
        np.multiply(x, _as_samples(factors, x), out=y)

    def backward(self, call: Call) -> None:
        dy, dx = call.grad, call.grad_inputs[0]
        if dx is not None and call.state.training:
            dx.put(dy * (_as_samples(call.saved[0], dy) * dy.dtype.type(1 / (1 - self.p))))
        elif dx is not None:
            dx.put(dy)

    @classmethod
    def example(cls, random: Random) -> Example:
        shape = (random.randint(1, 6), *(random.randint(1, 4) for _ in range(random.randint(0, 3))))
        return Example(cls(random.choice((0.0, 0.25, 0.5, 0.7))), (Spec(shape, np.dtype(np.float64)),))


def _as_samples(numbers: Array, x: Array) -> Array:
    """(n), such that it is repeated over all dimensions of x but the first."""
    return numbers.reshape(-1, *(1,) * (x.ndim - 1))


def stochastic_depth(input: Tensor, p: float, *, name: str | None = None) -> Tensor:
    """Zero each sample with probability ``p`` while training and scale the others by 1 / (1 - p): for branches beside a skip
    connection.

    Args: input (N, ...). Returns the same shape. Another name, seed or step leaves out other samples. Raises ValueError unless
    0 <= p < 1.
    """
    return input.graph.apply(StochasticDepth(float(p)), (input,), name=name)[0]
