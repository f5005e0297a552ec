"""split: a tensor cut into several along a dimension (PyTorch: torch.split)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from random import Random

import numpy as np

from taskflow.operators.operator import NOTHING, Call, Example, Operator, register
from taskflow.operators.spec import Dim, Spec, axis, positive, sample_and_attributes, takes
from taskflow.operators.tensor import Tensor
from taskflow.regions import Rect


@register("split")
class Split(Operator):
    """x -> one output for each of ``sections``, its size along ``dim``. Every dimension but ``dim`` can be cut, so each piece
    writes a part of every output."""

    calculates = False
    kept = NOTHING
    flops_per_element = 0

    sections: tuple[int, ...]
    dim: int

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        takes("split", inputs, 1)
        (x,) = inputs
        dim = axis("split", self.dim, len(x.shape))
        positive("split", **{f"sections[{i}]": size for i, size in enumerate(self.sections)})
        if sum(self.sections) != x.shape[dim]:
            raise ValueError(f"split: sections must add up to {x.shape[dim]}, dim {dim} of {x}, got {self.sections}")
        return tuple(Spec((*x.shape[:dim], size, *x.shape[dim + 1 :]), x.dtype) for size in self.sections)

    def dims(self, inputs: Sequence[Spec]) -> tuple[Dim, ...]:
        shape = inputs[0].shape
        return sample_and_attributes(shape, fixed=self.dim % len(shape))

    def writes(self, inputs: Sequence[Spec], piece: Rect) -> tuple[Rect, ...]:
        dim = self.dim % piece.ndim
        return tuple(
            Rect((*piece.lo[:dim], 0, *piece.lo[dim + 1 :]), (*piece.hi[:dim], size, *piece.hi[dim + 1 :]))
            for size in self.sections
        )

    def forward(self, call: Call) -> None:
        x = call.inputs[0]
        for y, part in zip(call.outputs, self._parts(call.piece.ndim)):
            y[...] = x[part]

    def backward(self, call: Call) -> None:
        if (target := call.grad_inputs[0]) is None:
            return
        for dy, part in zip(call.grad_outputs, self._parts(call.piece.ndim)):
            if not target.accumulate:
                target.array[part] = 0 if dy is None else dy
            elif dy is not None:
                target.array[part] += dy

    def _parts(self, rank: int) -> Iterator[tuple[slice, ...]]:
        """Place of each output in the input."""
        before = (slice(None),) * (self.dim % rank)
        for stop, size in zip(accumulate(self.sections), self.sections):
            yield (*before, slice(stop - size, stop))

    @classmethod
    def example(cls, random: Random) -> Example:
        rank = random.randint(1, 4)
        sections = tuple(random.randint(1, 3) for _ in range(random.randint(1, 4)))
        dim = random.randint(-rank, rank - 1)
        shape = [random.randint(1, 4) for _ in range(rank)]
        shape[dim] = sum(sections)
        return Example(cls(sections, dim), (Spec(tuple(shape), np.dtype(np.float64)),))


def split(
    tensor: Tensor, split_size_or_sections: int | Sequence[int], dim: int = 0, *, name: str | None = None
) -> tuple[Tensor, ...]:
    """Cut along ``dim`` into parts of one size (the last may be smaller), or of the given sizes."""
    if isinstance(split_size_or_sections, int):
        size = split_size_or_sections
        positive("split", split_size=size)
        whole = tensor.shape[axis("split", dim, tensor.ndim)]
        sections = tuple(min(size, whole - start) for start in range(0, whole, size))
    else:
        sections = tuple(split_size_or_sections)
    return tensor.graph.apply(Split(sections, dim), (tensor,), name=name)
