"""where: one of two tensors, by which side of a number a third is on (PyTorch: torch.where(x > number, a, b))."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np

from taskflow.operators.compare import RELATIONS
from taskflow.operators.operator import Call, Example, Keeps, Operator, register
from taskflow.operators.spec import Spec, takes
from taskflow.operators.tensor import Tensor


@register("where")
class Where(Operator):
    """x, a, b of one shape -> y: a where x is in the relation to the number, else b. The gradient is that of what was taken; x has
    none, as in PyTorch. Every dimension can be cut."""

    relation: str
    number: float
    kept = Keeps(weights=False, outputs=False)
    flops_per_element = 1

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        takes("where", inputs, 3)
        if self.relation not in RELATIONS:
            raise ValueError(f"where: relation must be one of {', '.join(RELATIONS)}, got {self.relation!r}")
        if not inputs[0].differentiable or any(spec != inputs[0] for spec in inputs):
            raise ValueError(f"where: inputs must be floats of one shape and type, got {', '.join(map(str, inputs))}")
        return (inputs[0],)

    def forward(self, call: Call) -> None:
        x, a, b = call.inputs
        call.outputs[0][...] = np.where(RELATIONS[self.relation](x, self.number), a, b)

    def backward(self, call: Call) -> None:
        holds, zero = RELATIONS[self.relation](call.inputs[0], self.number), np.zeros_like(call.grad)
        of_each = (zero, np.where(holds, call.grad, zero), np.where(holds, zero, call.grad))
        for target, gradient in zip(call.grad_inputs, of_each):
            if target is not None:
                target.put(gradient)

    @classmethod
    def example(cls, random: Random) -> Example:
        shape = tuple(random.randint(1, 4) for _ in range(random.randint(1, 3)))
        return Example(cls(random.choice(("lt", "le", "gt", "ge")), 0.1), (Spec(shape, np.dtype(np.float64)),) * 3)


def where(x: Tensor, relation: str, number: float, a: Tensor, b: Tensor, *, name: str | None = None) -> Tensor:
    """Take ``a`` where floats ``x`` are in a relation ("lt", "le", "gt", "ge", "eq", "ne") to a number, else ``b``: three tensors
    of one shape. No gradient goes to ``x``."""
    return x.graph.apply(Where(relation, float(number)), (x, a, b), name=name)[0]
