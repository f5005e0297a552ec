"""swiglu: silu of one tensor times another, the gate of a feed-forward layer. Shazeer, "GLU variants improve
Transformer", arXiv 2002.05202."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np

from taskflow.operators.operator import INPUTS, Call, Example, Operator, Spec, register, takes
from taskflow.operators.tensor import Tensor


@register("swiglu")
class SwiGLU(Operator):
    """gate, x of one shape -> y = gate / (1 + exp(-gate)) x. This one operator keeps two arrays for backward; `silu` and `mul`
    would keep three."""

    kept = INPUTS
    flops_per_element = 5  # exponential, sum, quotient, two products

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        takes("swiglu", inputs, 2)
        gate, x = inputs
        if gate != x or not x.differentiable:
            raise ValueError(f"swiglu: inputs must be two float tensors of one shape and type, got {gate} and {x}")
        return (x,)

    def forward(self, call: Call) -> None:
        (gate, x), (y,) = call.inputs, call.outputs
        call.kernels.activate("sigmoid", gate, out=y)
        y *= gate
        y *= x

    def backward(self, call: Call) -> None:
        (gate, x), (dgate, dx) = call.inputs, call.grad_inputs
        open_ = call.kernels.xp.empty(gate.shape, gate.dtype)
        call.kernels.activate("sigmoid", gate, out=open_)
        passed = gate * open_
        if dgate is not None:
            slope = 1 - open_
            slope *= passed
            slope += open_
            slope *= x
            slope *= call.grad
            dgate.put(slope)
        if dx is not None:
            passed *= call.grad
            dx.put(passed)

    @classmethod
    def example(cls, random: Random) -> Example:
        shape = tuple(random.randint(1, 5) for _ in range(random.randint(0, 4)))
        return Example(cls(), (Spec(shape, np.dtype(np.float64)),) * 2)


def swiglu(gate: Tensor, input: Tensor, *, name: str | None = None) -> Tensor:
    """silu(gate) times input, element by element: between the linear layers of a gated feed-forward layer. Two tensors
    of any one shape in, that shape out."""
    return gate.graph.apply(SwiGLU(), (gate, input), name=name)[0]
