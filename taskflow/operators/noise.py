"""noise: random numbers, drawn anew in each step (PyTorch: torch.randn, torch.rand)."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np

from taskflow.floats import float_type, is_float
from taskflow.operators.dropout import generator_key
from taskflow.operators.operator import NOTHING, Call, Example, Operator, Reads, Spec, positive, register, takes
from taskflow.operators.tensor import Tensor
from taskflow.regions import Rect

KINDS = ("normal", "uniform")


@register("noise")
class Noise(Operator):
    """x (N, ...) -> y (N, *``sizes``) of standard normal numbers, or uniform ones in [0, 1). Of x only the samples count: nothing
    of it is read. Every dimension can be cut.

    Each number depends only on its position in the whole tensor, the operator's name, the seed and the step, in training as in
    evaluation. ``alike``: on its position alone, so that two programs can be compared.
    """

    drawn: str
    sizes: tuple[int, ...]
    dtype: np.dtype[Any]
    alike: bool = False
    kept = NOTHING
    stops_gradient = True
    flops_per_element = 10  # of the generator, by Philox's rounds

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        takes("noise", inputs, 1)
        positive("noise", **{f"sizes[{i}]": size for i, size in enumerate(self.sizes)})
        if self.drawn not in KINDS or not is_float(self.dtype) or not inputs[0].shape:
            raise ValueError(
                f"noise: must be {' or '.join(KINDS)}, of floats, for an input with samples, got {self.drawn!r}, {self.dtype} and "
                f"{inputs[0]}"
            )
        return (Spec((inputs[0].shape[0], *self.sizes), self.dtype),)

    def reads(self, inputs: Sequence[Spec], piece: Rect) -> Reads:
        nothing = (0,) * len(inputs[0].shape)
        return Reads((Rect(nothing, nothing),))

    def forward(self, call: Call) -> None:
        (y,) = call.outputs
        key, stream = ((0, 0), 0) if self.alike else (generator_key(call.state, call.name), call.state.step)
        draw = call.kernels.normal if self.drawn == "normal" else call.kernels.uniform
        draw(key, stream, (call.specs[0].shape[0], *self.sizes), call.piece.lo, out=y)

    @classmethod
    def example(cls, random: Random) -> Example:
        sizes = tuple(random.randint(1, 4) for _ in range(random.randint(0, 3)))
        x = Spec((random.randint(1, 4), *[2] * random.randint(0, 2)), np.dtype(np.float64))
        return Example(cls(random.choice(KINDS), sizes, np.dtype(np.float64)), (x,))


def noise(input: Tensor, sizes: Sequence[int], drawn: str = "normal", dtype: Any = None, *, name: str | None = None) -> Tensor:
    """Draw random numbers for each sample of ``input`` (N, ...), of which nothing else counts.

    Args: ``sizes``: of the numbers of one sample. ``drawn``: "normal" (standard) or "uniform" (from 0 to below 1). ``dtype``: the
    graph's unless given. Returns (N, *sizes). Another name, seed or step gives other numbers; no cut does.
    """
    kind = input.graph.dtype if dtype is None else float_type(dtype)
    return input.graph.apply(Noise(drawn, tuple(sizes), kind), (input,), name=name)[0]
