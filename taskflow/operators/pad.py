"""pad: a border of one value around a tensor (PyTorch: torch.nn.functional.pad with mode "constant")."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np

from taskflow.operators.operator import NOTHING, Call, Example, Operator, Reads, Spec, register, takes
from taskflow.operators.tensor import Tensor
from taskflow.regions import Rect


@register("pad")
class Pad(Operator):
    """x -> y with (before, after) more elements in every dimension, which hold ``value``. A piece reads its part of x, which
    may be nothing."""

    edges: tuple[tuple[int, int], ...]
    value: float
    kept = NOTHING
    flops_per_element = 0

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        takes("pad", inputs, 1)
        (x,) = inputs
        if len(self.edges) != len(x.shape) or not x.differentiable:
            raise ValueError(f"pad: input must be a float tensor of {len(self.edges)} dimensions, got {x}")
        if any(edge < 0 for pair in self.edges for edge in pair):
            raise ValueError(f"pad: widths must be 0 or more, got {self.edges}")
        return (Spec(tuple(a + size + b for size, (a, b) in zip(x.shape, self.edges)), x.dtype),)

    def reads(self, inputs: Sequence[Spec], piece: Rect) -> Reads:
        inside = piece.shift([-a for a, _ in self.edges]).intersect(inputs[0].rect)
        return Reads((Rect.of((0,) * piece.ndim) if inside.empty else inside,))

    def forward(self, call: Call) -> None:
        (x,), (y,) = call.inputs, call.outputs
        y[...] = self.value
        if x.size:
            y[self._inside(call)] = x

    def backward(self, call: Call) -> None:
        if (dx := call.grad_inputs[0]) is not None and dx.array.size:
            dx.put(call.grad[self._inside(call)])

    def _inside(self, call: Call) -> tuple[slice, ...]:
        """Place of the input in the piece's output."""
        return call.reads.inputs[0].shift([a for a, _ in self.edges]).slices(call.piece)

    @classmethod
    def example(cls, random: Random) -> Example:
        shape = tuple(random.randint(1, 4) for _ in range(random.randint(1, 4)))
        edges = tuple((random.randint(0, 2), random.randint(0, 2)) for _ in shape)
        return Example(cls(edges, random.choice((0.0, -1.5))), (Spec(shape, np.dtype(np.float64)),))


def pad(input: Tensor, pad: Sequence[int], value: float = 0.0, *, name: str | None = None) -> Tensor:
    """Put ``value`` around a tensor.

    Args: ``pad``: before and after the last dimension, before and after the one before it, and so on; dimensions that
    are not named get none.
    """
    if len(pad) % 2 or len(pad) > 2 * input.ndim:
        raise ValueError(f"pad: needs two widths for each of at most {input.ndim} dimensions, got {tuple(pad)}")
    pairs = [(pad[i], pad[i + 1]) for i in range(0, len(pad), 2)]
    edges = (*((0, 0),) * (input.ndim - len(pairs)), *reversed(pairs))
    return input.graph.apply(Pad(edges, float(value)), (input,), name=name)[0]
