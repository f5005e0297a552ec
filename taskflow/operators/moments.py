"""moments: sums over samples and positions of each channel, from which batch normalisation makes means and variances."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from random import Random

import numpy as np

from taskflow.operators.operator import INPUTS, Array, Call, Example, Operator, Reads, register
from taskflow.operators.spec import Dim, Soap, Spec, positive, takes
from taskflow.operators.tensor import Tensor
from taskflow.regions import Rect

DOUBLE = np.dtype(np.float64)


@register("moments")
class Moments(Operator):
    """x (N, C, ...) -> y (G, 2, C) float64: the sums of x and of x squared, over each group of ``samples`` samples and all
    positions. Zeros in evaluation, which ignores the batch.

    Pieces give partial sums; with several groups a piece holds whole groups. The variance is a difference of these sums; double
    precision keeps it accurate to one part in a million even where values are 10,000 standard deviations from zero.
    """

    samples: int
    kept = INPUTS

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        takes("moments", inputs, 1)
        (x,) = inputs
        positive("moments", samples=self.samples)
        if len(x.shape) < 2 or not x.differentiable or x.shape[0] % self.samples:
            raise ValueError(
                f"moments: input must be a float tensor (N, C, ...) with N a multiple of samples={self.samples}, got {x}"
            )
        return (Spec((x.shape[0] // self.samples, 2, x.shape[1]), DOUBLE),)

    def dims(self, inputs: Sequence[Spec]) -> tuple[Dim, ...]:
        samples, channels, *positions = inputs[0].shape
        return (
            Dim("n", samples // self._unit(inputs), Soap.SAMPLE),
            Dim("c", channels, Soap.ATTRIBUTE),
            *(Dim(f"a{i}", size, Soap.ATTRIBUTE) for i, size in enumerate(positions, 2)),
        )

    def reads(self, inputs: Sequence[Spec], piece: Rect) -> Reads:
        unit = self._unit(inputs)
        return Reads((Rect((piece.lo[0] * unit, *piece.lo[1:]), (piece.hi[0] * unit, *piece.hi[1:])),))

    def writes(self, inputs: Sequence[Spec], piece: Rect) -> tuple[Rect, ...]:
        first, last = (0, 1) if self.samples == inputs[0].shape[0] else (piece.lo[0], piece.hi[0])
        return (Rect((first, 0, piece.lo[1]), (last, 2, piece.hi[1])),)

    def forward(self, call: Call) -> None:
        (x,), (y,) = call.inputs, call.outputs
        if not call.state.training:
            y[...] = 0
            return
        for group, sums in zip(_split(x, len(y)), y):
            call.kernels.channel_moments(group, out=sums)

    def backward(self, call: Call) -> None:
        (x,), dy, (dx,) = call.inputs, call.grad, call.grad_inputs
        if dx is None:
            return
        if not call.state.training:
            dx.put(np.zeros_like(dx.array))
            return
        for group, (first, second), out in zip(_split(x, len(dy)), dy, _split(dx.array, len(dy))):
            call.kernels.channel_affine(
                group, (2 * second).astype(x.dtype), first.astype(x.dtype), out=out, accumulate=dx.accumulate
            )

    def flops(self, inputs: Sequence[Spec], piece: Rect) -> int:
        return 4 * piece.volume * self._unit(inputs)

    def backward_flops(self, inputs: Sequence[Spec], piece: Rect) -> int:
        return 3 * piece.volume * self._unit(inputs)

    def _unit(self, inputs: Sequence[Spec]) -> int:
        """Number of samples in one step of dimension n: one if there is one group, else a group."""
        return 1 if self.samples == inputs[0].shape[0] else self.samples

    @classmethod
    def example(cls, random: Random) -> Example:
        samples, groups, channels = random.randint(1, 4), random.choice((1, 1, 2, 3)), random.randint(1, 4)
        positions = (random.randint(1, 3) for _ in range(random.randint(0, 2)))
        dtype = np.dtype(np.float64)
        return Example(cls(samples), (Spec((samples * groups, channels, *positions), dtype),))


def _split(x: Array, groups: int) -> Array:
    """(N, C, ...) as (groups, N / groups, C, P), the same memory."""
    return x.reshape(groups, x.shape[0] // groups, x.shape[1], prod(x.shape[2:]))


def moments(input: Tensor, samples: int, *, name: str | None = None) -> Tensor:
    """Sum the input and its square over groups of ``samples`` samples.

    Args: input (N, C, ...). Returns (N / samples, 2, C) float64.
    """
    return input.graph.apply(Moments(samples), (input,), name=name)[0]
