"""matmul: the product of two tensors over their last two dimensions (PyTorch: torch.matmul without broadcasting)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

from taskflow.operators.operator import (
    Call,
    Dim,
    Example,
    Keeps,
    Operator,
    Reads,
    Soap,
    Spec,
    register,
    sample_and_attributes,
    takes,
)
from taskflow.operators.tensor import Tensor
from taskflow.regions.rect import Rect


@register("matmul")
@dataclass(frozen=True, slots=True)
class MatMul(Operator):
    """a (N, ..., M, K), b (N, ..., K, P) -> y (N, ..., M, P), or (M, K), (K, P) -> (M, P). K is contracted."""

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        takes("matmul", inputs, 2)
        a, b = inputs
        fits = (
            len(a.shape) == len(b.shape) >= 2 and a.shape[:-2] == b.shape[:-2] and a.shape[-1] == b.shape[-2]
            and a.dtype == b.dtype and a.differentiable
        )
        if not fits:
            raise ValueError(f"matmul: inputs must be float (N, ..., M, K), (N, ..., K, P), one type, got {a} and {b}")
        return (Spec((*a.shape[:-1], b.shape[-1]), a.dtype),)

    def dims(self, inputs: Sequence[Spec]) -> tuple[Dim, ...]:
        a, b = inputs
        return (*sample_and_attributes((*a.shape[:-1], b.shape[-1])), Dim("k", a.shape[-1], Soap.REDUCTION))

    def reads(self, inputs: Sequence[Spec], piece: Rect) -> Reads:
        *lo, m0, p0, k0 = piece.lo
        *hi, m1, p1, k1 = piece.hi
        return Reads((Rect((*lo, m0, k0), (*hi, m1, k1)), Rect((*lo, k0, p0), (*hi, k1, p1))))

    def writes(self, inputs: Sequence[Spec], piece: Rect) -> tuple[Rect, ...]:
        return (Rect(piece.lo[:-1], piece.hi[:-1]),)

    def keeps(self, inputs: Sequence[Spec]) -> Keeps:
        return Keeps(weights=False, outputs=False)

    def forward(self, call: Call) -> None:
        a, b = call.inputs
        call.kernels.matmul(a, b, out=call.outputs[0])

    def backward(self, call: Call) -> None:
        (a, b), dy = call.inputs, call.grad
        da, db = call.grad_inputs
        if da is not None:
            call.kernels.matmul(dy, b.swapaxes(-1, -2), out=da.array, accumulate=da.accumulate)
        if db is not None:
            call.kernels.matmul(a.swapaxes(-1, -2), dy, out=db.array, accumulate=db.accumulate)

    def flops(self, inputs: Sequence[Spec], piece: Rect) -> int:
        return 2 * piece.volume

    @classmethod
    def example(cls, random: Random) -> Example:
        leading = tuple(random.randint(1, 3) for _ in range(random.randint(0, 2)))
        m, k, p = (random.randint(1, 5) for _ in range(3))
        dtype = np.dtype(np.float64)
        return Example(cls(), (Spec((*leading, m, k), dtype), Spec((*leading, k, p), dtype)))


def matmul(input: Tensor, other: Tensor, *, name: str | None = None) -> Tensor:
    """Matrix products over the last two dimensions.

    Args: input (N, ..., M, K), other (N, ..., K, P), the leading dimensions equal (or none). Returns (N, ..., M, P).
    """
    return input.graph.apply(MatMul(), (input, other), name=name)[0]
