"""Masks that forward is given or computes, joined with each other and in sums and products with numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from taskflow import operators as ops
from taskflow.graph import OperatorGraph
from taskflow.models.pytorch.arithmetic import add, div, mul
from taskflow.models.pytorch.converting import type_of
from taskflow.models.pytorch.masks import OF_MASKS, Mask, as_floats, both, counted, says
from taskflow.models.pytorch.registry import FUNCTIONS, name_of_type
from taskflow.models.pytorch.steps import Fixed
from taskflow.operators.tensor import Tensor


def given(graph: OperatorGraph, example: torch.Tensor, name: str) -> Tensor | Mask:
    """Add an input like an example; one of truth values is a mask."""
    x = ops.input(graph, tuple(example.shape), name_of_type(example.dtype), name=name)
    return Mask(ops.compare(x, "ne", 0, name=f"{name}.true")) if example.dtype is torch.bool else x


@says("cat", "concat", "concatenate")
def joined(graph: OperatorGraph, name: str, tensors: Any, dim: int = 0) -> Mask:
    """Join masks and fixed truth values along a dimension."""
    return Mask(ops.concat([as_floats(graph, f"{name}.part{i}", part) for i, part in enumerate(tensors)], dim, name=name))  # type: ignore[misc]


@says("stack")
def stacked(graph: OperatorGraph, name: str, tensors: Any, dim: int = 0) -> Mask:
    """Join masks and fixed truth values along a new dimension."""
    parts: list[Any] = [as_floats(graph, f"{name}.part{i}", part) for i, part in enumerate(tensors)]
    shape = list(parts[0].shape)
    at = dim % (len(shape) + 1)
    wide = [ops.reshape(part, (*shape[:at], 1, *shape[at:]), name=f"{name}.wide{i}") for i, part in enumerate(parts)]
    return Mask(ops.concat(wide, at, name=name))


@says("logical_xor", "bitwise_xor", "__xor__", "__rxor__", "__ixor__")
def either_alone(graph: OperatorGraph, name: str, input: Any, other: Any) -> Mask:
    """Logical exclusive or."""
    a, b = as_floats(graph, f"{name}.first", input), as_floats(graph, f"{name}.second", other)
    x, y = (b, a) if isinstance(a, float) else (a, b)
    return Mask(ops.compare(x, "ne", y, name=name))  # type: ignore[arg-type]


# ---- numbers ---------------------------------------------------------------------------------------------------------------


def _numeric(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a function of two numbers take masks as PyTorch does: as floats beside floats and in quotients, else as integers."""

    def built(graph: OperatorGraph, name: str, input: Any, other: Any, **options: Any) -> Any:
        if function is mul and all(isinstance(value, (Mask, bool)) or _is_truth(value) for value in (input, other)):
            return both(graph, name, input, other)
        dtypes = [found for value in (input, other) if (found := type_of(value)) is not None]
        floats = function is div or any(isinstance(value, float) or _is_float(value) for value in (input, other))
        kind = dtypes[0] if dtypes else torch.get_default_dtype() if floats else None
        given = [_as_number(graph, f"{name}.mask", value, kind) for value in (input, other)]
        return function(name, *given, **options)

    return built


def _as_number(graph: OperatorGraph, name: str, value: Any, kind: torch.dtype | None) -> Any:
    """A mask as floats of a type, or integers; other values are unchanged."""
    if not isinstance(value, Mask):
        return value
    return counted(graph, name, value) if kind is None else ops.cast(value.tensor, name_of_type(kind), name=name)


def _is_truth(value: Any) -> bool:
    return isinstance(value, Fixed) and value.tensor.dtype is torch.bool


def _is_float(value: Any) -> bool:
    return isinstance(value, Fixed) and value.tensor.is_floating_point()


OF_MASKS.update({target: _numeric(handler) for target, handler in FUNCTIONS.items() if handler in (add, mul, div)})
