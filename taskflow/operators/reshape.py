"""reshape: the same elements in the same order under another shape (PyTorch: torch.reshape)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import gcd, prod
from random import Random

import numpy as np

from taskflow.operators.operator import NOTHING, Call, Example, Operator, Reads, register
from taskflow.operators.spec import Dim, Soap, Spec, axis, positive, takes
from taskflow.operators.tensor import Tensor
from taskflow.regions import Rect

SHAPES = 1 << 12  # pairs of shapes whose groups are kept
Group = tuple[list[int], list[int]]  # dimensions of the input and of the output that hold the same elements


@register("reshape")
class Reshape(Operator):
    """x -> y of ``shape``.

    A piece must be a box in both shapes. Input and output dimensions are matched from the left into the smallest groups of
    equal product (dimensions of size 1 are ignored). In each group the outermost dimensions can be cut, into any number of
    parts that divides both. Example: (6, 4, 5) -> (3, 8, 5) has the groups (6, 4) -> (3, 8) and (5) -> (5). The first is cut in
    up to gcd(6, 3) = 3 parts: rows 0:2 of the input hold the elements of row 0 of the output. The iteration space is (3, 5).
    """

    calculates = False
    kept = NOTHING
    flops_per_element = 0

    shape: tuple[int, ...]

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        takes("reshape", inputs, 1)
        positive("reshape", **{f"shape[{i}]": size for i, size in enumerate(self.shape)})
        (x,) = inputs
        if prod(self.shape) != prod(x.shape):
            raise ValueError(f"reshape: shape must have {prod(x.shape)} elements as the input {x}, got {self.shape}")
        return (Spec(self.shape, x.dtype),)

    def dims(self, inputs: Sequence[Spec]) -> tuple[Dim, ...]:
        shape, result = inputs[0].shape, []
        for number, (ours, theirs) in enumerate(_groups(shape, self.shape)):
            sample = 0 in (ours[0], theirs[0])  # dimensions of size 1 before it change nothing
            size = gcd(shape[ours[0]], self.shape[theirs[0]])
            name = "n" if ours[0] == theirs[0] == 0 else f"a{number}"
            result.append(Dim(name, size, Soap.SAMPLE if sample else Soap.ATTRIBUTE))
        return tuple(result)

    def reads(self, inputs: Sequence[Spec], piece: Rect) -> Reads:
        return Reads((self._box(inputs[0].shape, piece)[0],))

    def writes(self, inputs: Sequence[Spec], piece: Rect) -> tuple[Rect, ...]:
        return (self._box(inputs[0].shape, piece)[1],)

    def forward(self, call: Call) -> None:
        y = call.outputs[0]
        y[...] = call.inputs[0].reshape(y.shape)

    def backward(self, call: Call) -> None:
        if (dx := call.grad_inputs[0]) is not None:
            dx.put(call.grad.reshape(dx.array.shape))

    def _box(self, shape: tuple[int, ...], piece: Rect) -> tuple[Rect, Rect]:
        """The piece's Rect of the input and of the output."""
        sides = []
        for side, sizes in enumerate((shape, self.shape)):
            lo, hi = [0] * len(sizes), list(sizes)
            for group, a, b in zip(_groups(shape, self.shape), piece.lo, piece.hi):
                outer = group[side][0]
                each = sizes[outer] // gcd(shape[group[0][0]], self.shape[group[1][0]])
                lo[outer], hi[outer] = a * each, b * each
            sides.append(Rect(tuple(lo), tuple(hi)))
        return sides[0], sides[1]

    @classmethod
    def example(cls, random: Random) -> Example:
        # Both shapes share out the same factors, so that groups of every kind arise.
        factors = [random.choice((2, 2, 3, 5)) for _ in range(random.randint(0, 4))]

        def shape() -> tuple[int, ...]:
            sizes, current = [], 1
            for factor in factors:
                current *= factor
                if random.random() < 0.6:
                    sizes.append(current)
                    current = 1
                if random.random() < 0.2:
                    sizes.append(1)
            return (*sizes, current)

        return Example(cls(shape()), (Spec(shape(), np.dtype(np.float64)),))


@lru_cache(SHAPES)  # every piece of every layer asks
def _groups(left: tuple[int, ...], right: tuple[int, ...]) -> list[Group]:
    """The dimensions of two shapes of equal product, in groups of equal product; none of size 1."""
    ours = [i for i, size in enumerate(left) if size > 1]
    theirs = [i for i, size in enumerate(right) if size > 1]
    groups: list[Group] = []
    i = j = 0
    while i < len(ours):
        group: Group = ([ours[i]], [theirs[j]])
        a, b = left[ours[i]], right[theirs[j]]
        while a != b:
            if a < b:
                i += 1
                a *= left[ours[i]]
                group[0].append(ours[i])
            else:
                j += 1
                b *= right[theirs[j]]
                group[1].append(theirs[j])
        groups.append(group)
        i, j = i + 1, j + 1
    return groups


def reshape(input: Tensor, shape: Sequence[int], *, name: str | None = None) -> Tensor:
    """View the elements under another ``shape`` of the same product; one entry may be -1 and is then computed."""
    sizes = list(shape)
    if sizes.count(-1) == 1:
        known = -prod(sizes)
        if known == 0 or prod(input.shape) % known:
            raise ValueError(f"reshape: no size for -1 makes {tuple(shape)} hold all elements of {input}")
        sizes[sizes.index(-1)] = prod(input.shape) // known
    return input.graph.apply(Reshape(tuple(sizes)), (input,), name=name)[0]


def flatten(input: Tensor, start_dim: int = 0, end_dim: int = -1, *, name: str | None = None) -> Tensor:
    """Join the dimensions from ``start_dim`` to ``end_dim`` (included) into one: (N, C, H, W) -> (N, C H W) from 1."""
    first, last = (axis("flatten", dim, input.ndim) for dim in (start_dim, end_dim))
    if first > last:
        raise ValueError(f"flatten: start_dim must not lie behind end_dim, got {start_dim} and {end_dim} of {input}")
    shape = (*input.shape[:first], prod(input.shape[first : last + 1]), *input.shape[last + 1 :])
    return reshape(input, shape, name=name or "flatten")
