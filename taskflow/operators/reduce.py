"""sum, mean: over some dimensions (PyTorch: torch.sum, torch.mean)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from random import Random

import numpy as np

from taskflow.operators.operator import Call, Dim, Example, Keeps, Operator, Reads, Soap, Spec, axis, register, takes
from taskflow.operators.tensor import Tensor
from taskflow.regions import Rect


@register("reduce")
@dataclass(frozen=True, slots=True)
class Reduce(Operator):
    """x -> its sum, or mean, over the dimensions ``over``, which are left out of y or kept with size 1. They are contracted,
    and can be cut like all others: pieces give partial sums."""

    over: tuple[int, ...]
    keepdim: bool
    mean: bool

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        takes("reduce", inputs, 1)
        (x,) = inputs
        for dim in self.over:
            axis("reduce", dim, len(x.shape))
        if not x.differentiable or len(self._over(x)) != len(self.over):
            raise ValueError(f"reduce: needs a float tensor and different dims, got {x} and dim={self.over}")
        return (Spec(self._left(x, Rect.of(x.shape)).shape, x.dtype),)

    def dims(self, inputs: Sequence[Spec]) -> tuple[Dim, ...]:
        over = self._over(inputs[0])
        return tuple(
            Dim("n", size, Soap.SAMPLE) if i == 0 else Dim(f"a{i}", size, Soap.REDUCTION if i in over else Soap.ATTRIBUTE)
            for i, size in enumerate(inputs[0].shape)
        )

    def reads(self, inputs: Sequence[Spec], piece: Rect) -> Reads:
        return Reads((piece,))

    def writes(self, inputs: Sequence[Spec], piece: Rect) -> tuple[Rect, ...]:
        return (self._left(inputs[0], piece),)

    def keeps(self, inputs: Sequence[Spec]) -> Keeps:
        return Keeps(inputs=False, weights=False, outputs=False)

    def forward(self, call: Call) -> None:
        (x,), (y,) = call.inputs, call.outputs
        total = x.sum(axis=tuple(self._over(call.specs[0])), keepdims=self.keepdim)
        y[...] = total * y.dtype.type(self._factor(call.specs[0]))

    def backward(self, call: Call) -> None:
        if (dx := call.grad_inputs[0]) is not None:
            dy, over = call.grad, self._over(call.specs[0])
            wide = tuple(1 if i in over else size for i, size in enumerate(dx.array.shape))
            dx.put(dy.reshape(wide) * dy.dtype.type(self._factor(call.specs[0])))

    def flops(self, inputs: Sequence[Spec], piece: Rect) -> int:
        return piece.volume

    def backward_flops(self, inputs: Sequence[Spec], piece: Rect) -> int:
        return piece.volume

    def _over(self, x: Spec) -> set[int]:
        return {dim % len(x.shape) for dim in self.over}

    def _left(self, x: Spec, piece: Rect) -> Rect:
        """The Rect of the output for a Rect of the input."""
        over = self._over(x)
        ranges = [
            (0, 1) if i in over else ends
            for i, ends in enumerate(zip(piece.lo, piece.hi)) if self.keepdim or i not in over
        ]
        return Rect(tuple(low for low, _ in ranges), tuple(high for _, high in ranges))

    def _factor(self, x: Spec) -> float:
        return 1 / prod(x.shape[i] for i in self._over(x)) if self.mean else 1.0

    @classmethod
    def example(cls, random: Random) -> Example:
        shape = tuple(random.randint(1, 4) for _ in range(random.randint(1, 4)))
        rank = len(shape)
        over = tuple(i - random.choice((0, rank)) for i in random.sample(range(rank), random.randint(1, rank)))
        return Example(cls(over, random.random() < 0.5, random.random() < 0.5), (Spec(shape, np.dtype(np.float64)),))


def sum(
    input: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False, *, name: str | None = None
) -> Tensor:
    """Sum over ``dim`` (default: all dimensions), which is left out, or kept with size 1 (``keepdim``)."""
    return input.graph.apply(Reduce(_dims(input, dim), keepdim, False), (input,), name=name or "sum")[0]


def mean(
    input: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False, *, name: str | None = None
) -> Tensor:
    """Average over ``dim`` (default: all dimensions), which is left out, or kept with size 1 (``keepdim``)."""
    return input.graph.apply(Reduce(_dims(input, dim), keepdim, True), (input,), name=name or "mean")[0]


def _dims(input: Tensor, dim: int | Sequence[int] | None) -> tuple[int, ...]:
    if dim is None:
        return tuple(range(input.ndim))
    return (dim,) if isinstance(dim, int) else tuple(dim)
