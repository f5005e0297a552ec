"""input: a step's data, which enter the network here."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np

from taskflow.floats import is_float, sums_in
from taskflow.operators.operator import Call, Example, Spec, register
from taskflow.operators.source import Source
from taskflow.operators.tensor import Builder, Tensor
from taskflow.regions import Rect


@register("input")
class Input(Source):
    """-> (N, ...): each piece takes its Rect of the step's global array ``feeds[name]``."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def forward(self, call: Call) -> None:
        call.kernels.device.upload(self._fed(call)[call.piece.slices(Rect.of(self.shape))], call.outputs[0])

    def _fed(self, call: Call) -> Any:
        feeds = call.state.feeds
        wanted = Spec(self.shape, self.dtype)
        if call.name not in feeds:
            raise ValueError(f"{call.name}: each step needs {wanted} by this name, got {sorted(feeds) or 'none'}")
        array = feeds[call.name]
        if not hasattr(array, "shape"):
            raise ValueError(f"{call.name}: each step needs an array {wanted}, got {type(array).__name__}")
        if tuple(array.shape) != self.shape or array.dtype not in (self.dtype, sums_in(self.dtype)):  # rounded where it is put
            given = Spec(tuple(array.shape), array.dtype)
            raise ValueError(f"{call.name}: each step needs {wanted}, got {given}; convert it before")
        return array

    @classmethod
    def example(cls, random: Random) -> Example:
        shape = tuple(random.randint(1, 5) for _ in range(random.randint(1, 4)))
        return Example(cls(shape, np.dtype(random.choice((np.float64, np.int64)))), ())


def input(
    graph: Builder, shape: Sequence[int], dtype: str | np.dtype[Any] | None = None, *, name: str
) -> Tensor:
    """Add a tensor (N, ...) that every step is given under ``name`` (if that is taken, under the returned tensor's name).

    Args: ``shape`` is of the whole batch, over all processors; ``dtype`` is the graph's unless given. Raises ValueError if
    ``shape`` is no sequence of positive integers, or ``dtype`` no type of floats, integers or truth values.
    """
    if not isinstance(shape, Sequence):
        raise ValueError(f"input {name}: shape must be a sequence of sizes, such as (8, 4), got {shape!r}")
    try:
        kind = np.dtype(graph.dtype if dtype is None else dtype)
    except TypeError:
        kind = None
    if kind is None or not (is_float(kind) or kind.kind in "iub"):
        raise ValueError(f"input {name}: dtype must be of floats, integers or truth values, such as 'int64', got {dtype!r}")
    return graph.apply(Input(tuple(shape), kind), (), name=name)[0]
