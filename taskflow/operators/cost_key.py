"""cost_key: everything that the cost of a task depends on. Tasks with equal keys cost the same."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from taskflow.operators.operator import Operator, Spec, outputs_of
from taskflow.regions import Rect


@lru_cache
def _type_name(dtype: np.dtype[Any]) -> str:
    return str(dtype)  # takes numpy a microsecond or two


def cost_key(operator: Operator, inputs: Sequence[Spec], piece: Rect, backward: bool) -> Hashable:
    """Return everything that the cost of a task depends on: kind, attributes, local shapes, type, direction, and flops where
    these do not follow (`Operator.uniform`). Pieces with equal keys cost the same (paper, section 5: a task's time is
    independent of its contents)."""
    return (*_cost_shapes(operator, tuple(inputs), piece), "backward" if backward else "forward")


@lru_cache(maxsize=1 << 14)
def _cost_shapes(operator: Operator, inputs: tuple[Spec, ...], piece: Rect) -> tuple[Hashable, ...]:
    reads = operator.reads(inputs, piece)
    return (
        operator,
        piece.shape,
        tuple([r.shape for r in (*reads.inputs, *reads.weights)]),
        tuple([_type_name(s.dtype) for s in inputs]),
        tuple([_type_name(s.dtype) for s in outputs_of(operator, inputs)]),
        *(() if operator.uniform else (operator.flops(inputs, piece),)),
    )
