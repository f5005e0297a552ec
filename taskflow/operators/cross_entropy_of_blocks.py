"""cross_entropy_of_blocks: the cross-entropy from `class_blocks`' pair of numbers for each block of classes."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np

from taskflow.operators.loss import LabelLoss
from taskflow.operators.operator import Call, Example, Reads, Spec, register
from taskflow.operators.tensor import Tensor
from taskflow.regions import Rect


@register("cross_entropy_of_blocks")
class CrossEntropyOfBlocks(LabelLoss):
    """y (N, ..., B, 2) pairs, target (N, ...) integers -> a scalar of type ``dtype``: the sum over targets of
    log(sum of exp(first of the pairs)) - sum of the second, or their mean. Otherwise as `cross_entropy`: pieces give partial
    sums, targets equal to ``ignore_index`` add nothing, and the mean is over the others of the whole batch.
    """

    ignore_index: int | None = -100
    reduction: str = "mean"
    dtype: str = "float32"

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        y, target = self.pair(inputs)
        if np.dtype(self.dtype).kind != "f":
            raise ValueError(f"cross_entropy_of_blocks: dtype must be of floats, got {self.dtype!r}")
        shape, pairs = y.shape[:-2], y.shape[-2:]
        if len(y.shape) < 3 or pairs[1] != 2 or not y.differentiable or target.shape != shape or target.dtype.kind not in "iu":
            raise ValueError(
                f"cross_entropy_of_blocks: inputs must be float (N, ..., blocks, 2) and integers (N, ...), got {y} and {target}"
            )
        return (Spec((), np.dtype(self.dtype)),)

    def reads(self, inputs: Sequence[Spec], piece: Rect) -> Reads:
        return Reads((Rect((*piece.lo, 0, 0), (*piece.hi, *inputs[0].shape[-2:])), piece))

    def saves(self, inputs: Sequence[Spec], piece: Rect) -> tuple[Spec, ...]:
        y, target = inputs
        return (Spec((*piece.shape, y.shape[-2]), y.dtype), Spec(piece.shape, target.dtype))

    def forward(self, call: Call) -> None:
        (y, target), (total,), (shares, kept) = call.inputs, call.outputs, call.saved
        rows, blocks = target.size, shares.shape[-1]
        kept[...] = target
        summed = call.kernels.cross_entropy_of_blocks(
            y.reshape(rows, 2 * blocks), target.reshape(rows), self.ignored, shares.reshape(rows, blocks)
        )
        total[...] = summed * self.share(call)

    def backward(self, call: Call) -> None:
        (shares, target), given, dy = call.saved, call.grad, call.grad_inputs[0]
        if dy is not None:
            rows, blocks = target.size, shares.shape[-1]
            call.kernels.cross_entropy_of_blocks_backward(
                shares.reshape(rows, blocks), target.reshape(rows), self.ignored,
                call.kernels.device.number(given) * self.share(call), out=dy.array.reshape(rows, 2 * blocks),
                accumulate=dy.accumulate,
            )

    def flops(self, inputs: Sequence[Spec], piece: Rect) -> int:
        return 6 * piece.volume * inputs[0].shape[-2]  # the softmax over the blocks, and the other sum

    def backward_flops(self, inputs: Sequence[Spec], piece: Rect) -> int:
        return piece.volume * inputs[0].shape[-2]

    @classmethod
    def example(cls, random: Random) -> Example:
        shape = tuple(random.randint(1, 4) for _ in range(random.randint(1, 3)))
        # Ignored targets among the others: nothing else of them matters here.
        operator = cls(random.randrange(4), random.choice(("mean", "sum")), "float64")
        specs = (Spec((*shape, random.randint(1, 5), 2), np.dtype(np.float64)), Spec(shape, np.dtype(np.int64)))
        return Example(operator, specs, high=4)


def cross_entropy_of_blocks(
    input: Tensor,
    target: Tensor,
    *,
    ignore_index: int | None = -100,
    reduction: str = "mean",
    dtype: str = "float32",
    name: str | None = None,
) -> Tensor:
    """Compute the cross-entropy in nats from the pairs of `class_blocks`; `cross_entropy` builds both operators.

    Args: input (N, ..., B, 2); target (N, ...) integers. ``reduction``: as for `cross_entropy`. Returns a scalar ().
    """
    return input.graph.apply(CrossEntropyOfBlocks(ignore_index, reduction, dtype), (input, target), name=name)[0]
