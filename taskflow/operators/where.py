"""where: one of two tensors, by which side of a number a third is on (PyTorch: torch.where(x > number, a, b)). Masks are x != 0."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np

from taskflow.operators.binary import seen_by, summed_into
from taskflow.operators.compare import RELATIONS
from taskflow.operators.operator import NOTHING, Call, Example, Operator, Reads, Spec, register, takes
from taskflow.operators.tensor import Tensor
from taskflow.regions import Rect


@register("where")
class Where(Operator):
    """x, a, b that broadcast to one shape -> y: a where x is in the relation to the number, else b. What is not taken does not
    count, even if it is infinite. Gradients go to what was taken, none to x, as in PyTorch. Every dimension can be cut."""

    relation: str
    number: float
    kept = NOTHING
    flops_per_element = 1

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        takes("where", inputs, 3)
        x, a, b = inputs
        if self.relation not in RELATIONS:
            raise ValueError(f"where: relation must be one of {', '.join(RELATIONS)}, got {self.relation!r}")
        if not x.differentiable or a.dtype != b.dtype or not (a.differentiable or a.dtype.kind in "iu"):
            raise ValueError(f"where: inputs must be floats, and two tensors of one type, got {', '.join(map(str, inputs))}")
        try:
            return (Spec(tuple(np.broadcast_shapes(x.shape, a.shape, b.shape)), a.dtype),)
        except ValueError:
            raise ValueError(f"where: sizes must be equal or 1 in every dimension, got {', '.join(map(str, inputs))}") from None

    def reads(self, inputs: Sequence[Spec], piece: Rect) -> Reads:
        return Reads(tuple(seen_by(spec.shape, piece) for spec in inputs))

    def saves(self, inputs: Sequence[Spec], piece: Rect) -> tuple[Spec, ...]:
        """Save where the relation holds: less than the numbers that it is between."""
        return (Spec(seen_by(inputs[0].shape, piece).shape, np.dtype(np.bool_)),)

    def forward(self, call: Call) -> None:
        x, a, b = call.inputs
        call.saved[0][...] = RELATIONS[self.relation](x, self.number)
        call.outputs[0][...] = np.where(call.saved[0], a, b)

    def backward(self, call: Call) -> None:
        (holds,) = call.saved
        x, a, b = call.grad_inputs
        if x is not None:
            x.put(0.0)
        if a is not None:
            summed_into(call, a, np.where(holds, call.grad, 0))
        if b is not None:
            summed_into(call, b, np.where(holds, 0, call.grad))

    @classmethod
    def example(cls, random: Random) -> Example:
        shape = tuple(random.randint(1, 4) for _ in range(random.randint(1, 3)))
        shapes = [shape, *(tuple(random.choice((1, size)) for size in shape)[random.randrange(2) :] for _ in range(2))]
        random.shuffle(shapes)
        specs = tuple(Spec(shape, np.dtype(np.float64)) for shape in shapes)
        return Example(cls(random.choice(("lt", "le", "gt", "ge")), 0.1), specs)


def where(x: Tensor, relation: str, number: float, a: Tensor, b: Tensor, *, name: str | None = None) -> Tensor:
    """Take ``a`` where floats ``x`` are in a relation ("lt", "le", "gt", "ge", "eq", "ne") to a number, else ``b``, with
    broadcasting. No gradient goes to ``x``."""
    return x.graph.apply(Where(relation, float(number)), (x, a, b), name=name)[0]
