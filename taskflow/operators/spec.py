"""Spec: shape and type of a tensor. Also dimensions, parameters, and the checks that operators share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from taskflow.floats import is_float
from taskflow.regions import Rect


@dataclass(frozen=True, slots=True)
class Spec:
    """Shape and type of a tensor or of a buffer."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def rect(self) -> Rect:
        return Rect.of(self.shape)

    @property
    def nbytes(self) -> int:
        return self.rect.volume * self.dtype.itemsize

    @property
    def differentiable(self) -> bool:
        """True if gradients flow through values of this type."""
        return is_float(self.dtype)

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


class Soap(Enum):
    """Class of a dimension of an operator's iteration space (paper, section 4; REDUCTION: a contracted dimension)."""

    SAMPLE = "sample"
    ATTRIBUTE = "attribute"
    PARAMETER = "parameter"
    REDUCTION = "reduction"


@dataclass(frozen=True, slots=True)
class Dim:
    """One dimension of an iteration space. If it is not divisible, its degree is always 1."""

    name: str
    size: int
    soap: Soap
    divisible: bool = True


@dataclass(frozen=True, slots=True)
class Init:
    """Initial values of a parameter: ``uniform`` in [-scale, scale), ``normal`` with standard deviation scale, or ``constant``
    scale. Values come from a counter-based generator indexed by position, never from how the parameter is cut."""

    kind: str
    scale: float


@dataclass(frozen=True, slots=True)
class WeightSpec:
    """A parameter that an operator needs: its name within the layer (PyTorch's), shape and initial values. The only weight of
    an operator may have no name (""); it then has the operator's name."""

    name: str
    shape: tuple[int, ...]
    init: Init


def positive(name: str, **values: int) -> None:
    """Raise ValueError unless every value is a positive integer."""
    for key, value in values.items():
        if not isinstance(value, (int, np.integer)) or value < 1:
            raise ValueError(f"{name}: {key} must be a positive integer, got {value!r}")


def takes(name: str, inputs: Sequence[Spec], count: int) -> None:
    """Raise ValueError unless an operator was given ``count`` inputs."""
    if len(inputs) != count:
        given = ", ".join(map(str, inputs)) or "none"
        raise ValueError(f"{name}: takes {count} input{'s' * (count != 1)}, got {len(inputs)} ({given})")


def axis(name: str, dim: int, rank: int) -> int:
    """Return ``dim`` counted from 0 (negative ones count from the end, as in PyTorch). Raises ValueError if it does not exist."""
    if not -rank <= dim < rank:
        raise ValueError(f"{name}: dim must be between {-rank} and {rank - 1} for {rank} dimensions, got {dim}")
    return dim % rank


def sample_and_attributes(shape: Sequence[int], fixed: int | None = None) -> tuple[Dim, ...]:
    """Return dimensions that cut no weights: the first is SAMPLE, others ATTRIBUTE; number ``fixed`` is not divisible."""
    return tuple(
        Dim(f"a{i}" if i else "n", size, Soap.ATTRIBUTE if i else Soap.SAMPLE, divisible=i != fixed)
        for i, size in enumerate(shape)
    )
