"""rms_norm: rows divided by their root mean square (PyTorch: torch.nn.RMSNorm of one dimension).

Zhang and Sennrich, "Root mean square layer normalization", arXiv 1910.07467.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np

from taskflow.operators.operator import Array, Call, Example, Init, Spec, WeightSpec, register
from taskflow.operators.row_norm import RowNorm, rows
from taskflow.operators.tensor import Parameter, Tensor


@register("rms_norm")
class RMSNorm(RowNorm):
    """x (N, ..., C), weight (C) -> y = x / sqrt(mean of x^2 over C + eps) (weight + offset). C cannot be cut: each piece needs the
    whole row's mean. Forward saves 1 / sqrt(mean + eps) of every row."""

    eps: float
    offset: float = 0.0
    statistics = 1
    flops_per_element = 4

    def weights(self, inputs: Sequence[Spec]) -> tuple[WeightSpec, ...]:
        return (WeightSpec("weight", inputs[0].shape[-1:], Init("constant", 1.0 - self.offset)),)

    def forward(self, call: Call) -> None:
        x, y, (inverse,) = rows(call.inputs[0]), rows(call.outputs[0]), call.saved
        np.multiply(x, x, out=y)  # the output's memory holds the squares until the result is there
        inverse[...] = 1 / np.sqrt(y.mean(axis=1).reshape(-1, 1) + self.eps)
        np.multiply(x, inverse, out=y)
        y *= self._scale(call)

    def backward(self, call: Call) -> None:
        x, dy, (inverse,) = rows(call.inputs[0]), rows(call.grad), call.saved
        normal = x * inverse
        if (dweight := call.grad_weights[0]) is not None:
            call.kernels.sum_rows(normal * dy, out=dweight.array, accumulate=dweight.accumulate)
        if (dx := call.grad_inputs[0]) is not None:
            share = dy * self._scale(call)
            share -= normal * (share * normal).mean(axis=1).reshape(-1, 1)
            share *= inverse
            dx.put(share.reshape(dx.array.shape))

    def _scale(self, call: Call) -> Array:
        return call.weights[0] + self.offset if self.offset else call.weights[0]

    @classmethod
    def example(cls, random: Random) -> Example:
        shape = (*(random.randint(1, 4) for _ in range(random.randint(1, 3))), random.randint(2, 6))
        return Example(cls(random.uniform(0.1, 0.5), random.choice((0.0, 1.0))), (Spec(shape, np.dtype(np.float64)),))


def rms_norm(
    input: Tensor, eps: float = 1e-5, *, offset: float = 0.0, name: str | None = None,
    parameters: Sequence[Parameter] | None = None,
) -> Tensor:
    """Divide the last dimension by its root mean square, then scale it by a weight.

    Args: input (N, ..., C). ``offset`` is added to the weight (Gemma's are near 0, and 1 is added). Returns the same shape.
    ``parameters`` shares another layer's (weight,).
    """
    return input.graph.apply(RMSNorm(float(eps), float(offset)), (input,), name=name, parameters=parameters)[0]
