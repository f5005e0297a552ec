"""Source: base of operators without inputs, whose value is given or held: `input`, `state`, `constant`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from taskflow.operators.operator import NOTHING, Call, Keeps, Operator, Reads, Spec, positive, takes
from taskflow.regions import Rect


class Source(Operator):
    """-> (N, ...) of ``shape`` and ``dtype``. Every dimension can be cut. It is not trained."""

    __slots__ = ()

    calculates: ClassVar[bool] = False
    kept: ClassVar[Keeps] = NOTHING
    flops_per_element: ClassVar[int] = 0

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        takes(self.kind, inputs, 0)
        if not self.shape:
            raise ValueError(f"{self.kind}: shape must have at least the sample dimension, got ()")
        positive(self.kind, **{f"shape[{i}]": size for i, size in enumerate(self.shape)})
        return (Spec(self.shape, self.dtype),)

    def reads(self, inputs: Sequence[Spec], piece: Rect) -> Reads:
        return Reads(())

    def backward(self, call: Call) -> None:
        pass  # there is nothing before it
