"""causal_conv1d: each channel of a sequence filtered by itself, looking back only (causal_conv1d: causal_conv1d_fn; PyTorch:
torch.nn.functional.conv1d with as many groups as channels)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

import numpy as np

from taskflow.operators.operator import Array, Call, Example, Keeps, Operator, Reads, register
from taskflow.operators.spec import Dim, Init, Soap, Spec, WeightSpec, positive, takes
from taskflow.operators.tensor import Parameter, Tensor
from taskflow.regions import Rect


@register("causal_conv1d")
class CausalConv1d(Operator):
    """x (N, T, D), weight (D, 1, K), bias (D) -> y (N, T, D): y_t = the sum of weight_k x_{t-K+1+k} over k, plus the bias, and silu
    of it if ``silu``. Zeros stand before the first step.

    Channels cut the weights (parameter). A cut of steps reads a halo of K - 1 steps on its left; the first pieces read no elements
    of the filter that meet only zeros.
    """

    kernel: int
    bias: bool = True
    silu: bool = False
    kept = Keeps(outputs=False)

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        takes("causal_conv1d", inputs, 1)
        positive("causal_conv1d", kernel=self.kernel)
        if len(inputs[0].shape) != 3 or not inputs[0].differentiable:
            raise ValueError(f"causal_conv1d: input must be a float tensor (N, T, channels), got {inputs[0]}")
        return (inputs[0],)

    def weights(self, inputs: Sequence[Spec]) -> tuple[WeightSpec, ...]:
        channels, init = inputs[0].shape[2], Init("uniform", self.kernel**-0.5)  # torch.nn.Conv1d's start
        weight = WeightSpec("weight", (channels, 1, self.kernel), init)
        return (weight, WeightSpec("bias", (channels,), init)) if self.bias else (weight,)

    def dims(self, inputs: Sequence[Spec]) -> tuple[Dim, ...]:
        samples, steps, channels = inputs[0].shape
        return (Dim("n", samples, Soap.SAMPLE), Dim("t", steps, Soap.ATTRIBUTE), Dim("d", channels, Soap.PARAMETER))

    def reads(self, inputs: Sequence[Spec], piece: Rect) -> Reads:
        (n0, t0, d0), (n1, t1, d1) = piece.lo, piece.hi
        x = Rect((n0, max(0, t0 - self.kernel + 1), d0), (n1, t1, d1))
        weight = Rect((d0, 0, max(0, self.kernel - t1)), (d1, 1, self.kernel))
        return Reads((x,), (weight, Rect((d0,), (d1,))) if self.bias else (weight,))

    def _taps(self, call: Call) -> Iterator[tuple[Array, slice, slice]]:
        """Yield for each element of the filter its weights (D), which steps of x it meets, and for which steps of y."""
        weight, halo = call.weights[0], call.piece.lo[1] - call.reads.inputs[0].lo[1]
        steps, first = call.piece.shape[1], self.kernel - call.weights[0].shape[2]
        for k in range(weight.shape[2]):
            back = self.kernel - 1 - first - k
            skipped = max(0, back - halo)  # steps of y that have nothing so far back
            yield weight[:, 0, k], slice(skipped + halo - back, steps + halo - back), slice(skipped, steps)

    def _filtered(self, call: Call, y: Array) -> None:
        """Fill ``y`` with the sum, before silu."""
        y[...] = call.weights[1] if self.bias else 0
        for weight, seen, written in self._taps(call):
            y[:, written] += weight * call.inputs[0][:, seen]

    def forward(self, call: Call) -> None:
        (y,) = call.outputs
        self._filtered(call, y)
        if self.silu:
            gate = np.empty_like(y)
            call.kernels.activate("sigmoid", y, out=gate)
            y *= gate

    def backward(self, call: Call) -> None:
        (x,), dy, target = call.inputs, call.grad, call.grad_inputs[0]
        if self.silu:
            y, gate = np.empty_like(dy), np.empty_like(dy)
            self._filtered(call, y)
            call.kernels.activate("sigmoid", y, out=gate)
            dy = dy * gate * (1 + y * (1 - gate))
        if target is not None:
            dx = np.zeros_like(x)
            for weight, seen, written in self._taps(call):
                dx[:, seen] += weight * dy[:, written]
            target.put(dx)
        if (weights := call.grad_weights[0]) is not None:
            each = np.empty_like(call.weights[0])
            for k, (_, seen, written) in enumerate(self._taps(call)):
                each[:, 0, k] = (x[:, seen] * dy[:, written]).sum(axis=(0, 1))
            weights.put(each)
        if self.bias and (biases := call.grad_weights[1]) is not None:
            biases.put(dy.sum(axis=(0, 1)))

    def flops(self, inputs: Sequence[Spec], piece: Rect) -> int:
        return piece.volume * (2 * self.kernel + 5 * self.silu)  # a product and a sum each; silu as `swiglu` counts it

    @classmethod
    def example(cls, random: Random) -> Example:
        shape = (random.randint(1, 4), random.randint(1, 6), random.randint(1, 5))
        operator = cls(random.randint(1, 4), random.random() < 0.5, random.random() < 0.5)
        return Example(operator, (Spec(shape, np.dtype(np.float64)),))


def causal_conv1d(
    input: Tensor, kernel_size: int, bias: bool = True, *, silu: bool = False, name: str | None = None,
    parameters: Sequence[Parameter] | None = None,
) -> Tensor:
    """Filter each channel of a sequence (N, T, D) by itself: step t sees the ``kernel_size`` steps up to t.

    Args: ``silu``: apply silu to the sum. Weights: weight (D, 1, kernel_size) as torch.nn.Conv1d has it with D groups, bias (D).
    ``parameters`` shares another's. Returns (N, T, D).
    """
    return input.graph.apply(CausalConv1d(kernel_size, bias, silu), (input,), name=name, parameters=parameters)[0]
