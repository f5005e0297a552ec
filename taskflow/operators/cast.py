"""cast, to_float, to_integer: floats as floats of another type, integers or truth values as floats, and the other way (PyTorch:
tensor.to(dtype), tensor.float(), tensor.long()). A gradient goes back to floats, in their type."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np

from taskflow.floats import float_type
from taskflow.operators.operator import NOTHING, Call, Example, Operator, Spec, register, takes
from taskflow.operators.tensor import Tensor


class Converting(Operator):
    """Base: x (N, ...) -> the nearest numbers of ``dtype``. Every dimension can be cut."""

    __slots__ = ()

    dtype: np.dtype[Any]
    kept = NOTHING
    flops_per_element = 1

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        takes(self.kind, inputs, 1)
        self.require(inputs[0])
        return (Spec(inputs[0].shape, self.dtype),)

    @abstractmethod
    def require(self, x: Spec) -> None:
        """Raise ValueError for an input of another type than it converts."""

    def forward(self, call: Call) -> None:
        call.outputs[0][...] = call.inputs[0]

    def backward(self, call: Call) -> None:
        if (dx := call.grad_inputs[0]) is not None:  # integers have none
            dx.put(call.grad)


@register("cast")
class Cast(Converting):
    """Floats as the nearest floats of ``dtype``."""

    dtype: np.dtype[Any]

    def require(self, x: Spec) -> None:
        if not x.differentiable:
            raise ValueError(f"cast: takes floats, got {x}")

    @classmethod
    def example(cls, random: Random) -> Example:
        return Example(cls(np.dtype(np.float64)), (_drawn(random, np.float64),))  # differences need all digits


@register("to_float")
class ToFloat(Converting):
    """Integers or truth values as the same numbers in floats of ``dtype``. There is no gradient."""

    dtype: np.dtype[Any]

    def require(self, x: Spec) -> None:
        if x.dtype.kind not in "iub":
            raise ValueError(f"to_float: takes integers or truth values, got {x}")

    @classmethod
    def example(cls, random: Random) -> Example:
        return Example(cls(np.dtype(np.float64)), (_drawn(random, np.int64),), high=5)


@register("to_integer")
class ToInteger(Converting):
    """Floats, such as the zeros and ones of a comparison, as integers of ``dtype``: without what is behind the point. There is no
    gradient."""

    dtype: np.dtype[Any]

    def require(self, x: Spec) -> None:
        if not x.differentiable:
            raise ValueError(f"to_integer: takes floats, got {x}")

    def backward(self, call: Call) -> None:
        if (dx := call.grad_inputs[0]) is not None:  # steps are flat
            dx.put(call.kernels.xp.zeros(dx.array.shape, dx.array.dtype))

    @classmethod
    def example(cls, random: Random) -> Example:
        return Example(cls(np.dtype(np.int64)), (_drawn(random, np.float64),))


def _drawn(random: Random, dtype: Any) -> Spec:
    return Spec(tuple(random.randint(1, 4) for _ in range(random.randint(1, 3))), np.dtype(dtype))


def cast(input: Tensor, dtype: str | np.dtype[Any], *, name: str | None = None) -> Tensor:
    """Return floats (N, ...) in another float type, such as float32 for a sum in a network of bfloat16; the input itself if it
    has that type."""
    wanted = float_type(dtype)
    return input if input.dtype == wanted else input.graph.apply(Cast(wanted), (input,), name=name)[0]


def to_float(input: Tensor, dtype: str | np.dtype[Any] | None = None, *, name: str | None = None) -> Tensor:
    """Return integers or truth values as floats, in the graph's float type or in ``dtype``. Any shape in, the same shape out."""
    wanted = np.dtype(input.graph.dtype) if dtype is None else float_type(dtype)
    return input.graph.apply(ToFloat(wanted), (input,), name=name)[0]


def to_integer(input: Tensor, *, name: str | None = None) -> Tensor:
    """Return floats as int64, without what is behind the point, such as zeros and ones that are to be counted (`compare`). Any
    shape in, the same shape out; there is no gradient."""
    return input.graph.apply(ToInteger(np.dtype(np.int64)), (input,), name=name)[0]
