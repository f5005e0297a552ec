"""What a recording of a module consists of: steps, and references to the tensors that they return."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from taskflow.models.pytorch.places import CodePlace


@dataclass(frozen=True, slots=True)
class Ref:
    """Tensor number ``index`` of what step number ``step`` returned."""

    step: int
    index: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Fixed:
    """A tensor that does not depend on inputs and trained parameters: a buffer, or what was computed from such."""

    tensor: torch.Tensor
    version: int
    name: str = ""


@dataclass(slots=True)
class TorchStep:
    """One layer or function. ``kind``: input, parameter, module (``target``: its path) or function (``target``: itself).
    ``args`` and ``result`` have `Ref` and `Fixed` in place of tensors; ``values`` are the tensors that it returned."""

    number: int
    kind: str
    target: Any
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    result: Any = None
    values: list[torch.Tensor] = field(default_factory=list)
    where: str = ""  # the module in whose code it stands
    training: bool = True  # of the module that it is
    grad: bool = True  # whether gradients are recorded there
    line: CodePlace | None = None  # of the module's code that calls it

    @property
    def name(self) -> str:
        """The module's path, or the function's name without underscores."""
        return self.target if isinstance(self.target, str) else name_of(self.target)

    def describe(self) -> str:
        """For messages."""
        if self.kind == "module":
            return str(self.target)
        return f"{self.name} in {self.where}" if self.where else self.name


def name_of(function: Any) -> str:
    """The name of a function of torch; of a property that is read (``x.T``), the property's."""
    name = getattr(function, "__name__", type(function).__name__)
    return str(getattr(function, "__self__", function).__name__ if name == "__get__" else name).strip("_") or "function"


def mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """``change`` of every leaf of a nest of tuples, lists, dicts and slices."""
    if isinstance(value, tuple):
        parts = [mapped(change, part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, list):
        return [mapped(change, part) for part in value]
    if isinstance(value, dict):
        return {key: mapped(change, part) for key, part in value.items()}
    if isinstance(value, slice):
        return slice(*(mapped(change, part) for part in (value.start, value.stop, value.step)))
    return change(value)


def leaves(value: Any) -> Iterator[Any]:
    """The leaves of a nest, in order."""
    found: list[Any] = []
    mapped(found.append, value)
    yield from found


@dataclass(slots=True)
class TorchRecording:
    """All steps of one run, and the nest that forward returned."""

    steps: list[TorchStep]
    output: Any
