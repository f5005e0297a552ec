"""detach: the same numbers, through which no gradient goes (PyTorch: torch.Tensor.detach, and what torch.no_grad computes)."""

from __future__ import annotations

from taskflow.operators.operator import NOTHING, Call, register
from taskflow.operators.tensor import Tensor
from taskflow.operators.unary import Unary


@register("detach")
class Detach(Unary):
    """y = x, as if nothing trained lay before it: there are no backward tasks for its sake."""

    kept = NOTHING
    flops_per_element = 0  # it moves memory
    calculates = False
    stops_gradient = True

    def forward(self, call: Call) -> None:
        call.outputs[0][...] = call.inputs[0]


def detach(input: Tensor, *, name: str | None = None) -> Tensor:
    """The same numbers, taken as given: no gradient goes back through them. Any shape of floats in, the same out."""
    return input.graph.apply(Detach(), (input,), name=name)[0]
