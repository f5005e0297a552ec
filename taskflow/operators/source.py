"""Source: base of operators without inputs, whose value is given or held: `input`, `state`, `constant`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from taskflow.operators.operator import NOTHING, Operator, Spec, positive, takes


class Source(Operator):
    """-> (N, ...) of ``shape`` and ``dtype``. Every dimension can be cut. It is not trained."""

    __slots__ = ()

    calculates = False
    kept = NOTHING
    flops_per_element = 0

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        takes(self.kind, inputs, 0)
        if not self.shape:
            raise ValueError(f"{self.kind}: shape must have at least the sample dimension, got ()")
        positive(self.kind, **{f"shape[{i}]": size for i, size in enumerate(self.shape)})
        return (Spec(self.shape, self.dtype),)
