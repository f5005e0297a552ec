"""sum, mean: over some dimensions (PyTorch: torch.sum, torch.mean)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from random import Random

import numpy as np

from taskflow.operators.operator import Array, Call, Dim, Example, Keeps, Operator, Soap, Spec, axis, register, takes
from taskflow.operators.tensor import Tensor
from taskflow.regions import Rect


@dataclass(frozen=True, slots=True)
class Reducing(Operator):
    """Base of operators that make one number of all those along the dimensions ``over``, which are left out of y or kept with size
    1. Their pieces along these dimensions give partial sums if `adds`; else these dimensions cannot be cut."""

    over: tuple[int, ...]
    keepdim: bool

    adds = False
    flops_per_element = 1
    backward_flops_per_element = 1

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        takes(self.kind, inputs, 1)
        (x,) = inputs
        for dim in self.over:
            axis(self.kind, dim, len(x.shape))
        if not x.differentiable or len(self.dims_of(x)) != len(self.over):
            raise ValueError(f"{self.kind}: needs a float tensor and different dims, got {x} and dim={self.over}")
        return (Spec(self._left(x, Rect.of(x.shape)).shape, x.dtype),)

    def dims(self, inputs: Sequence[Spec]) -> tuple[Dim, ...]:
        over = self.dims_of(inputs[0])
        return tuple(
            Dim("n", size, Soap.SAMPLE, divisible=self.adds or i not in over) if i == 0
            else Dim(f"a{i}", size, Soap.REDUCTION, divisible=self.adds) if i in over else Dim(f"a{i}", size, Soap.ATTRIBUTE)
            for i, size in enumerate(inputs[0].shape)
        )

    def writes(self, inputs: Sequence[Spec], piece: Rect) -> tuple[Rect, ...]:
        return (self._left(inputs[0], piece),)

    def keeps(self, inputs: Sequence[Spec]) -> Keeps:
        return Keeps(inputs=not self.adds, weights=False, outputs=not self.adds)

    def dims_of(self, x: Spec) -> set[int]:
        """Return the dimensions that are left out, counted from the first."""
        return {dim % len(x.shape) for dim in self.over}

    def wide(self, call: Call, y: Array) -> Array:
        """An array of the output's shape with the dimensions that were left out, of size 1."""
        over = self.dims_of(call.specs[0])
        return y.reshape(tuple(1 if i in over else size for i, size in enumerate(call.reads.inputs[0].shape)))

    def _left(self, x: Spec, piece: Rect) -> Rect:
        """The Rect of the output for a Rect of the input."""
        over = self.dims_of(x)
        ranges = [
            (0, 1) if i in over else ends
            for i, ends in enumerate(zip(piece.lo, piece.hi)) if self.keepdim or i not in over
        ]
        return Rect(tuple(low for low, _ in ranges), tuple(high for _, high in ranges))


@register("reduce")
class Reduce(Reducing):
    """x -> its sum, or mean, over the dimensions ``over``. These are contracted, and can be cut like all others: pieces give
    partial sums."""

    mean: bool
    adds = True

    def forward(self, call: Call) -> None:
        (x,), (y,) = call.inputs, call.outputs
        total = x.sum(axis=tuple(self.dims_of(call.specs[0])), keepdims=self.keepdim)
        y[...] = total * y.dtype.type(self._factor(call.specs[0]))

    def backward(self, call: Call) -> None:
        if (dx := call.grad_inputs[0]) is not None:
            dx.put(self.wide(call, call.grad) * call.grad.dtype.type(self._factor(call.specs[0])))

    def _factor(self, x: Spec) -> float:
        return 1 / prod(x.shape[i] for i in self.dims_of(x)) if self.mean else 1.0

    @classmethod
    def example(cls, random: Random) -> Example:
        over, spec = drawn(random)
        return Example(cls(over, random.random() < 0.5, random.random() < 0.5), (spec,))


def drawn(random: Random, left: int = 0) -> tuple[tuple[int, ...], Spec]:
    """Draw dimensions, and an input that has them, and at least so many that are ``left``."""
    rank = random.randint(1 + left, 4)
    shape = tuple(random.randint(1 + bool(left), 4) for _ in range(rank))
    over = tuple(i - random.choice((0, rank)) for i in random.sample(range(rank), random.randint(1, rank - left)))
    return over, Spec(shape, np.dtype(np.float64))


def sum(
    input: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False, *, name: str | None = None
) -> Tensor:
    """Sum over ``dim`` (default: all dimensions), which is left out, or kept with size 1 (``keepdim``)."""
    return input.graph.apply(Reduce(dims_over(input, dim), keepdim, False), (input,), name=name or "sum")[0]


def mean(
    input: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False, *, name: str | None = None
) -> Tensor:
    """Average over ``dim`` (default: all dimensions), which is left out, or kept with size 1 (``keepdim``)."""
    return input.graph.apply(Reduce(dims_over(input, dim), keepdim, True), (input,), name=name or "mean")[0]


def dims_over(input: Tensor, dim: int | Sequence[int] | None) -> tuple[int, ...]:
    """Return the dimensions that are meant: all by None."""
    if dim is None:
        return tuple(range(input.ndim))
    return (dim,) if isinstance(dim, int) else tuple(dim)
