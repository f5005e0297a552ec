"""silu: x times its sigmoid (PyTorch: torch.nn.functional.silu). Elfwing, Uchibe, Doya, arXiv 1702.03118."""

from __future__ import annotations

from taskflow.operators.operator import INPUTS, Call, register
from taskflow.operators.tensor import Tensor
from taskflow.operators.unary import Unary


@register("silu")
class SiLU(Unary):
    """y = x / (1 + exp(-x))."""

    kept = INPUTS

    def forward(self, call: Call) -> None:
        (x,), (y,) = call.inputs, call.outputs
        call.kernels.activate("sigmoid", x, out=y)
        y *= x

    def backward(self, call: Call) -> None:
        if (dx := call.grad_inputs[0]) is not None:
            (x,), gate = call.inputs, call.kernels.xp.empty(call.inputs[0].shape, call.inputs[0].dtype)
            call.kernels.activate("sigmoid", x, out=gate)
            dx.put(call.grad * (gate * (1 + x * (1 - gate))))


def silu(input: Tensor, *, name: str | None = None) -> Tensor:
    """x / (1 + exp(-x)) of every element, also called swish. Any shape in, the same shape out."""
    return input.graph.apply(SiLU(), (input,), name=name)[0]
