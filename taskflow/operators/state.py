"""state: a tensor that persists between steps, such as the last hidden state of a recurrent network."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np

from taskflow.operators.operator import Call, Dim, Example, Soap, Spec, register, sample_and_attributes
from taskflow.operators.source import Source
from taskflow.operators.tensor import Builder, Tensor


@register("state")
class State(Source):
    """-> (N, ...): ``start`` in the first step, later the value that ``graph.carry`` gives it. The runtime holds the value, so
    there is nothing to compute. A ``lasting`` state belongs to the trained network, such as running statistics: it has no
    sample dimension, and evaluation starts from the value that training left."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    start: float = 0.0
    lasting: bool = False

    def dims(self, inputs: Sequence[Spec]) -> tuple[Dim, ...]:
        if self.lasting:
            return tuple(Dim(f"a{i}", size, Soap.ATTRIBUTE) for i, size in enumerate(self.shape))
        return sample_and_attributes(self.shape)

    def forward(self, call: Call) -> None:
        pass  # the value is already there

    @classmethod
    def example(cls, random: Random) -> Example:
        shape = tuple(random.randint(1, 5) for _ in range(random.randint(1, 3)))
        return Example(cls(shape, np.dtype(np.float64), lasting=random.random() < 0.5), ())


def state(
    graph: Builder,
    shape: Sequence[int],
    dtype: str | np.dtype[Any] | None = None,
    *,
    start: float = 0.0,
    lasting: bool = False,
    name: str,
) -> Tensor:
    """Add a tensor (N, ...) filled with ``start``; ``graph.carry(it, becomes)`` gives it, in every later step, the previous
    value of ``becomes``.

    Without a carry it never changes. Gradients do not flow through it (truncated backpropagation). ``lasting``: it belongs to
    the network as its parameters do, and has no sample dimension; evaluation begins with training's value. Otherwise training
    and evaluation each have their own value.
    """
    kind = np.dtype(graph.dtype if dtype is None else dtype)
    return graph.apply(State(tuple(shape), kind, float(start), lasting), (), name=name)[0]
