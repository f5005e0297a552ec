"""divide_integers: integers divided by a number, as PyTorch's // and % have it, or C's."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np

from taskflow.operators.operator import NOTHING, Call, Example, Operator, Spec, register, takes
from taskflow.operators.tensor import Tensor


@register("divide_integers")
class DivideIntegers(Operator):
    """Integers x -> x // number, or with ``rest`` what is left, x % number, which has the sign of the number. With ``toward_zero``
    the quotient is without what is behind the point, and what is left has the sign of x. Every dimension can be cut."""

    number: int
    rest: bool
    toward_zero: bool = False
    kept = NOTHING
    stops_gradient = True
    flops_per_element = 1

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        takes("divide_integers", inputs, 1)
        if inputs[0].dtype.kind not in "iu":
            raise ValueError(f"divide_integers: takes integers, got {inputs[0]}")
        if not self.number:
            raise ValueError("divide_integers: the number must not be 0")
        return (inputs[0],)

    def forward(self, call: Call) -> None:
        x = call.inputs[0]
        quotient = x // self.number
        if self.toward_zero:  # one more where it was rounded down to a negative number
            quotient = quotient + ((quotient < 0) & (quotient * self.number != x))
        call.outputs[0][...] = x - quotient * self.number if self.rest else quotient

    @classmethod
    def example(cls, random: Random) -> Example:
        shape = tuple(random.randint(1, 4) for _ in range(random.randint(1, 3)))
        operator = cls(random.choice((-3, 2, 5)), random.random() < 0.5, random.random() < 0.5)
        return Example(operator, (Spec(shape, np.dtype(np.int64)),), high=9)


def divide_integers(
    input: Tensor, number: int, *, rest: bool = False, toward_zero: bool = False, name: str | None = None
) -> Tensor:
    """Return integers divided by a number, rounded down (or ``toward_zero``), or the ``rest`` of that. Any shape in, the same
    shape out; there is no gradient."""
    return input.graph.apply(DivideIntegers(int(number), rest, toward_zero), (input,), name=name)[0]
