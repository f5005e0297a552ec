"""top_k: the largest numbers of the last dimension and their positions (PyTorch: torch.topk)."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np

from taskflow.operators.operator import NOTHING, Array, Call, Example, Operator, register
from taskflow.operators.spec import Dim, Soap, Spec, positive, sample_and_attributes, takes
from taskflow.operators.tensor import Tensor
from taskflow.regions import Rect

INTEGER = np.dtype(np.int64)


@register("top_k")
class TopK(Operator):
    """x (N, ..., E) -> values (N, ..., k) in descending order, and their positions (N, ..., k), integers below E. Of equal
    numbers the first is taken first. Every dimension but E can be cut."""

    k: int
    kept = NOTHING

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        takes("top_k", inputs, 1)
        (x,) = inputs
        positive("top_k", k=self.k)
        if len(x.shape) < 2 or not x.differentiable or self.k > x.shape[-1]:
            raise ValueError(f"top_k: input must be floats (N, ..., E) of at least {self.k} numbers E, got {x}")
        return Spec((*x.shape[:-1], self.k), x.dtype), Spec((*x.shape[:-1], self.k), INTEGER)

    def dims(self, inputs: Sequence[Spec]) -> tuple[Dim, ...]:
        *rows, size = inputs[0].shape
        return (*sample_and_attributes(rows), Dim("e", size, Soap.REDUCTION, divisible=False))

    def writes(self, inputs: Sequence[Spec], piece: Rect) -> tuple[Rect, ...]:
        part = Rect((*piece.lo[:-1], 0), (*piece.hi[:-1], self.k))
        return part, part

    def saves(self, inputs: Sequence[Spec], piece: Rect) -> tuple[Spec, ...]:
        return (Spec((*piece.shape[:-1], self.k), INTEGER),)

    def forward(self, call: Call) -> None:
        (x,), (values, places), xp = call.inputs, call.outputs, call.kernels.xp
        left, every = x, _numbers(call, x.shape[-1])
        untaken = xp.ones(x.shape, np.bool_)
        for i in range(self.k):
            values[..., i] = best = left.max(axis=-1)
            at = xp.where(best == -np.inf, xp.argmax(untaken, axis=-1), xp.argmax(left, axis=-1))  # masked scores are equal
            places[..., i] = call.saved[0][..., i] = at
            untaken &= at[..., None] != every
            left = xp.where(untaken, x, left.dtype.type(-np.inf))

    def backward(self, call: Call) -> None:
        (target,), given = call.grad_inputs, call.grad_outputs[0]
        if target is None:
            return
        every = _numbers(call, target.array.shape[-1])
        result = call.kernels.xp.zeros(target.array.shape, target.array.dtype)
        if given is not None:
            for i in range(self.k):
                result += (call.saved[0][..., i, None] == every) * given[..., i, None]
        target.put(result)

    def flops(self, inputs: Sequence[Spec], piece: Rect) -> int:
        return 2 * self.k * piece.volume  # a comparison, and leaving out what was found

    @classmethod
    def example(cls, random: Random) -> Example:
        shape = (*(random.randint(1, 4) for _ in range(random.randint(1, 2))), random.randint(3, 6))
        return Example(cls(random.randint(1, 3)), (Spec(shape, np.dtype(np.float64)),))


def _numbers(call: Call, count: int) -> Array:
    """0, 1, ... below a count."""
    return call.kernels.constant(("experts", count), lambda: np.arange(count))


def top_k(input: Tensor, k: int, *, name: str | None = None) -> tuple[Tensor, Tensor]:
    """Return the k largest numbers of the last dimension of (N, ..., E) in descending order, (N, ..., k) of the input's type,
    through which gradients flow, and their positions, (N, ..., k) int64."""
    values, places = input.graph.apply(TopK(k), (input,), name=name)
    return values, places
