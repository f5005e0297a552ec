"""concat: tensors one after the other along a dimension (PyTorch: torch.cat)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

import numpy as np

from taskflow.operators.operator import NOTHING, Call, Example, Operator, Reads, Spec, axis, register
from taskflow.operators.tensor import Tensor
from taskflow.regions import Rect


@register("concat")
class Concat(Operator):
    """x_0, x_1, ... equal in all dimensions but ``dim`` -> y. Every dimension can be cut, including ``dim``: a piece reads the
    part of each input that falls into its range, which may be nothing."""

    calculates = False
    kept = NOTHING
    flops_per_element = 0

    dim: int

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        if not inputs:
            raise ValueError("concat: takes at least 1 input, got none")
        first, given = inputs[0], ", ".join(map(str, inputs))
        dim = axis("concat", self.dim, len(first.shape))
        for spec in inputs:
            same = len(spec.shape) == len(first.shape) and all(
                a == b for i, (a, b) in enumerate(zip(spec.shape, first.shape)) if i != dim
            )
            if not same or spec.dtype != first.dtype:
                raise ValueError(f"concat: inputs must be of one type and equal in all dims but {dim}, got {given}")
        size = sum(spec.shape[dim] for spec in inputs)
        return (Spec((*first.shape[:dim], size, *first.shape[dim + 1 :]), first.dtype),)

    def reads(self, inputs: Sequence[Spec], piece: Rect) -> Reads:
        dim = self.dim % piece.ndim
        rects, start = [], 0
        for spec in inputs:
            low, high = (min(max(at - start, 0), spec.shape[dim]) for at in (piece.lo[dim], piece.hi[dim]))
            rects.append(
                Rect((*piece.lo[:dim], low, *piece.lo[dim + 1 :]), (*piece.hi[:dim], high, *piece.hi[dim + 1 :]))
            )
            start += spec.shape[dim]
        return Reads(tuple(rects))

    def forward(self, call: Call) -> None:
        y = call.outputs[0]
        for x, part in zip(call.inputs, self._parts(call)):
            y[part] = x

    def backward(self, call: Call) -> None:
        dy = call.grad
        for target, part in zip(call.grad_inputs, self._parts(call)):
            if target is not None:
                target.put(dy[part])

    def _parts(self, call: Call) -> Iterator[tuple[slice, ...]]:
        """Place of each input in the piece's output."""
        dim, start = self.dim % call.piece.ndim, 0
        for rect in call.reads.inputs:
            stop = start + rect.shape[dim]
            yield (*(slice(None),) * dim, slice(start, stop))
            start = stop

    @classmethod
    def example(cls, random: Random) -> Example:
        rank = random.randint(1, 4)
        shape = [random.randint(1, 4) for _ in range(rank)]
        dim = random.randint(-rank, rank - 1)
        specs = []
        for _ in range(random.randint(1, 4)):
            shape[dim] = random.randint(1, 3)
            specs.append(Spec(tuple(shape), np.dtype(np.float64)))
        return Example(cls(dim), tuple(specs))


def concat(tensors: Sequence[Tensor], dim: int = 0, *, name: str | None = None) -> Tensor:
    """Join at least one tensor along ``dim``; the other dimensions must be equal."""
    if not tensors:
        raise ValueError("concat: takes at least 1 tensor, got none")
    return tensors[0].graph.apply(Concat(dim), tuple(tensors), name=name)[0]
