"""amax, amin: the largest or least number over some dimensions (PyTorch: torch.amax, torch.amin, torch.max and torch.min)."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np

from taskflow.operators.operator import Call, Example, register
from taskflow.operators.reduce import Reducing, dims_over, drawn
from taskflow.operators.tensor import Tensor


@register("extreme")
class Extreme(Reducing):
    """x -> its largest number, or the least, over the dimensions ``over``, which are read whole. The gradient goes to the element
    that it is; of several equal ones in equal parts to all, or with ``first`` to the first, as where PyTorch returns its
    position."""

    least: bool
    first: bool = False

    def forward(self, call: Call) -> None:
        (x,), (y,), over = call.inputs, call.outputs, tuple(self.dims_of(call.specs[0]))
        y[...] = (x.min if self.least else x.max)(axis=over).reshape(y.shape)

    def backward(self, call: Call) -> None:
        if (dx := call.grad_inputs[0]) is None:
            return
        x, over, dy = call.inputs[0], tuple(self.dims_of(call.specs[0])), self.wide(call, call.grad)
        hits = x == self.wide(call, call.outputs[0])
        if self.first:
            hits = hits & (np.cumsum(hits, axis=over[0]) == 1)
        dx.put((hits * (dy / np.maximum(hits.sum(axis=over, keepdims=True), 1))).astype(x.dtype))

    @classmethod
    def example(cls, random: Random) -> Example:
        over, spec = drawn(random, left=1)
        first = random.random() < 0.3
        return Example(cls(over[:1] if first else over, random.random() < 0.5, random.random() < 0.5, first), (spec,))


def amax(
    input: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False, *, least: bool = False, first: bool = False,
    name: str | None = None,
) -> Tensor:
    """The largest number (``least``: the least) over ``dim`` (default: all), which is left out, or kept with size 1 (``keepdim``).
    Of equal ones all get a part of the gradient, or with ``first`` the first gets it; then there must be one dimension."""
    over = dims_over(input, dim)
    if first and len(over) != 1:
        raise ValueError(f"amax: first needs one dimension, got {over}")
    return input.graph.apply(Extreme(over, keepdim, least, first), (input,), name=name)[0]
