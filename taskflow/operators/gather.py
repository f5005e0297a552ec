"""gather: chosen entries of every sample (PyTorch: torch.take_along_dim over dimension 1)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from random import Random

import numpy as np

from taskflow.operators.operator import INPUTS, Array, Call, Example, Operator, Reads, Spec, register, takes
from taskflow.operators.tensor import Tensor
from taskflow.regions import Rect


@register("gather")
class Gather(Operator):
    """x (N, B, ...), index (N, K) integers below B -> y (N, K, ...): y[n, k] = x[n, index[n, k]]. Either may be one for all
    samples, (1, B, ...) or (1, K). Every dimension of y can be cut. Only the data tell which of the B entries a piece needs, so it
    reads them all."""

    kept = INPUTS
    flops_per_element = 0  # it moves memory

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        takes("gather", inputs, 2)
        x, index = inputs
        fits = len(x.shape) >= 2 and len(index.shape) == 2 and (x.shape[0] == index.shape[0] or 1 in (x.shape[0], index.shape[0]))
        if not fits or index.dtype.kind not in "iu":
            raise ValueError(f"gather: inputs must be (N, B, ...) and integers (N, K), got {x} and {index}")
        samples = index.shape[0] if x.shape[0] == 1 else x.shape[0]
        return (Spec((samples, index.shape[1], *x.shape[2:]), x.dtype),)

    def reads(self, inputs: Sequence[Spec], piece: Rect) -> Reads:
        of_x, of_index = (
            (0, 1) if spec.shape[0] == 1 else (piece.lo[0], piece.hi[0]) for spec in inputs
        )
        x = Rect((of_x[0], 0, *piece.lo[2:]), (of_x[1], inputs[0].shape[1], *piece.hi[2:]))
        return Reads((x, Rect((of_index[0], piece.lo[1]), (of_index[1], piece.hi[1]))))

    def integers_below(self, inputs: Sequence[Spec]) -> int:
        return inputs[0].shape[1]

    def forward(self, call: Call) -> None:
        (x, index), (y,) = call.inputs, call.outputs
        call.kernels.device.require(
            (index >= 0) & (index < x.shape[1]), index,
            f"{call.name}: indices must be at least 0 and below {x.shape[1]}, got {{given}}",
        )
        y[...] = x[_samples(call), index]

    def backward(self, call: Call) -> None:
        index = call.inputs[1]
        if (dx := call.grad_inputs[0]) is not None:
            samples, entries, *rest = dx.array.shape
            xp, shape = call.kernels.xp, call.grad.shape[:2]
            flat = xp.ascontiguousarray(xp.broadcast_to(_samples(call) * entries + index, shape)).reshape(-1)
            call.kernels.embedding_backward(
                flat, 0, call.grad.reshape(flat.size, prod(rest)), out=dx.array.reshape(samples * entries, prod(rest)),
                accumulate=dx.accumulate,
            )

    @classmethod
    def example(cls, random: Random) -> Example:
        samples, entries, chosen = (random.randint(1, 4) for _ in range(3))
        rest = tuple(random.randint(1, 4) for _ in range(random.randint(0, 2)))
        of_x, of_index = random.choice(((samples, samples), (1, samples), (samples, 1)))
        x = Spec((of_x, entries, *rest), np.dtype(np.float64))
        return Example(cls(), (x, Spec((of_index, chosen), np.dtype(np.int64))), high=entries)


def _samples(call: Call) -> Array:
    """The number of each sample among the entries, (N, 1), or 0 for all, (1, 1)."""
    return call.kernels.xp.arange(call.inputs[0].shape[0])[:, None]



def gather(input: Tensor, index: Tensor, *, name: str | None = None) -> Tensor:
    """Choose the entries of every sample that ``index`` names, such as the beams that a beam search continues.

    Args: input (N, B, ...); index (N, K) integers below B, which may repeat. Returns (N, K, ...). Either may have one sample for
    all.
    """
    return input.graph.apply(Gather(), (input, index), name=name)[0]
