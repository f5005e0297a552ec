"""moments: sums over samples and positions of each channel, from which batch normalisation makes means and variances."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from random import Random

import numpy as np

from taskflow.operators.operator import (
    Array,
    Call,
    Dim,
    Example,
    Keeps,
    Operator,
    Reads,
    Soap,
    Spec,
    positive,
    register,
    takes,
)
from taskflow.operators.tensor import Tensor
from taskflow.regions.rect import Rect

DOUBLE = np.dtype(np.float64)


@register("moments")
@dataclass(frozen=True, slots=True)
class Moments(Operator):
    """x (N, C, ...), center (C) -> y (G, 2, C) float64: the sums of x - center and of its square, over each group of
    ``samples`` samples and all positions. Zeros in evaluation, which does not look at the batch.

    Pieces give partial sums; with several groups a piece holds whole ones. Double precision, and a center near the
    mean, keep the variance exact that is the difference of these two.
    """

    samples: int

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        takes("moments", inputs, 2)
        x, center = inputs
        positive("moments", samples=self.samples)
        if len(x.shape) < 2 or not x.differentiable or x.shape[0] % self.samples:
            raise ValueError(
                f"moments: input must be a float tensor (N, C, ...) with N a multiple of samples={self.samples}, got {x}"
            )
        if center != Spec(x.shape[1:2], x.dtype):
            raise ValueError(f"moments: center must be {Spec(x.shape[1:2], x.dtype)}, got {center}")
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
        x = Rect((piece.lo[0] * unit, *piece.lo[1:]), (piece.hi[0] * unit, *piece.hi[1:]))
        return Reads((x, Rect(piece.lo[1:2], piece.hi[1:2])))

    def writes(self, inputs: Sequence[Spec], piece: Rect) -> tuple[Rect, ...]:
        first, last = (0, 1) if self.samples == inputs[0].shape[0] else (piece.lo[0], piece.hi[0])
        return (Rect((first, 0, piece.lo[1]), (last, 2, piece.hi[1])),)

    def keeps(self, inputs: Sequence[Spec]) -> Keeps:
        return Keeps(weights=False, outputs=False)

    def forward(self, call: Call) -> None:
        (x, center), (y,) = call.inputs, call.outputs
        if not call.state.training:
            y[...] = 0
            return
        for group, sums in zip(_split(x, len(y)), y):
            call.kernels.channel_moments(group, center, out=sums)

    def backward(self, call: Call) -> None:
        (x, center), dy = call.inputs, call.grad
        dx, dcenter = call.grad_inputs
        if not call.state.training:
            for target in (dx, dcenter):
                if target is not None:
                    target.put(np.zeros_like(target.array))
            return
        if dx is not None:
            for group, (first, second), out in zip(_split(x, len(dy)), dy, _split(dx.array, len(dy))):
                call.kernels.channel_affine(
                    group, center, (2 * second).astype(x.dtype), first.astype(x.dtype), out=out,
                    accumulate=dx.accumulate,
                )
        if dcenter is not None:
            xp = call.kernels.xp
            sums, total = xp.empty(dy.shape[1:], DOUBLE), xp.zeros(len(center), DOUBLE)
            for group, (first, second) in zip(_split(x, len(dy)), dy):
                call.kernels.channel_moments(group, center, out=sums)
                total -= first * (group.shape[0] * group.shape[2]) + 2 * second * sums[0]
            dcenter.put(total)

    def flops(self, inputs: Sequence[Spec], piece: Rect) -> int:
        return 4 * piece.volume * self._unit(inputs)

    def backward_flops(self, inputs: Sequence[Spec], piece: Rect) -> int:
        return 3 * piece.volume * self._unit(inputs)

    def _unit(self, inputs: Sequence[Spec]) -> int:
        """How many samples one step of dimension n is: one if there is one group, else a group."""
        return 1 if self.samples == inputs[0].shape[0] else self.samples

    @classmethod
    def example(cls, random: Random) -> Example:
        samples, groups, channels = random.randint(1, 4), random.choice((1, 1, 2, 3)), random.randint(1, 4)
        positions = (random.randint(1, 3) for _ in range(random.randint(0, 2)))
        dtype = np.dtype(np.float64)
        return Example(cls(samples), (Spec((samples * groups, channels, *positions), dtype), Spec((channels,), dtype)))


def _split(x: Array, groups: int) -> Array:
    """(N, C, ...) as (groups, N / groups, C, P), the same memory."""
    return x.reshape(groups, x.shape[0] // groups, x.shape[1], prod(x.shape[2:]))


def moments(input: Tensor, center: Tensor, samples: int, *, name: str | None = None) -> Tensor:
    """Sums of input - center (C) and of its square over groups of ``samples`` samples.

    Args: input (N, C, ...). Returns (N / samples, 2, C) float64.
    """
    return input.graph.apply(Moments(samples), (input, center), name=name)[0]
