"""layer_norm: normalisation over the last dimension (PyTorch: torch.nn.LayerNorm of one dimension).

Ba, Kiros and Hinton, "Layer normalization", arXiv 1607.06450.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np

from taskflow.operators.operator import Call, Example, Init, Spec, WeightSpec, register
from taskflow.operators.row_norm import RowNorm, rows
from taskflow.operators.tensor import Parameter, Tensor


@register("layer_norm")
class LayerNorm(RowNorm):
    """x (N, ..., C), weight and bias (C) -> y = (x - mean) / sqrt(variance + eps) weight + bias over C, which cannot be cut.
    Forward saves mean and 1 / sqrt(variance + eps)."""

    eps: float
    statistics = 2
    flops_per_element = 7

    def weights(self, inputs: Sequence[Spec]) -> tuple[WeightSpec, ...]:
        shape = inputs[0].shape[-1:]
        return (WeightSpec("weight", shape, Init("constant", 1.0)), WeightSpec("bias", shape, Init("constant", 0.0)))

    def forward(self, call: Call) -> None:
        weight, bias = call.weights
        call.kernels.layer_norm(
            rows(call.inputs[0]), weight, bias, self.eps, out=rows(call.outputs[0]), statistics=call.saved[0]
        )

    def backward(self, call: Call) -> None:
        x, dy, (statistics,) = rows(call.inputs[0]), rows(call.grad), call.saved
        (dx,), (dweight, dbias) = call.grad_inputs, call.grad_weights
        sums = None if dweight is None and dbias is None else call.kernels.xp.empty((2, x.shape[1]), x.dtype)
        call.kernels.layer_norm_backward(
            x, call.weights[0], statistics, dy, out=None if dx is None else rows(dx.array), sums=sums,
            accumulate=dx is not None and dx.accumulate,
        )
        for target, number in ((dweight, 0), (dbias, 1)):
            if target is not None and sums is not None:
                target.put(sums[number])

    @classmethod
    def example(cls, random: Random) -> Example:
        leading = tuple(random.randint(1, 4) for _ in range(random.randint(1, 3)))
        # Over one or two elements the normalised values hardly depend on the input; a small eps curves them sharply.
        shape = (*leading, random.randint(3, 6))
        return Example(cls(random.uniform(0.1, 0.5)), (Spec(shape, np.dtype(np.float64)),))


def layer_norm(
    input: Tensor, eps: float = 1e-5, *, name: str | None = None, parameters: Sequence[Parameter] | None = None
) -> Tensor:
    """Normalise the last dimension, then scale and shift it by a weight and a bias.

    Args: input (N, ..., C). Returns the same shape. ``parameters`` shares another layer's (weight, bias).
    """
    return input.graph.apply(LayerNorm(float(eps)), (input,), name=name, parameters=parameters)[0]
