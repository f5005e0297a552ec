"""RowNorm: base of normalisations over the last dimension: `layer_norm` and `rms_norm`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from taskflow.floats import sums_in
from taskflow.operators.operator import Array, Dim, Keeps, Operator, Reads, Spec, sample_and_attributes, takes
from taskflow.regions import Rect


class RowNorm(Operator):
    """x (N, ..., C), weights (C) -> y of x's shape. C cannot be cut, since each piece needs whole rows. Forward saves `statistics`
    numbers of every row."""

    __slots__ = ()

    kept = Keeps(outputs=False)
    statistics: ClassVar[int]

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        takes(self.kind, inputs, 1)
        (x,) = inputs
        if len(x.shape) < 2 or not x.differentiable:
            raise ValueError(f"{self.kind}: input must be a float tensor (N, ..., features), got {x}")
        return (x,)

    def dims(self, inputs: Sequence[Spec]) -> tuple[Dim, ...]:
        shape = inputs[0].shape
        return sample_and_attributes(shape, fixed=len(shape) - 1)

    def reads(self, inputs: Sequence[Spec], piece: Rect) -> Reads:
        return Reads((piece,), (Rect(piece.lo[-1:], piece.hi[-1:]),) * len(self.weights(inputs)))

    def saves(self, inputs: Sequence[Spec], piece: Rect) -> tuple[Spec, ...]:
        return (Spec((piece.volume // piece.shape[-1], self.statistics), sums_in(inputs[0].dtype)),)


def rows(x: Array) -> Array:
    """(N, ..., C) as (rows, C), the same memory."""
    return x.reshape(-1, x.shape[-1])
