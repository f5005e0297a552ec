"""selective_scan: the recurrence of selective state space layers, fused as one kernel (mamba_ssm: selective_scan_fn).

Gu and Dao, "Mamba: Linear-time sequence modeling with selective state spaces", arXiv 2312.00752, Algorithm 2 and section 3.3.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np

from taskflow.operators.operator import Array, Call, Example, Keeps, Operator, Reads, register
from taskflow.operators.spec import Dim, Init, Soap, Spec, WeightSpec, takes
from taskflow.operators.tensor import Parameter, Tensor
from taskflow.regions import Rect


@register("selective_scan")
class SelectiveScan(Operator):
    """x, z (N, T, D), b, c (N, T, S), A_log (D, S), D (D) -> y (N, T, D). With steps dt = log(1 + exp(z)), A = -exp(A_log), and
    states h (D, S) that begin as zeros,

        h_t = exp(dt_t A) h_{t-1} + dt_t x_t b_t
        y_t = the sum of c_t h_t over states, + D x_t

    A channel needs no other, so channels can be cut, and the weights with them (parameter); steps cannot. Nothing is kept for
    backward but the inputs: states, S times as large as x, are computed again, and leave the chip neither way.
    """

    kept = Keeps(outputs=False)

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        takes("selective_scan", inputs, 4)
        x, z, b, c = inputs
        fits = len(x.shape) == 3 and x.differentiable and z == x and b == c and b.dtype == x.dtype
        if not fits or len(b.shape) != 3 or b.shape[:2] != x.shape[:2]:
            raise ValueError(
                f"selective_scan: needs float tensors x and z (N, T, channels), b and c (N, T, states) of one type, got {x}, {z}, "
                f"{b} and {c}"
            )
        return (x,)

    def weights(self, inputs: Sequence[Spec]) -> tuple[WeightSpec, ...]:
        channels, states = inputs[0].shape[2], inputs[2].shape[2]
        rates, skip = Init("constant", 0.0), Init("constant", 1.0)
        return (WeightSpec("A_log", (channels, states), rates), WeightSpec("D", (channels,), skip))

    def dims(self, inputs: Sequence[Spec]) -> tuple[Dim, ...]:
        samples, _, channels = inputs[0].shape
        return (Dim("n", samples, Soap.SAMPLE), Dim("d", channels, Soap.PARAMETER))

    def reads(self, inputs: Sequence[Spec], piece: Rect) -> Reads:
        (n0, d0), (n1, d1) = piece.lo, piece.hi
        _, steps, states = inputs[2].shape
        own, given = Rect((n0, 0, d0), (n1, steps, d1)), Rect((n0, 0, 0), (n1, steps, states))
        rates = Rect((d0, 0), (d1, states) if steps > 1 else (d0, 0))  # the first step has nothing that decays
        return Reads((own, own, given, given), (rates, Rect((d0,), (d1,))))

    def writes(self, inputs: Sequence[Spec], piece: Rect) -> tuple[Rect, ...]:
        return (self.reads(inputs, piece).inputs[0],)

    def forward(self, call: Call) -> None:
        (x, z, b, c), skip, (y,) = call.inputs, call.weights[1], call.outputs
        call.kernels.selective_scan(x, _softplus(z), _rates(call), b, c, out=y)
        y += skip * x

    def backward(self, call: Call) -> None:
        (x, z, b, c), skip, dy = call.inputs, call.weights[1], call.grad
        a, dt = _rates(call), _softplus(z)
        dx, ddt, da, db, dc = (np.empty_like(array) for array in (x, dt, a, b, c))
        call.kernels.selective_scan_backward(x, dt, a, b, c, dy, dx, ddt, da, db, dc)
        dx += skip * dy
        slope = np.empty_like(z)
        call.kernels.activate("sigmoid", z, out=slope)
        ddt *= slope
        for target, gradient in zip(call.grad_inputs, (dx, ddt, db, dc)):
            if target is not None:
                target.put(gradient)
        rates, skips = call.grad_weights
        if rates is not None and rates.array.size:
            rates.put(da * a)
        if skips is not None:
            skips.put((dy * x).sum(axis=(0, 1)))

    def flops(self, inputs: Sequence[Spec], piece: Rect) -> int:
        _, steps, states = inputs[2].shape
        # Of a state: the decay's product and exponential, the input's product, two of the recurrence, two of the sum. Of a
        # channel: exponential, sum and logarithm of the step, its product with x, and D x.
        return piece.volume * steps * (7 * states + 6)

    def backward_flops(self, inputs: Sequence[Spec], piece: Rect) -> int:
        _, steps, states = inputs[2].shape
        # Of a state: 5 once more, then products and sums for its own gradient (3), c's and b's (2 each), x's and dt's (4), A's (3).
        return piece.volume * steps * (19 * states + 12)

    @classmethod
    def example(cls, random: Random) -> Example:
        samples, channels, states = (random.randint(1, 4) for _ in range(3))
        steps, dtype = random.choice((1, 2, 3, 4)), np.dtype(np.float64)
        whole, given = Spec((samples, steps, channels), dtype), Spec((samples, steps, states), dtype)
        return Example(cls(), (whole, whole, given, given))


def _rates(call: Call) -> Array:
    """A (D, S), which is negative; zeros where nothing of it is read."""
    x, b = call.inputs[0], call.inputs[2]
    return -np.exp(call.weights[0]) if call.weights[0].size else np.zeros_like(x, shape=(x.shape[2], b.shape[2]))


def _softplus(z: Array) -> Array:
    """log(1 + exp(z)), by the exponential of what is not positive, which cannot overflow."""
    return np.maximum(z, 0) + np.log1p(np.exp(-np.abs(z)))


def selective_scan(
    input: Tensor, steps: Tensor, b: Tensor, c: Tensor, *, name: str | None = None, parameters: Sequence[Parameter] | None = None
) -> Tensor:
    """Take each channel of ``input`` (N, T, D) through states that decay and are written and read by what the data say.

    Args: ``steps`` (N, T, D), of which softplus makes the lengths of steps. ``b`` and ``c`` (N, T, S): how each step is written
    into the S states of a channel, and read from them. Weights: A_log (D, S), which start at 0, and D (D). ``parameters`` shares
    another's. Returns (N, T, D).
    """
    return input.graph.apply(SelectiveScan(), (input, steps, b, c), name=name, parameters=parameters)[0]
