"""frozen: an operator none of whose weights are trained. Its backward task gives gradients of inputs alone.

Its class is derived from the operator's: it has the same kind, cuts and kernels, and another backward task.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import cache
from typing import Any

from taskflow.operators.operator import Keeps, Operator, Spec, Work
from taskflow.regions import Rect


class Frozen(Operator):
    """Mixed into an operator's class: what differs if nothing of the operator is trained."""

    __slots__ = ()
    frozen = True

    def keeps(self, inputs: Sequence[Spec]) -> Keeps:
        kept = super().keeps(inputs)
        return replace(kept, inputs=False) if self.inputs_for_weights else kept

    def backward_flops(self, inputs: Sequence[Spec], piece: Rect) -> int:
        flops = super().backward_flops(inputs, piece)
        return flops if self.work is Work.MEMORY else flops // 2  # half of the products are those of weights

    def __reduce__(self) -> tuple[Callable[[Operator], Operator], tuple[Operator]]:
        return frozen, (trained(self),)


def frozen(operator: Operator) -> Operator:
    """Return the operator as it is if nothing of it is trained."""
    return operator if operator.frozen else _as(_frozen_class(type(operator)), operator)


def trained(operator: Operator) -> Operator:
    """Return the operator as it is if all of it is trained."""
    return _as(type(operator).__mro__[2], operator) if operator.frozen else operator


@cache
def _frozen_class(cls: type[Operator]) -> type[Operator]:
    """The class derived from an operator's, which is equal for equal classes, so that operators that are alike stay so."""
    return type(f"Frozen{cls.__name__}", (Frozen, cls), {"__slots__": (), "__doc__": cls.__doc__, "__module__": cls.__module__})


def _as(cls: type[Operator], operator: Any) -> Operator:
    return cls(**{field.name: getattr(operator, field.name) for field in fields(operator)})
