"""expert_linear: a linear layer for each expert, over the places of its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np

from taskflow.kernels import KernelSet
from taskflow.operators.operator import Array, Call, Example, Keeps, Operator, Reads, Work, register
from taskflow.operators.spec import Dim, Init, Soap, Spec, WeightSpec, positive, takes
from taskflow.operators.tensor import Parameter, Tensor
from taskflow.regions import Rect


@register("expert_linear")
class ExpertLinear(Operator):
    """x (G, E, C, M), weight (E, H, M) -> y (G, E, C, H): x W_e^T at the places of expert e. E and H cut the weights, M is
    contracted. Expert parallelism is a cut of E: a processor has the weights of its experts, and reads their places from all
    groups."""

    work = Work.CONTRACTION
    inputs_for_weights = True
    kept = Keeps(outputs=False)
    flops_per_element = 2
    summed = 1

    out_features: int

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        takes("expert_linear", inputs, 1)
        (x,) = inputs
        positive("expert_linear", out_features=self.out_features)
        if len(x.shape) != 4 or not x.differentiable:
            raise ValueError(f"expert_linear: input must be a float tensor (groups, experts, places, features), got {x}")
        return (Spec((*x.shape[:3], self.out_features), x.dtype),)

    def weights(self, inputs: Sequence[Spec]) -> tuple[WeightSpec, ...]:
        _, experts, _, features = inputs[0].shape
        return (WeightSpec("weight", (experts, self.out_features, features), Init("uniform", features**-0.5)),)

    def dims(self, inputs: Sequence[Spec]) -> tuple[Dim, ...]:
        groups, experts, places, features = inputs[0].shape
        return (
            Dim("n", groups, Soap.SAMPLE), Dim("e", experts, Soap.PARAMETER), Dim("a2", places, Soap.ATTRIBUTE),
            Dim("c", self.out_features, Soap.PARAMETER), Dim("k", features, Soap.REDUCTION),
        )

    def reads(self, inputs: Sequence[Spec], piece: Rect) -> Reads:
        (g0, e0, p0, c0, k0), (g1, e1, p1, c1, k1) = piece.lo, piece.hi
        return Reads((Rect((g0, e0, p0, k0), (g1, e1, p1, k1)),), (Rect((e0, c0, k0), (e1, c1, k1)),))

    def forward(self, call: Call) -> None:
        (x,), (weight,), (y,) = call.inputs, call.weights, call.outputs
        _multiply(call.kernels, _by_expert(call.kernels, x), weight.swapaxes(1, 2), y, False)

    def backward(self, call: Call) -> None:
        (x,), (weight,), kernels = call.inputs, call.weights, call.kernels
        dy = _by_expert(kernels, call.grad)
        if (dx := call.grad_inputs[0]) is not None:
            _multiply(kernels, dy, weight, dx.array, dx.accumulate)
        if (dw := call.grad_weights[0]) is not None:
            kernels.matmul(dy.swapaxes(1, 2), _by_expert(kernels, x), out=dw.array, accumulate=dw.accumulate)

    @classmethod
    def example(cls, random: Random) -> Example:
        shape = tuple(random.randint(1, 4) for _ in range(4))
        return Example(cls(random.randint(1, 4)), (Spec(shape, np.dtype(np.float64)),))


def _by_expert(kernels: KernelSet, x: Array) -> Array:
    """(G, E, C, M) as (E, G C, M); the same memory if there is one group."""
    groups, experts, places, width = x.shape
    if groups == 1:
        return x.reshape(experts, places, width)
    return kernels.xp.ascontiguousarray(x.transpose(1, 0, 2, 3)).reshape(experts, groups * places, width)


def _multiply(kernels: KernelSet, rows: Array, by: Array, out: Array, accumulate: bool) -> None:
    """rows (E, G C, K) @ by (E, K, N) -> out (G, E, C, N)."""
    groups, experts, places, width = out.shape
    if groups == 1:
        kernels.matmul(rows, by, out=out.reshape(experts, places, width), accumulate=accumulate)
        return
    result = kernels.xp.empty((experts, groups * places, width), out.dtype)
    kernels.matmul(rows, by, out=result)
    value = result.reshape(experts, groups, places, width).transpose(1, 0, 2, 3)
    if accumulate:
        out += value
    else:
        out[...] = value


def expert_linear(
    input: Tensor, out_features: int, *, name: str | None = None, parameters: Sequence[Parameter] | None = None
) -> Tensor:
    """Multiply the tokens in each expert's places by that expert's weight (out_features, in_features).

    Args: input (G, E, C, in_features). Returns (G, E, C, out_features). The weight is (E, out_features, in_features).
    """
    return input.graph.apply(ExpertLinear(out_features), (input,), name=name, parameters=parameters)[0]
