"""Functions of torch that change a tensor's type or place, or nothing; and the types in which a step computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from taskflow import operators as ops
from taskflow.floats import float_type
from taskflow.graph import OperatorGraph
from taskflow.models.pytorch.calls import TO_FLOAT
from taskflow.models.pytorch.recipes import CASTS, derived
from taskflow.models.pytorch.registry import Lazy, Stacked, graph_of, name_of_type, origin_tensor, stands_for, tensor_of
from taskflow.models.pytorch.scans import TARGETS
from taskflow.models.pytorch.site import Held
from taskflow.models.pytorch.steps import Fixed, TorchStep, leaves
from taskflow.operators.tensor import Tensor


@stands_for("contiguous", "clone", "to", *TO_FLOAT, "int", "long", "type_as", "cpu", "cuda", "detach", "type", later=True)
def unchanged(name: str, input: Any, *args: Any, **options: Any) -> Any:
    """Return the same numbers, integers as floats where that is asked. Comparing with PyTorch finds what is not the same."""
    wanted = [value for value in (*args, *options.values()) if isinstance(value, torch.dtype) and value.is_floating_point]
    wanted += [dtype for asked, dtype in TO_FLOAT.items() if _asks(name, asked)]
    if wanted and isinstance(input, Tensor) and input.dtype.kind in "iu":
        return ops.to_float(input, name_of_type(wanted[0]), name=name)
    whole = torch.int64 in (*args, *options.values()) or _asks(name, "long")
    if whole and isinstance(input, Tensor) and input.spec.differentiable:
        return ops.to_integer(input, name=name)
    return input if isinstance(input, Lazy) else tensor_of(input, graph_of(input), name)


def _asks(name: str, what: str) -> bool:
    """True if an operator's name is that of a function."""
    return name.rpartition(".")[2].rstrip("0123456789_") == what


# Float types of a step: what PyTorch widens before it computes, and narrows afterwards, as operators `cast`.
# A network in bfloat16 computes parts of itself in float32 (norms, softmax, tables of positions): the module's code says so by
# ``x.float()``, ``dtype=torch.float32``, or a float32 operand.
def type_of(value: Any) -> torch.dtype | None:
    """Return the float type of a value with dimensions; None for others: those do not decide the type of a result."""
    value = origin_tensor(value.parts[0] if isinstance(value, Stacked) else value)
    if isinstance(value, Tensor):
        return getattr(torch, str(value.dtype)) if value.spec.differentiable else None
    held = value.tensor if isinstance(value, (Held, Fixed)) else None
    return held.dtype if held is not None and held.is_floating_point() and held.ndim else None


def computed_in(step: TorchStep, given: Any) -> torch.dtype | None:
    """Return the type in which PyTorch computes a function: the widest of its arguments' and of its result's; None where no
    float comes out, of scans, which take what they are given, and of conversions, which compute nothing."""
    result = [value.dtype for value in step.values if value.is_floating_point()]
    if step.target in TARGETS or (step.kind == "function" and step.name in CASTS):
        return None
    if not result or isinstance(step.kwargs.get("dtype"), torch.dtype):  # converted before it is computed with
        return result[0] if result else None
    types = [result[0], *(found for value in leaves(given) if (found := type_of(value)) is not None)]
    return max(types, key=lambda dtype: (dtype.itemsize, dtype is result[0]))


def widened(dtype: torch.dtype | None, graph: OperatorGraph, name: str) -> Callable[[Any], Any]:
    """Return a function that gives arguments of a function the type in which it computes. Fixed integers and truth values are left
    as they are: indices and masks."""

    def widen(value: Any) -> Any:
        own = type_of(value)
        if dtype is None or own is None or own is dtype:
            return value
        if isinstance(value, Fixed):
            recipe = None if value.recipe is None else derived(torch.Tensor.to, value.recipe, dtype)
            return Fixed(value.tensor.to(dtype), 0, value.name, recipe)
        return ops.cast(tensor_of(value, graph, name), name_of_type(dtype), name=f"{name}.{name_of_type(dtype)}")

    return widen


def narrowed(ours: Any, theirs: Sequence[torch.Tensor], name: str) -> Any:
    """Return a result, one tensor or several, with each float of PyTorch's type."""
    if isinstance(ours, (tuple, list)):
        return type(ours)(narrowed(one, theirs[i : i + 1], name) for i, one in enumerate(ours))
    if not isinstance(ours, Tensor) or not theirs or not ours.spec.differentiable or not theirs[0].is_floating_point():
        return ours
    return ops.cast(ours, float_type(name_of_type(theirs[0].dtype)), name=f"{name}.{name_of_type(theirs[0].dtype)}")
