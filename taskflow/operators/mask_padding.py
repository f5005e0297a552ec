"""mask_padding: makes scores of padding so low that softmax gives them no weight (PyTorch: torch.masked_fill, or the
key_padding_mask of its attention)."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np

from taskflow.operators.operator import NOTHING, Array, Call, Example, Operator, Reads, Spec, register, takes
from taskflow.operators.tensor import Tensor
from taskflow.regions import Rect

LOWEST = -1e9
"""Finite, so that softmax has a value even where all positions are padding; its exp is 0 beside any real score."""


@register("mask_padding")
class MaskPadding(Operator):
    """x (N, ..., S), tokens (N, S) integers -> x, but ``value`` where the token is ``padding``. Every dimension can be
    cut."""

    padding: int
    value: float = LOWEST
    kept = NOTHING
    flops_per_element = 0  # it moves memory

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        takes("mask_padding", inputs, 2)
        x, tokens = inputs
        fits = len(x.shape) >= 2 and x.differentiable and tokens.shape == (x.shape[0], x.shape[-1])
        if not fits or tokens.dtype.kind not in "iu":
            raise ValueError(f"mask_padding: inputs must be floats (N, ..., S) and integers (N, S), got {x} and {tokens}")
        return (x,)

    def reads(self, inputs: Sequence[Spec], piece: Rect) -> Reads:
        return Reads((piece, Rect((piece.lo[0], piece.lo[-1]), (piece.hi[0], piece.hi[-1]))))

    def saves(self, inputs: Sequence[Spec], piece: Rect) -> tuple[Spec, ...]:
        # Where padding is: the inputs are kept or freed together, and the scores are far larger than this.
        return (Spec((piece.shape[0], piece.shape[-1]), np.dtype(np.bool_)),)

    def forward(self, call: Call) -> None:
        (x, tokens), (y,), (hidden,) = call.inputs, call.outputs, call.saved
        np.equal(tokens, self.padding, out=hidden)
        np.copyto(y, x)
        np.copyto(y, self.value, where=_beside(hidden, y))

    def backward(self, call: Call) -> None:
        if (dx := call.grad_inputs[0]) is not None:
            dx.put(np.where(_beside(call.saved[0], call.grad), 0, call.grad))

    @classmethod
    def example(cls, random: Random) -> Example:
        shape = tuple(random.randint(1, 4) for _ in range(random.randint(2, 4)))
        specs = (Spec(shape, np.dtype(np.float64)), Spec((shape[0], shape[-1]), np.dtype(np.int64)))
        return Example(cls(random.randrange(2), random.uniform(-2, 2)), specs)


def _beside(hidden: Array, x: Array) -> Array:
    """(N, S) as (N, 1, ..., 1, S), to stand beside x."""
    return hidden.reshape(hidden.shape[0], *(1,) * (x.ndim - 2), hidden.shape[1])


def mask_padding(input: Tensor, tokens: Tensor, padding: int, *, name: str | None = None) -> Tensor:
    """Mask the scores of padding before a softmax.

    Args: input (N, ..., S); tokens (N, S) integers: position s of sample n is padding if its token is ``padding``. Returns the
    input with -1e9 there.
    """
    return input.graph.apply(MaskPadding(padding), (input, tokens), name=name)[0]
