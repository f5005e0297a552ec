"""logcumsumexp: logarithms of the sums of exponentials up to each element, along a dimension (PyTorch: torch.logcumsumexp)."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np

from taskflow.operators.operator import Array, Call, Dim, Example, Keeps, Spec, axis, register, sample_and_attributes
from taskflow.operators.tensor import Tensor
from taskflow.operators.unary import Unary


@register("logcumsumexp")
class LogCumSumExp(Unary):
    """y[..., i, ...] = log(the sum of exp(x[..., 0 to i, ...])) along ``dim``. Every other dimension can be cut."""

    dim: int
    kept = Keeps(weights=False)
    flops_per_element = 4  # maximum, difference, exponential, sum

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        (y,) = Unary.output(self, inputs)
        axis("logcumsumexp", self.dim, len(y.shape))
        return (y,)

    def dims(self, inputs: Sequence[Spec]) -> tuple[Dim, ...]:
        shape = inputs[0].shape
        return sample_and_attributes(shape, fixed=self.dim % len(shape))

    def forward(self, call: Call) -> None:
        call.outputs[0][...] = call.kernels.xp.moveaxis(_summed(call, self._last(call, call.inputs[0])), -1, self.dim)

    def backward(self, call: Call) -> None:
        """dx[i] = the sum over j >= i of dy[j] exp(x[i] - y[j]), by logarithms of the positive and of the negative dy."""
        if (dx := call.grad_inputs[0]) is None:
            return
        xp = call.kernels.xp
        x, y, dy = (self._last(call, array) for array in (call.inputs[0], call.outputs[0], call.grad))
        total = 0.0
        with np.errstate(divide="ignore"):
            for sign in (1, -1):
                late = xp.flip(np.log(xp.maximum(sign * dy, 0)) - y, -1)
                total = total + sign * np.exp(xp.flip(_summed(call, late), -1) + x)
        dx.put(xp.moveaxis(total, -1, self.dim))

    def _last(self, call: Call, array: Array) -> Array:
        return call.kernels.xp.moveaxis(array, self.dim, -1)

    @classmethod
    def example(cls, random: Random) -> Example:
        shape = tuple(random.randint(1, 4) for _ in range(random.randint(1, 4)))
        return Example(cls(random.randint(-len(shape), len(shape) - 1)), (Spec(shape, np.dtype(np.float64)),))


def _summed(call: Call, x: Array) -> Array:
    """Logarithms of sums up to each element of the last dimension: of twice as many elements at a time, each beside the largest."""
    xp, size = call.kernels.xp, 1
    while size < x.shape[-1]:
        a, b = x[..., size:], x[..., :-size]
        most = xp.maximum(a, b)
        most = xp.where(most > -np.inf, most, 0)
        with np.errstate(divide="ignore"):
            late = np.log(np.exp(a - most) + np.exp(b - most)) + most
        x, before = xp.empty(x.shape, x.dtype), x
        x[..., :size], x[..., size:] = before[..., :size], late
        size *= 2
    return x


def logcumsumexp(input: Tensor, dim: int, *, name: str | None = None) -> Tensor:
    """Logarithms of the sums of exponentials of all elements up to each one, along ``dim``. Any shape in, the same shape out."""
    return input.graph.apply(LogCumSumExp(dim), (input,), name=name)[0]
