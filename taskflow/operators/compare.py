"""compare: 1 where a relation between numbers holds, else 0 (PyTorch: torch.eq, ne, lt, le, gt, ge, as floats)."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np

from taskflow.operators.binary import seen_by
from taskflow.operators.operator import NOTHING, Call, Example, Operator, Reads, Spec, register
from taskflow.operators.tensor import Tensor
from taskflow.regions import Rect

RELATIONS: dict[str, Any] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}


@register("compare")
class Compare(Operator):
    """Integers, truth values or floats a, and a number or b of the same type that broadcasts with them -> y floats of ``dtype``: 1
    where the relation between a and b holds, 0 elsewhere. Every dimension can be cut. There is no gradient."""

    relation: str
    number: float | None
    dtype: np.dtype[Any]
    kept = NOTHING
    stops_gradient = True
    flops_per_element = 1

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        if self.relation not in RELATIONS:
            raise ValueError(f"compare: relation must be one of {', '.join(RELATIONS)}, got {self.relation!r}")
        wanted = 1 if self.number is not None else 2
        fits = all(spec.dtype.kind in "iub" or (spec.dtype == inputs[0].dtype and spec.differentiable) for spec in inputs)
        if len(inputs) != wanted or not fits:
            given = ", ".join(map(str, inputs))
            tensors = f"{wanted} tensor{'s' if wanted > 1 else ''}"
            raise ValueError(f"compare: takes {tensors} of integers or truth values, or of one float type, got {given}")
        try:
            shape = np.broadcast_shapes(*(spec.shape for spec in inputs))
        except ValueError:
            raise ValueError(f"compare: sizes must be equal or 1, got {inputs[0]} and {inputs[1]}") from None
        return (Spec(tuple(shape), self.dtype),)

    def reads(self, inputs: Sequence[Spec], piece: Rect) -> Reads:
        return Reads(tuple(seen_by(spec.shape, piece) for spec in inputs))

    def forward(self, call: Call) -> None:
        other = call.inputs[1] if self.number is None else self.number
        call.outputs[0][...] = RELATIONS[self.relation](call.inputs[0], other)

    @classmethod
    def example(cls, random: Random) -> Example:
        shape = tuple(random.randint(1, 4) for _ in range(random.randint(1, 3)))
        second = tuple(random.choice((1, size)) for size in shape)
        number = random.choice((None, 1))
        kind = np.dtype(random.choice((np.int64, np.float64)))
        specs = [Spec(s, kind) for s in ((shape, second) if number is None else (shape,))]
        relations = list(RELATIONS)[2 if kind.kind == "f" else 0 :]  # random floats are never equal
        return Example(cls(random.choice(relations), number, np.dtype(np.float64)), tuple(specs), high=3)


def compare(input: Tensor, relation: str, other: Tensor | float, *, name: str | None = None) -> Tensor:
    """Return 1.0 where a relation ("eq", "ne", "lt", "le", "gt", "ge") holds between integers or floats and a number, or a tensor
    of their type that broadcasts with them, else 0.0; in the graph's float type. For masks. No gradient goes through."""
    number, inputs = (None, (input, other)) if isinstance(other, Tensor) else (other, (input,))
    return input.graph.apply(Compare(relation, number, np.dtype(input.graph.dtype)), inputs, name=name)[0]
