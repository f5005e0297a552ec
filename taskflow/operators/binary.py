"""add, sub, mul: two tensors in, element by element, with broadcasting (PyTorch: torch.add, torch.sub, torch.mul). They
share every rule but the arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from random import Random

import numpy as np

from taskflow.operators.operator import Array, Call, Example, Keeps, Operator, Reads, Spec, Target, register, takes
from taskflow.operators.tensor import Tensor
from taskflow.regions import Rect


class Binary(Operator):
    """a, b -> y of the shape that both broadcast to. Dimensions are matched from the last one; a missing dimension or one of
    size 1 is repeated, and its gradient is the sum over the repetitions. Dimension 0 of y is the sample dimension. Integers, such
    as positions that are counted, have no gradient."""

    __slots__ = ()

    keeps_inputs = False
    flops_per_element = 1

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        takes(self.kind, inputs, 2)
        a, b = inputs
        if a.dtype != b.dtype or not (a.differentiable or a.dtype.kind in "iu"):
            raise ValueError(f"{self.kind}: inputs must be floats or integers of one type, got {a} and {b}")
        try:
            return (Spec(tuple(np.broadcast_shapes(a.shape, b.shape)), a.dtype),)
        except ValueError:
            raise ValueError(
                f"{self.kind}: sizes must be equal or 1 in every dimension, counted from the last, got {a} and {b}"
            ) from None

    def reads(self, inputs: Sequence[Spec], piece: Rect) -> Reads:
        return Reads(tuple(seen_by(spec.shape, piece) for spec in inputs))

    def keeps(self, inputs: Sequence[Spec]) -> Keeps:
        return Keeps(inputs=self.keeps_inputs and inputs[0].differentiable, weights=False, outputs=False)

    @classmethod
    def example(cls, random: Random) -> Example:
        shape = [random.randint(1, 5) for _ in range(random.randint(0, 4))]
        shapes = [shape, list(shape)]
        for operand in shapes:
            if random.random() < 0.5:
                for i in range(len(operand)):
                    operand[i] = random.choice((1, operand[i]))
                del operand[: random.randint(0, len(operand))]
        random.shuffle(shapes)
        return Example(cls(), tuple(Spec(tuple(s), np.dtype(np.float64)) for s in shapes))


@register("add")
class Add(Binary):
    """y = a + b."""

    def forward(self, call: Call) -> None:
        np.add(call.inputs[0], call.inputs[1], out=call.outputs[0])

    def backward(self, call: Call) -> None:
        for target in call.grad_inputs:
            if target is not None:
                summed_into(call, target, call.grad)


@register("sub")
class Sub(Binary):
    """y = a - b."""

    def forward(self, call: Call) -> None:
        np.subtract(call.inputs[0], call.inputs[1], out=call.outputs[0])

    def backward(self, call: Call) -> None:
        dy, (da, db) = call.grad, call.grad_inputs
        if da is not None:
            summed_into(call, da, dy)
        if db is not None:
            summed_into(call, db, np.negative(dy))


@register("mul")
class Mul(Binary):
    """y = a b."""

    keeps_inputs = True

    def forward(self, call: Call) -> None:
        np.multiply(call.inputs[0], call.inputs[1], out=call.outputs[0])

    def backward(self, call: Call) -> None:
        dy, (a, b), (da, db) = call.grad, call.inputs, call.grad_inputs
        if da is not None:
            summed_into(call, da, dy * b)
        if db is not None:
            summed_into(call, db, dy * a)


def seen_by(shape: tuple[int, ...], piece: Rect) -> Rect:
    """Return the part of an operand of ``shape`` from which the Rect ``piece`` of the output is computed."""
    skip = piece.ndim - len(shape)
    return Rect(
        tuple(0 if size == 1 else low for size, low in zip(shape, piece.lo[skip:])),
        tuple(1 if size == 1 else high for size, high in zip(shape, piece.hi[skip:])),
    )


def summed_into(call: Call, target: Target, value: Array) -> None:
    """Put ``value``, of the output's shape, into the gradient of an operand, summed over the repeated dimensions."""
    shape = target.array.shape
    skip = value.ndim - len(shape)
    repeated = tuple(i for i, n in enumerate(value.shape) if i < skip or (shape[i - skip] == 1 and n > 1))
    if not repeated:
        target.put(value.reshape(shape))
    elif repeated == tuple(range(len(repeated))):  # such as a bias: the rows of a matrix
        columns = prod(shape)
        out = target.array.reshape(columns)
        call.kernels.sum_rows(value.reshape(-1, columns), out=out, accumulate=target.accumulate)
    else:
        target.put(value.sum(axis=repeated).reshape(shape))


def add(input: Tensor, other: Tensor, *, name: str | None = None) -> Tensor:
    """input + other, with broadcasting: (N, T, C) + (C) -> (N, T, C)."""
    return input.graph.apply(Add(), (input, other), name=name)[0]


def sub(input: Tensor, other: Tensor, *, name: str | None = None) -> Tensor:
    """input - other, with broadcasting: (N, T, C) - (C) -> (N, T, C)."""
    return input.graph.apply(Sub(), (input, other), name=name)[0]


def mul(input: Tensor, other: Tensor, *, name: str | None = None) -> Tensor:
    """input times other, element by element, with broadcasting: (N, T, C) x (N, T, 1) -> (N, T, C)."""
    return input.graph.apply(Mul(), (input, other), name=name)[0]
