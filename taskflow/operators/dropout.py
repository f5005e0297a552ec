"""dropout: zeroes elements at random and scales the others up (PyTorch: torch.nn.functional.dropout).

Srivastava, Hinton, Krizhevsky, Sutskever, Salakhutdinov, "Dropout: a simple way to prevent neural networks from overfitting",
JMLR 15 (2014).
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from zlib import crc32

import numpy as np

from taskflow.operators.operator import NOTHING, Call, Example, Operator, Spec, StepState, register, takes
from taskflow.operators.tensor import Tensor
from taskflow.regions import Rect


@register("dropout")
class Dropout(Operator):
    """x -> y of the same shape: in training 0 with probability p, else x / (1 - p); in evaluation x.

    Which elements stay depends only on their position in the whole tensor, the operator's name, the seed and the step,
    so it is the same however the tensor is cut. The mask is saved, one byte an element.
    """

    p: float = 0.5
    kept = NOTHING
    flops_per_element = 1
    backward_flops_per_element = 1

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        takes("dropout", inputs, 1)
        if not 0 <= self.p < 1:
            raise ValueError(f"dropout: p must be at least 0 and below 1, got {self.p}")
        if not inputs[0].differentiable:
            raise ValueError(f"dropout: input must be a float tensor, got {inputs[0]}")
        return (inputs[0],)

    def saves(self, inputs: Sequence[Spec], piece: Rect) -> tuple[Spec, ...]:
        return (Spec(piece.shape, np.dtype(np.bool_)),)

    def forward(self, call: Call) -> None:
        (x,), (y,), (mask,) = call.inputs, call.outputs, call.saved
        if not call.state.training:
            y[...] = x
            return
        key, shape = generator_key(call.state, call.name), call.specs[0].shape
        call.kernels.dropout(key, call.state.step, shape, call.piece.lo, self.p, x, out=y, mask=mask)

    def backward(self, call: Call) -> None:
        dy, dx = call.grad, call.grad_inputs[0]
        if dx is not None and call.state.training:
            call.kernels.dropout_backward(call.saved[0], self.p, dy, out=dx.array, accumulate=dx.accumulate)
        elif dx is not None:
            dx.put(dy)

    @classmethod
    def example(cls, random: Random) -> Example:
        shape = tuple(random.randint(1, 5) for _ in range(random.randint(1, 4)))
        return Example(cls(random.choice((0.0, 0.25, 0.5, 0.7))), (Spec(shape, np.dtype(np.float64)),))


def generator_key(state: StepState, name: str) -> tuple[int, int]:
    """Return the generator's key: the seed and a checksum of the name (Python's hash differs from process to process)."""
    return state.seed & 0xFFFFFFFF, (crc32(name.encode()) ^ (state.seed >> 32)) & 0xFFFFFFFF


def dropout(input: Tensor, p: float = 0.5, *, name: str | None = None) -> Tensor:
    """Zero each element with probability ``p`` while training and scale the others by 1 / (1 - p).

    Args: input of any shape. Returns the same shape. Another name, seed or step gives another mask.
    """
    return input.graph.apply(Dropout(p), (input,), name=name)[0]
