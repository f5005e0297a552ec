"""logsumexp: the logarithm of a sum of exponentials (PyTorch: torch.logsumexp; log_softmax is x minus it)."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np

from taskflow.operators.operator import Call, Example, register
from taskflow.operators.reduce import Reducing, dims_over, drawn
from taskflow.operators.tensor import Tensor


@register("logsumexp")
class LogSumExp(Reducing):
    """x -> log(sum of exp(x)) over the dimensions ``over``, which are read whole. Of minus infinities it is minus infinity."""

    flops_per_element = 4  # maximum, difference, exponential, sum
    backward_flops_per_element = 3

    def forward(self, call: Call) -> None:
        (x,), (y,), over = call.inputs, call.outputs, tuple(self.dims_of(call.specs[0]))
        most = x.max(axis=over, keepdims=True)
        most = np.where(np.isfinite(most), most, 0)
        with np.errstate(divide="ignore"):
            y[...] = (np.log(np.exp(x - most).sum(axis=over, keepdims=True)) + most).reshape(y.shape)

    def backward(self, call: Call) -> None:
        if (dx := call.grad_inputs[0]) is not None:
            total = self.wide(call, call.outputs[0])
            total = np.where(np.isfinite(total), total, 0)
            dx.put((self.wide(call, call.grad) * np.exp(call.inputs[0] - total)).astype(dx.array.dtype))

    @classmethod
    def example(cls, random: Random) -> Example:
        over, spec = drawn(random, left=1)
        return Example(cls(over, random.random() < 0.5), (spec,))


def logsumexp(
    input: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False, *, name: str | None = None
) -> Tensor:
    """The logarithm of the sum of exponentials over ``dim`` (default: all), which is left out, or kept with size 1
    (``keepdim``)."""
    return input.graph.apply(LogSumExp(dims_over(input, dim), keepdim), (input,), name=name)[0]
