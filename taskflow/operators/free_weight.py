"""add_weight, mul_weight, expand_weight: a trained array that is added to a tensor, multiplied with it, or expanded to a tensor
(in PyTorch a torch.nn.Parameter in an expression: positions, layer scales, class tokens). They share most rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

from taskflow.operators.binary import seen_by
from taskflow.operators.operator import Array, Call, Example, Keeps, Operator, Reads, Target, register
from taskflow.operators.spec import Dim, Init, Soap, Spec, WeightSpec, positive, takes
from taskflow.operators.tensor import Builder, Parameter, Tensor
from taskflow.regions import Rect

ZEROS, ONES = Init("constant", 0.0), Init("constant", 1.0)


@dataclass(frozen=True, slots=True)
class FreeWeight(Operator):
    """A weight of a ``shape`` that broadcasts to the output's: a missing dimension or one of size 1 is repeated, and its
    gradient is the sum over the repetitions. Repeated dimensions are SAMPLE (the first) or ATTRIBUTE; the others cut the
    weight."""

    shape: tuple[int, ...]
    init: Init

    keeps_both = False
    flops_per_element = 1

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        takes(self.kind, inputs, 1)
        (x,) = inputs
        if not x.shape or not x.differentiable:
            raise ValueError(f"{self.kind}: input must be a float tensor (N, ...), got {x}")
        self._require_repeats_to(x.shape)
        return (x,)

    def _require_repeats_to(self, whole: tuple[int, ...]) -> None:
        skip = len(whole) - len(self.shape)
        if skip < 0 or any(mine not in (1, other) for mine, other in zip(self.shape, whole[skip:])):
            raise ValueError(
                f"{self.kind}: the weight's sizes must be 1 or those of {list(whole)}, counted from the last, "
                f"got {list(self.shape)}"
            )

    def weights(self, inputs: Sequence[Spec]) -> tuple[WeightSpec, ...]:
        return (WeightSpec("", self.shape, self.init),)

    def dims(self, inputs: Sequence[Spec]) -> tuple[Dim, ...]:
        (whole,) = self.output(inputs)
        own = (1,) * (len(whole.shape) - len(self.shape)) + self.shape
        kinds = [Soap.PARAMETER if size > 1 else Soap.ATTRIBUTE if i else Soap.SAMPLE for i, size in enumerate(own)]
        return tuple(Dim(f"a{i}" if i else "n", size, soap) for i, (size, soap) in enumerate(zip(whole.shape, kinds)))

    def reads(self, inputs: Sequence[Spec], piece: Rect) -> Reads:
        return Reads((piece,), (seen_by(self.shape, piece),))

    def keeps(self, inputs: Sequence[Spec]) -> Keeps:
        return Keeps(inputs=self.keeps_both, weights=self.keeps_both, outputs=False)

    @classmethod
    def example(cls, random: Random) -> Example:
        whole, shape = _shapes(random)
        return Example(cls(shape, Init("normal", 1.0)), (Spec(whole, np.dtype(np.float64)),))


@register("add_weight")
class AddWeight(FreeWeight):
    """y = x + weight."""

    def forward(self, call: Call) -> None:
        np.add(call.inputs[0], call.weights[0], out=call.outputs[0])

    def backward(self, call: Call) -> None:
        if (dx := call.grad_inputs[0]) is not None:
            dx.put(call.grad)
        if (dweight := call.grad_weights[0]) is not None:
            _put_sum(dweight, call.grad)


@register("mul_weight")
class MulWeight(FreeWeight):
    """y = x weight."""

    keeps_both = True
    inputs_for_weights = True

    def forward(self, call: Call) -> None:
        np.multiply(call.inputs[0], call.weights[0], out=call.outputs[0])

    def backward(self, call: Call) -> None:
        if (dx := call.grad_inputs[0]) is not None:
            dx.put(call.grad * call.weights[0])
        if (dweight := call.grad_weights[0]) is not None:
            _put_sum(dweight, call.grad * call.inputs[0])


@register("expand_weight")
class ExpandWeight(FreeWeight):
    """-> y (N, ...), the weight expanded to the shape ``whole``."""

    whole: tuple[int, ...]
    dtype: np.dtype[Any]
    flops_per_element = 0  # it moves memory
    backward_flops_per_element = 1

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        takes("expand_weight", inputs, 0)
        positive("expand_weight", **{f"whole[{i}]": size for i, size in enumerate(self.whole)})
        if not self.whole:
            raise ValueError("expand_weight: whole must have at least the sample dimension, got ()")
        self._require_repeats_to(self.whole)
        return (Spec(self.whole, self.dtype),)

    def reads(self, inputs: Sequence[Spec], piece: Rect) -> Reads:
        return Reads((), (seen_by(self.shape, piece),))

    def forward(self, call: Call) -> None:
        call.outputs[0][...] = call.weights[0]

    def backward(self, call: Call) -> None:
        if (dweight := call.grad_weights[0]) is not None:
            _put_sum(dweight, call.grad)

    @classmethod
    def example(cls, random: Random) -> Example:
        whole, shape = _shapes(random)
        return Example(cls(shape, Init("normal", 1.0), whole, np.dtype(np.float64)), ())


def _put_sum(target: Target, value: Array) -> None:
    """Put ``value``, of the output's shape, into the weight's gradient, summed over the repeated dimensions."""
    shape = target.array.shape
    skip = value.ndim - len(shape)
    repeated = tuple(i for i, n in enumerate(value.shape) if i < skip or (shape[i - skip] == 1 and n > 1))
    target.put((value.sum(axis=repeated) if repeated else value).reshape(shape))


def _shapes(random: Random) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A whole shape, and one that broadcasts to it."""
    whole = tuple(random.randint(1, 5) for _ in range(random.randint(1, 4)))
    shape = tuple(random.choice((1, size)) for size in whole)
    return whole, shape[random.randint(0, len(shape)) :]


def add_weight(
    input: Tensor, shape: Sequence[int], *, init: Init = ZEROS, name: str | None = None,
    parameters: Sequence[Parameter] | None = None,
) -> Tensor:
    """Add a trained array of ``shape`` to the input. It is repeated where its size is 1 or a dimension is missing: (N, T, C)
    with (1, T, C).

    The array has the operator's name. Returns the input's shape. ``parameters`` shares another operator's array. Raises
    ValueError if the shape does not broadcast to the input's.
    """
    return input.graph.apply(AddWeight(tuple(shape), init), (input,), name=name, parameters=parameters)[0]


def mul_weight(
    input: Tensor, shape: Sequence[int], *, init: Init = ONES, name: str | None = None,
    parameters: Sequence[Parameter] | None = None,
) -> Tensor:
    """Multiply the input by a trained array of ``shape``, element by element. It is repeated where its size is 1 or a dimension
    is missing: (N, C, H, W) with (C, 1, 1). Names, sharing and errors as in `add_weight`."""
    return input.graph.apply(MulWeight(tuple(shape), init), (input,), name=name, parameters=parameters)[0]


def expand_weight(
    graph: Builder, shape: Sequence[int], whole: Sequence[int], *, init: Init = ZEROS, name: str | None = None,
    parameters: Sequence[Parameter] | None = None,
) -> Tensor:
    """Expand a trained array of ``shape`` to a tensor ``whole`` (N, ...). It is repeated where its size is 1 or a dimension is
    missing: a class token (1, 1, C) for each of N samples, (N, 1, C). Names, sharing and errors as in `add_weight`."""
    operator = ExpandWeight(tuple(shape), init, tuple(whole), np.dtype(graph.dtype))
    return graph.apply(operator, (), name=name, parameters=parameters)[0]
