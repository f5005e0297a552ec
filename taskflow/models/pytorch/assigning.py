"""Writing into parts of tensors, ``x[..., 2:] = y``: each makes a new tensor."""

from __future__ import annotations

from typing import Any

from taskflow import operators as ops
from taskflow.models.pytorch.registry import Patches, in_order, number_of, stands_for, tensor_of
from taskflow.models.pytorch.shaping import expand
from taskflow.models.pytorch.site import require
from taskflow.models.pytorch.steps import Unset
from taskflow.operators.tensor import Tensor


@stands_for("__setitem__", later=True)
def assigned(name: str, input: Any, index: Any, value: Any) -> Any:
    """The tensor ``input`` with ``value`` in a range of one dimension."""
    shape = tuple(input.shape)
    index, value = _as_range(index, shape, value, name)
    dim, low, high = _range(index, shape)
    part = (*shape[:dim], high - low, *shape[dim + 1 :])
    if isinstance(input, (Unset, Patches)):
        require(number_of(value) is None, "a number in an array that is made without numbers")
        new = _of_shape(name, in_order(value), part)
        known = input.parts if isinstance(input, Patches) and input.dim == dim else {}
        require(isinstance(input, Unset) or bool(known) or not input.parts, "parts along different dimensions are written")
        apart = all(start >= high or start + other.shape[dim] <= low for start, other in known.items() if start != low)
        require(apart, "parts that overlap are written")
        result = Patches(shape, dim, {**known, low: new}, name)
        return result.tensor() if part == shape else result
    x = in_order(input)
    require(isinstance(x, Tensor), "writes into what is not computed in this step")
    number = number_of(value)
    inside = ops.narrow(x, dim, low, high - low, name=f"{name}.old") if part != shape else x
    new = ops.shift(ops.scale(inside, 0.0, name=f"{name}.zeros"), number, name=f"{name}.new") if number is not None else (
        _of_shape(name, tensor_of(value, x.graph, name), part)
    )
    before = [ops.narrow(x, dim, 0, low, name=f"{name}.before")] if low else []
    after = [ops.narrow(x, dim, high, shape[dim] - high, name=f"{name}.after")] if high < shape[dim] else []
    return ops.concat([*before, new, *after], dim, name=name) if before or after else new


def _as_range(index: Any, shape: tuple[int, ...], value: Any, name: str) -> tuple[Any, Any]:
    """An index by one whole number first, ``x[3]``, as one by a range."""
    if type(index) is not int:
        return index, value
    at = index % shape[0]
    x = in_order(value)
    return slice(at, at + 1), ops.reshape(x, (1, *x.shape), name=f"{name}.row") if isinstance(x, Tensor) else value


def _range(index: Any, shape: tuple[int, ...]) -> tuple[int, int, int]:
    """The only dimension that an index takes a part of, and which."""
    wanted = list(index) if isinstance(index, tuple) else [index]
    if any(part is Ellipsis for part in wanted):
        at = next(i for i, part in enumerate(wanted) if part is Ellipsis)
        wanted[at : at + 1] = [slice(None)] * (len(shape) - len(wanted) + 1)
    plain = all(isinstance(part, slice) and part.step in (None, 1) for part in wanted)
    require(plain, "only slices without steps can be written into")
    spans = [part.indices(size)[:2] for part, size in zip(wanted, shape)]
    cut = [dim for dim, (low, high) in enumerate(spans) if (low, high) != (0, shape[dim])]
    require(len(cut) <= 1, "a part of several dimensions is written")
    dim = cut[0] if cut else 0
    low, high = spans[dim] if spans else (0, shape[0])
    require(low < high, "a slice must have elements")
    return dim, low, high


def _of_shape(name: str, value: Tensor, shape: tuple[int, ...]) -> Tensor:
    if value.shape == shape:
        return value
    led = ops.reshape(value, (1,) * (len(shape) - value.ndim) + value.shape, name=f"{name}.led")
    return expand(f"{name}.expanded", led, *shape)  # type: ignore[no-any-return]
