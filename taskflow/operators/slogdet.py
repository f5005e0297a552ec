"""slogdet: sign and logarithm of determinants (PyTorch: torch.linalg.slogdet), as normalising flows take them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from random import Random

import numpy as np

from taskflow.operators.operator import INPUTS, Array, Call, Example, Operator, Reads, register
from taskflow.operators.spec import Dim, Spec, sample_and_attributes, takes
from taskflow.operators.tensor import Tensor
from taskflow.regions import Rect


@register("slogdet")
class SlogDet(Operator):
    """Matrices x (..., D, D) -> the signs of their determinants (...), and the logarithms of the sizes of these. A piece has whole
    matrices.
    The sign has no gradient."""

    kept = INPUTS

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        takes("slogdet", inputs, 1)
        (x,) = inputs
        if len(x.shape) < 3 or x.shape[-1] != x.shape[-2] or not x.differentiable:
            raise ValueError(f"slogdet: input must be square matrices of floats (N, ..., D, D), got {x}")
        return (Spec(x.shape[:-2], x.dtype),) * 2

    def dims(self, inputs: Sequence[Spec]) -> tuple[Dim, ...]:
        return sample_and_attributes(inputs[0].shape[:-2])

    def reads(self, inputs: Sequence[Spec], piece: Rect) -> Reads:
        return Reads((Rect((*piece.lo, 0, 0), (*piece.hi, *inputs[0].shape[-2:])),))

    def writes(self, inputs: Sequence[Spec], piece: Rect) -> tuple[Rect, ...]:
        return (piece, piece)

    def forward(self, call: Call) -> None:
        call.outputs[0][...], call.outputs[1][...], _ = _eliminated(call, inverse=False)

    def backward(self, call: Call) -> None:
        """The derivative of the logarithm is the inverse with rows and columns swapped."""
        dy = call.grad_outputs[1]
        if (dx := call.grad_inputs[0]) is not None:
            dx.put(0.0 if dy is None else _eliminated(call, inverse=True)[2].swapaxes(-1, -2) * dy[..., None, None])

    def flops(self, inputs: Sequence[Spec], piece: Rect) -> int:
        return piece.volume * (2 * inputs[0].shape[-1] ** 3 // 3 + 1)

    @classmethod
    def example(cls, random: Random) -> Example:
        shape, size = tuple(random.randint(1, 3) for _ in range(random.randint(1, 2))), random.randint(1, 3)
        return Example(cls(), (Spec((*shape, size, size), np.dtype(np.float64)),))


def _eliminated(call: Call, inverse: bool) -> tuple[Array, Array, Array]:
    """Sign, logarithm and inverse of the matrices, by elimination of one column after the other below (for the inverse also above)
    the largest number that is left in it."""
    xp, x = call.kernels.xp, call.inputs[0]
    size, count = x.shape[-1], prod(x.shape[:-2])
    one = call.kernels.constant(("unit matrix", size, x.dtype), lambda: np.eye(size, dtype=x.dtype))
    a = xp.empty((count, size, 2 * size if inverse else size), x.dtype)
    a[..., :size] = x.reshape(count, size, size)
    a[..., size:] = one if inverse else one[:, :0]
    sign, logarithm, each = xp.ones(count, x.dtype), xp.zeros(count, x.dtype), xp.arange(count)
    for k in range(size):
        at = xp.argmax(np.abs(a[:, k:, k]), axis=1) + k
        row, other = a[each, at], a[:, k].copy()
        a[each, at] = other
        pivot = row[:, k]
        sign = sign * np.sign(pivot) * xp.where(at == k, 1, -1)
        with np.errstate(divide="ignore"):
            logarithm = logarithm + np.log(np.abs(pivot))
        row = row / xp.where(pivot == 0, 1, pivot)[:, None]
        first = 0 if inverse else k + 1
        a[:, k] = 0
        a[:, first:] -= a[:, first:, k, None] * row[:, None]
        a[:, k] = row
    shape = x.shape[:-2]
    return sign.reshape(shape), logarithm.reshape(shape), a[..., size:].reshape(x.shape) if inverse else a


def slogdet(input: Tensor, *, name: str | None = None) -> tuple[Tensor, Tensor]:
    """Return the signs of the determinants of square matrices (N, ..., D, D), and the logarithms of their sizes, each (N, ...)."""
    sign, logarithm = input.graph.apply(SlogDet(), (input,), name=name)
    return sign, logarithm
