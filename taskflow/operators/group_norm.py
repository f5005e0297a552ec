"""group_norm: normalisation of every sample over groups of channels (PyTorch: torch.nn.GroupNorm).

Wu and He, "Group normalization", arXiv 1803.08494.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np

from taskflow.floats import sums_in
from taskflow.kernels import KernelSet
from taskflow.operators.operator import Array, Call, Example, Keeps, Operator, Reads, register
from taskflow.operators.spec import Dim, Init, Soap, Spec, WeightSpec, positive, takes
from taskflow.operators.tensor import Parameter, Tensor
from taskflow.regions import Rect


@register("group_norm")
class GroupNorm(Operator):
    """x (N, C, ...), weight and bias (C) -> y = (x - mean) / sqrt(variance + eps) weight + bias, with the mean and variance of
    a sample's group of C / groups channels over all positions. Samples and groups can be cut (groups cut the weights:
    parameter), but nothing within a group. Forward saves mean and 1 / sqrt(variance + eps) of each sample's groups."""

    groups: int
    eps: float
    kept = Keeps(outputs=False)
    flops_per_element = 7

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        takes("group_norm", inputs, 1)
        positive("group_norm", groups=self.groups)
        (x,) = inputs
        if len(x.shape) < 2 or not x.differentiable:
            raise ValueError(f"group_norm: input must be a float tensor (N, C, ...), got {x}")
        if x.shape[1] % self.groups:
            raise ValueError(f"group_norm: groups={self.groups} must divide the input's {x.shape[1]} channels")
        return (x,)

    def weights(self, inputs: Sequence[Spec]) -> tuple[WeightSpec, ...]:
        shape = inputs[0].shape[1:2]
        return (WeightSpec("weight", shape, Init("constant", 1.0)), WeightSpec("bias", shape, Init("constant", 0.0)))

    def dims(self, inputs: Sequence[Spec]) -> tuple[Dim, ...]:
        samples, channels, *positions = inputs[0].shape
        return (
            Dim("n", samples, Soap.SAMPLE),
            Dim("g", self.groups, Soap.PARAMETER),
            Dim("c", channels // self.groups, Soap.ATTRIBUTE, divisible=False),
            *(Dim(f"a{i}", size, Soap.ATTRIBUTE, divisible=False) for i, size in enumerate(positions, 2)),
        )

    def reads(self, inputs: Sequence[Spec], piece: Rect) -> Reads:
        (x,) = self.writes(inputs, piece)
        channels = Rect(x.lo[1:2], x.hi[1:2])
        return Reads((x,), (channels, channels))

    def writes(self, inputs: Sequence[Spec], piece: Rect) -> tuple[Rect, ...]:
        (n0, g0, _, *low), (n1, g1, each, *high) = piece.lo, piece.hi
        return (Rect((n0, g0 * each, *low), (n1, g1 * each, *high)),)

    def saves(self, inputs: Sequence[Spec], piece: Rect) -> tuple[Spec, ...]:
        samples, groups = piece.shape[:2]
        return (Spec((samples * groups, 2), sums_in(inputs[0].dtype)),)

    def forward(self, call: Call) -> None:
        (weight, bias), y = call.weights, call.outputs[0]
        # A group is a row of the kernel of `layer_norm`; the channels' own weights, which that has not, come after it.
        rows, ones, zeros = _rows(call, call.inputs[0])
        call.kernels.layer_norm(rows, ones, zeros, self.eps, out=_rows(call, y)[0], statistics=call.saved[0])
        channels = y.reshape(*y.shape[:2], -1)
        channels *= weight[:, None]
        channels += bias[:, None]

    def backward(self, call: Call) -> None:
        x, dy, (statistics,) = call.inputs[0], call.grad, call.saved
        (dx,), (dweight, dbias) = call.grad_inputs, call.grad_weights
        flat = dy.reshape(*dy.shape[:2], -1)
        rows, ones, _ = _rows(call, x)
        if dbias is not None:
            call.kernels.channel_sums(flat, out=dbias.array, accumulate=dbias.accumulate)
        if dweight is not None:
            normal = ((rows - statistics[:, :1]) * statistics[:, 1:]).reshape(flat.shape)
            normal *= flat
            call.kernels.channel_sums(normal, out=dweight.array, accumulate=dweight.accumulate)
        if dx is not None:
            weighted = flat * call.weights[0][:, None]
            call.kernels.layer_norm_backward(
                rows, ones, statistics, weighted.reshape(rows.shape), out=dx.array.reshape(rows.shape), sums=None,
                accumulate=dx.accumulate,
            )

    @classmethod
    def example(cls, random: Random) -> Example:
        groups, positions = random.randint(1, 4), tuple(random.randint(1, 4) for _ in range(random.randint(0, 2)))
        # Over one or two elements the normalised values hardly depend on the input; a small eps curves them sharply.
        each = random.randint(1, 3) + 2 * (int(np.prod(positions, dtype=int)) < 3)
        spec = Spec((random.randint(1, 4), groups * each, *positions), np.dtype(np.float64))
        return Example(cls(groups, random.uniform(0.1, 0.5)), (spec,))


def _rows(call: Call, x: Array) -> tuple[Array, Array, Array]:
    """(N, C, ...) as (N groups, elements of a group), the same memory; and a one and a zero for each of these elements."""
    rows = x.reshape(len(call.saved[0]), -1)
    return rows, _alike(call.kernels, rows, 1.0), _alike(call.kernels, rows, 0.0)


def _alike(kernels: KernelSet, rows: Array, value: float) -> Array:
    size, dtype = rows.shape[1], rows.dtype
    return kernels.constant(("group_norm", size, dtype.str, value), lambda: np.full(size, value, dtype))


def group_norm(
    input: Tensor, groups: int, eps: float = 1e-5, *, name: str | None = None, parameters: Sequence[Parameter] | None = None
) -> Tensor:
    """Normalise every sample over each of ``groups`` groups of channels, then scale and shift channels by a weight and a bias.

    Args: input (N, C, ...); ``groups`` divides C. Returns the same shape. ``parameters`` shares another layer's (weight, bias).
    """
    return input.graph.apply(GroupNorm(groups, float(eps)), (input,), name=name, parameters=parameters)[0]
