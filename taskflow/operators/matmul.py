"""matmul: the product of two tensors over their last two dimensions (PyTorch: torch.matmul without broadcasting, torch.bmm)."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np

from taskflow.operators.operator import INPUTS, Array, Call, Example, Operator, Reads, Work, register
from taskflow.operators.spec import Dim, Soap, Spec, sample_and_attributes, takes
from taskflow.operators.tensor import Tensor
from taskflow.regions import Rect


@register("matmul")
class MatMul(Operator):
    """a (N, ..., M, K), b (N, ..., K, P) -> y (N, ..., M, P), or (M, K), (K, P) -> (M, P). K is contracted. With
    ``transpose_other``, b is (N, ..., P, K); it is not copied."""

    work = Work.CONTRACTION
    kept = INPUTS
    flops_per_element = 2
    summed = 1

    transpose_other: bool = False

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        takes("matmul", inputs, 2)
        a, b = inputs
        fits = (
            len(a.shape) == len(b.shape) >= 2 and a.shape[:-2] == b.shape[:-2]
            and a.shape[-1] == b.shape[-1 if self.transpose_other else -2]
            and a.dtype == b.dtype and a.differentiable
        )
        if not fits:
            other = "(N, ..., P, K)" if self.transpose_other else "(N, ..., K, P)"
            raise ValueError(f"matmul: inputs must be float (N, ..., M, K), {other}, one type, got {a} and {b}")
        return (Spec((*a.shape[:-1], b.shape[-2 if self.transpose_other else -1]), a.dtype),)

    def dims(self, inputs: Sequence[Spec]) -> tuple[Dim, ...]:
        (y,) = self.output(inputs)
        return (*sample_and_attributes(y.shape), Dim("k", inputs[0].shape[-1], Soap.REDUCTION))

    def reads(self, inputs: Sequence[Spec], piece: Rect) -> Reads:
        *lo, m0, p0, k0 = piece.lo
        *hi, m1, p1, k1 = piece.hi
        b = ((p0, k0), (p1, k1)) if self.transpose_other else ((k0, p0), (k1, p1))
        return Reads((Rect((*lo, m0, k0), (*hi, m1, k1)), Rect((*lo, *b[0]), (*hi, *b[1]))))

    def forward(self, call: Call) -> None:
        a, b = call.inputs
        call.kernels.matmul(a, self._turned(b), out=call.outputs[0])

    def backward(self, call: Call) -> None:
        (a, b), dy = call.inputs, call.grad
        da, db = call.grad_inputs
        if da is not None:
            call.kernels.matmul(dy, self._turned(b).swapaxes(-1, -2), out=da.array, accumulate=da.accumulate)
        if db is not None:
            left, right = (dy, a) if self.transpose_other else (a, dy)
            call.kernels.matmul(left.swapaxes(-1, -2), right, out=db.array, accumulate=db.accumulate)

    def _turned(self, b: Array) -> Array:
        """b as (..., K, P)."""
        return b.swapaxes(-1, -2) if self.transpose_other else b

    @classmethod
    def example(cls, random: Random) -> Example:
        leading = tuple(random.randint(1, 3) for _ in range(random.randint(0, 2)))
        m, k, p = (random.randint(1, 5) for _ in range(3))
        dtype = np.dtype(np.float64)
        transpose = random.random() < 0.5
        b = (p, k) if transpose else (k, p)
        return Example(cls(transpose), (Spec((*leading, m, k), dtype), Spec((*leading, *b), dtype)))


def matmul(input: Tensor, other: Tensor, *, transpose_other: bool = False, name: str | None = None) -> Tensor:
    """Multiply matrices over the last two dimensions.

    Args: input (N, ..., M, K), other (N, ..., K, P), or (N, ..., P, K) with ``transpose_other``; the leading dimensions are
    equal (or absent). Returns (N, ..., M, P).
    """
    return input.graph.apply(MatMul(transpose_other), (input, other), name=name)[0]
