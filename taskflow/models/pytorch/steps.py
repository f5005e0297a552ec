"""Steps of a recording of a module, and references to the tensors that they return."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from taskflow.models.pytorch.places import CodePlace


@dataclass(frozen=True, slots=True)
class Ref:
    """Reference to tensor number ``index`` of the result of step number ``step``."""

    step: int
    index: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Fixed:
    """Tensor that depends neither on inputs nor on trained parameters: a buffer, or something computed from buffers. ``recipe``:
    how it is computed, if it is; then a large ``tensor`` is a stand-in without numbers."""

    tensor: torch.Tensor
    version: int
    name: str = ""
    recipe: Any = None


@dataclass(frozen=True, slots=True)
class Unset:
    """An array of this shape that is made without numbers, to be written part by part."""

    shape: tuple[int, ...]


@dataclass(slots=True)
class TorchStep:
    """One layer or function. ``kind``: input, parameter, module (``target``: its path), function (``target``: itself) or unused.
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
        """Describe the step for messages."""
        if self.kind == "module":
            return str(self.target)
        return f"{self.name} in {self.where}" if self.where else self.name


def name_of(function: Any) -> str:
    """Return the name of a function of torch; for a property that is read (``x.T``), the property's name."""
    name = getattr(function, "__name__", type(function).__name__)
    return str(getattr(function, "__self__", function).__name__ if name == "__get__" else name).strip("_") or "function"


NESTS = (tuple, list, dict, slice)


def mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """Return a nest of tuples, lists, dicts and slices with ``change`` applied to every leaf."""
    if not isinstance(value, NESTS):  # asked hundreds of thousands of times
        return change(value)
    if isinstance(value, tuple):
        parts = [mapped(change, part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, list):
        return [mapped(change, part) for part in value]
    if isinstance(value, dict):
        return {key: mapped(change, part) for key, part in value.items()}
    return slice(*(mapped(change, part) for part in (value.start, value.stop, value.step)))


def leaves(value: Any) -> Iterator[Any]:
    """Yield the leaves of a nest, in order."""
    found: list[Any] = []
    mapped(found.append, value)
    yield from found


def named_leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of a nest with names that begin with its ``name``, such as ``name_key``, in the order of `leaves`."""
    if not isinstance(value, (dict, list, tuple)):
        yield name, value
        return
    for key, part in value.items() if isinstance(value, dict) else enumerate(value):
        yield from named_leaves(f"{name}_{key}", part)


@dataclass(slots=True)
class TorchRecording:
    """Steps of one run, and the nest that forward returned. ``asked``: whether its code asks for gradients of the data."""

    steps: list[TorchStep]
    output: Any
    asked: bool = False


def beside(result: Any, value: Any) -> dict[Ref, Any]:
    """Return our values at the places where PyTorch's result has tensors."""
    if isinstance(result, Ref):
        return {result: value}
    if isinstance(result, (tuple, list)):
        if not isinstance(value, (tuple, list)) or len(value) != len(result):
            raise ValueError("returns several tensors in PyTorch")
        return {ref: ours for a, b in zip(result, value) for ref, ours in beside(a, b).items()}
    return {}
