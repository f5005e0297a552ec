"""constant: an array that is part of the network and never changes (PyTorch: a buffer, such as a table of positions or a mask)."""

from __future__ import annotations

import hashlib
from dataclasses import field
from random import Random
from typing import Any

import numpy as np

from taskflow.operators.operator import Call, Example, register
from taskflow.operators.source import Source
from taskflow.operators.tensor import Builder, Tensor
from taskflow.regions import Rect


@register("constant")
class ConstantArray(Source):
    """-> (N, ...): each piece takes its Rect of ``values``. Two are equal if their ``digest`` is, which covers shape, type and
    values."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    digest: str
    values: Any = field(compare=False, repr=False)

    def forward(self, call: Call) -> None:
        call.kernels.device.upload(self.values[call.piece.slices(Rect.of(self.shape))], call.outputs[0])

    @classmethod
    def of(cls, values: Any) -> ConstantArray:
        """Return the operator of an array, which is copied."""
        array = np.array(values)
        first = array.reshape(-1)[:1]
        if array.ndim and bool((array == first).all()):  # such as zeros: one number is kept
            array = np.broadcast_to(first.copy(), array.shape)
        array.flags.writeable = False
        digest = hashlib.sha256(f"{array.shape} {array.dtype} ".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        return cls(array.shape, array.dtype, digest.hexdigest()[:16], array)

    @classmethod
    def example(cls, random: Random) -> Example:
        shape = tuple(random.randint(1, 5) for _ in range(random.randint(1, 4)))
        numbers = np.random.default_rng(random.randrange(1000))
        kind = np.dtype(random.choice((np.float64, np.int64)))
        return Example(cls.of(numbers.integers(0, 9, shape).astype(kind)), ())


def constant(graph: Builder, values: Any, *, name: str | None = None) -> Tensor:
    """Add an array (N, ...) of numbers that are not trained: positions, masks, tables. It is copied, and becomes part of the
    graph.

    Raises ValueError for a single number; `scale` and `shift` take those.
    """
    operator = ConstantArray.of(values)
    if not operator.shape:
        raise ValueError("constant: values must have at least one dimension, got a single number")
    return graph.apply(operator, (), name=name)[0]
