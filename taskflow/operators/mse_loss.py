"""mse_loss: the squared difference of two tensors (PyTorch: torch.nn.functional.mse_loss)."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np

from taskflow.floats import sums_in
from taskflow.operators.loss import Loss
from taskflow.operators.operator import INPUTS, Call, Example, Spec, register
from taskflow.operators.tensor import Tensor


@register("mse_loss")
class MSELoss(Loss):
    """x, target of one shape -> a scalar: the sum of (x - target)^2, or their mean. Pieces give partial sums."""

    reduction: str = "mean"
    kept = INPUTS
    flops_per_element = 3
    backward_flops_per_element = 2

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        x, target = self.pair(inputs)
        if x != target or not x.differentiable or not x.shape:
            raise ValueError(f"mse_loss: inputs must be float tensors (N, ...) of one shape and type, got {x} and {target}")
        return (Spec((), sums_in(x.dtype)),)

    def forward(self, call: Call) -> None:
        x, target = call.inputs
        call.outputs[0][...] = call.kernels.sum_of_squares((x - target).reshape(-1)) * self.factor(call)

    def backward(self, call: Call) -> None:
        (x, target), (dx, dtarget) = call.inputs, call.grad_inputs
        scale = 2 * self.factor(call) * call.kernels.device.number(call.grad)
        # An array of one element, on a device that does not wait, would have all of the gradient computed in float64.
        gradient = (x - target) * (scale if isinstance(scale, float) else scale.astype(x.dtype))
        if dx is not None:
            dx.put(gradient)
        if dtarget is not None:
            dtarget.put(-gradient)

    @classmethod
    def example(cls, random: Random) -> Example:
        spec = Spec(tuple(random.randint(1, 4) for _ in range(random.randint(1, 4))), np.dtype(np.float64))
        return Example(cls(random.choice(("mean", "sum"))), (spec, spec))


def mse_loss(input: Tensor, target: Tensor, *, reduction: str = "mean", name: str | None = None) -> Tensor:
    """Compute the mean ("sum": the sum) of the squared differences of two tensors (N, ...) of one shape. Returns a scalar ()."""
    return input.graph.apply(MSELoss(reduction), (input, target), name=name)[0]
