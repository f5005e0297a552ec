"""Tensor and Parameter: the handles that model code passes between operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from taskflow.operators.operator import Init, Operator, Spec


class Builder(Protocol):
    """Interface of the graph to which a builder function adds (implemented by taskflow.graph.OperatorGraph)."""

    dtype: np.dtype[Any]

    def apply(
        self,
        operator: Operator,
        inputs: Sequence[Tensor] = (),
        *,
        name: str | None = None,
        parameters: Sequence[Parameter] | None = None,
    ) -> tuple[Tensor, ...]:
        """Add a node; ``parameters`` shares those of an earlier node instead of making new ones."""
        ...

    def parameters_of(self, tensor: Tensor) -> tuple[Parameter, ...]:
        """Return the parameters of the node that produces ``tensor``, to be shared with another node."""
        ...

    def carry(self, state: Tensor, becomes: Tensor) -> None:
        """Carry state: ``state`` starts the next step with the value that ``becomes`` has in this one."""
        ...

    def carried(self, state: Tensor) -> Tensor:
        """Return what a state becomes so far: itself if nothing carries it."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """Output number ``index`` of node number ``node`` of ``graph``. Dimension 0 is the sample dimension."""

    graph: Builder
    node: int
    index: int
    name: str
    spec: Spec

    @property
    def shape(self) -> tuple[int, ...]:
        return self.spec.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.spec.dtype

    @property
    def ndim(self) -> int:
        return len(self.spec.shape)

    def __repr__(self) -> str:
        return f"{self.name}: {self.spec}"


@dataclass(frozen=True, slots=True, eq=False)
class Parameter:
    """Array that is trained, unless it is frozen (not ``trained``). Operators that share one hold the same object. ``layer``: the
    node that declared it; the parameters of one layer are synchronised together."""

    name: str
    layer: str
    spec: Spec
    init: Init
    trained: bool = True

    @property
    def shape(self) -> tuple[int, ...]:
        return self.spec.shape

    def __repr__(self) -> str:
        return f"{self.name}: {self.spec}"
