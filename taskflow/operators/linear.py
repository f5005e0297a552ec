"""linear: y = x W^T + b over the last dimension (PyTorch: torch.nn.functional.linear, torch.nn.Linear)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from random import Random

import numpy as np

from taskflow.operators.operator import Call, Example, Keeps, Operator, Reads, Work, register
from taskflow.operators.spec import Dim, Init, Soap, Spec, WeightSpec, positive, takes
from taskflow.operators.tensor import Parameter, Tensor
from taskflow.regions import Rect


@register("linear")
class Linear(Operator):
    """x (N, ..., K), weight (C, K), bias (C) -> y (N, ..., C). C cuts the weights (parameter), K is contracted."""

    work = Work.CONTRACTION
    inputs_for_weights = True
    splits_backward = True
    dense_dim = "c"
    kept = Keeps(outputs=False)
    flops_per_element = 2
    summed = 1

    out_features: int
    bias: bool = True

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        takes("linear", inputs, 1)
        (x,) = inputs
        positive("linear", out_features=self.out_features)
        if len(x.shape) < 2 or not x.differentiable:
            raise ValueError(f"linear: input must be a float tensor (N, ..., features), got {x}")
        return (Spec((*x.shape[:-1], self.out_features), x.dtype),)

    def weights(self, inputs: Sequence[Spec]) -> tuple[WeightSpec, ...]:
        features = inputs[0].shape[-1]
        init = Init("uniform", features**-0.5)  # torch.nn.Linear's start
        weight = WeightSpec("weight", (self.out_features, features), init)
        return (weight, WeightSpec("bias", (self.out_features,), init)) if self.bias else (weight,)

    def dims(self, inputs: Sequence[Spec]) -> tuple[Dim, ...]:
        *leading, features = inputs[0].shape
        return (
            Dim("n", leading[0], Soap.SAMPLE),
            *(Dim(f"a{i}", size, Soap.ATTRIBUTE) for i, size in enumerate(leading[1:], 1)),
            Dim("c", self.out_features, Soap.PARAMETER),
            Dim("k", features, Soap.REDUCTION),
        )

    def reads(self, inputs: Sequence[Spec], piece: Rect) -> Reads:
        *lo, c0, k0 = piece.lo
        *hi, c1, k1 = piece.hi
        x = Rect((*lo, k0), (*hi, k1))
        weight = Rect((c0, k0), (c1, k1))
        if not self.bias:
            return Reads((x,), (weight,))
        # Of the pieces that share an output, each adds the bias to its share of the channels, so that they are alike.
        width, features = c1 - c0, inputs[0].shape[-1]
        return Reads((x,), (weight, Rect((c0 + k0 * width // features,), (c0 + k1 * width // features,))))

    def forward(self, call: Call) -> None:
        (x,), weight, (y,) = call.inputs, call.weights[0], call.outputs
        call.kernels.matmul(_rows(x), weight.T, out=_rows(y))
        if self.bias and call.weights[1].size:
            y[..., _biased(call)] += call.weights[1]

    def backward(self, call: Call) -> None:
        (x,), weight = call.inputs, call.weights[0]
        dy = call.grad
        rows = _rows(dy)
        if (dx := call.grad_inputs[0]) is not None:
            call.kernels.matmul(rows, weight, out=_rows(dx.array), accumulate=dx.accumulate)
        if (dw := call.grad_weights[0]) is not None:
            call.kernels.matmul(rows.T, _rows(x), out=dw.array, accumulate=dw.accumulate)
        if self.bias and call.reads.weights[1].volume and (db := call.grad_weights[1]) is not None:
            mine = call.kernels.xp.ascontiguousarray(rows[:, _biased(call)])  # no copy unless the contraction is cut
            call.kernels.sum_rows(mine, out=db.array, accumulate=db.accumulate)

    @classmethod
    def example(cls, random: Random) -> Example:
        shape = tuple(random.randint(1, 5) for _ in range(random.randint(2, 4)))
        return Example(cls(random.randint(1, 6), random.random() < 0.5), (Spec(shape, np.dtype(np.float64)),))


def _biased(call: Call) -> slice:
    """The piece's channels to which it adds the bias."""
    (low,), (high,), first = call.reads.weights[1].lo, call.reads.weights[1].hi, call.piece.lo[-2]
    return slice(low - first, high - first)


def _rows(array: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    """(N, ..., K) as (rows, K), the same memory."""
    return array.reshape(prod(array.shape[:-1]), array.shape[-1])


def linear(
    input: Tensor,
    out_features: int,
    bias: bool = True,
    *,
    name: str | None = None,
    parameters: Sequence[Parameter] | None = None,
) -> Tensor:
    """Multiply the last dimension by a weight (out_features, in_features) and add a bias (out_features).

    Args: input (N, ..., in_features). Returns (N, ..., out_features). ``parameters`` shares another layer's (weight,
    bias).
    """
    return input.graph.apply(Linear(out_features, bias), (input,), name=name, parameters=parameters)[0]
