"""per_label: divides a sum of losses by its number of labels, which depends on the data (as PyTorch's mean of
torch.nn.functional.cross_entropy with ignore_index does)."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np

from taskflow.operators.operator import INPUTS, Array, Call, Example, Operator, Reads, Spec, register, takes
from taskflow.operators.tensor import Tensor
from taskflow.regions import Rect


@register("per_label")
class PerLabel(Operator):
    """x of any shape, labels of any shape, integers -> x divided by the number of labels that are not ``ignore_index`` (by 1 if
    there is none). Every task counts all labels by itself; they are input data, so there is nothing to wait for, and a backward
    task needs no forward task before it."""

    ignore_index: int = -100
    linear = True
    kept = INPUTS
    flops_per_element = 1

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        takes("per_label", inputs, 2)
        x, labels = inputs
        if not x.differentiable or labels.dtype.kind not in "iu":
            raise ValueError(f"per_label: inputs must be a float tensor and integers, got {x} and {labels}")
        return (x,)

    def reads(self, inputs: Sequence[Spec], piece: Rect) -> Reads:
        return Reads((piece, inputs[1].rect))

    def _count(self, call: Call) -> Array:
        """The number of labels, an array without dimensions of the input's type."""
        xp, labels = call.kernels.xp, call.inputs[1]
        return xp.maximum(1, xp.count_nonzero(labels != self.ignore_index)).astype(call.specs[0].dtype)

    def forward(self, call: Call) -> None:
        np.divide(call.inputs[0], self._count(call), out=call.outputs[0])

    def backward(self, call: Call) -> None:
        if (dx := call.grad_inputs[0]) is not None:
            dx.put(call.grad / self._count(call))

    @classmethod
    def example(cls, random: Random) -> Example:
        x, labels = (tuple(random.randint(1, 4) for _ in range(random.randint(low, 3))) for low in (0, 1))
        labels = (*labels, 2)  # one label counts as 1 whatever it is
        return Example(cls(random.randrange(2)), (Spec(x, np.dtype(np.float64)), Spec(labels, np.dtype(np.int64))))


def per_label(input: Tensor, labels: Tensor, *, ignore_index: int = -100, name: str | None = None) -> Tensor:
    """Divide the input (any shape, such as the sum of a batch's losses) by the number of ``labels`` (any shape, integers) that
    are not ``ignore_index``. Returns the input's shape."""
    return input.graph.apply(PerLabel(ignore_index), (input, labels), name=name)[0]
