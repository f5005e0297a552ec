"""Writing into parts of tensors, ``x[..., 2:] = y``: each makes a new tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from taskflow import operators as ops
from taskflow.models.pytorch.complex_numbers import OF_COMPLEX
from taskflow.models.pytorch.indexing import item
from taskflow.models.pytorch.masks import assigned_where, chosen
from taskflow.models.pytorch.registry import (
    FUNCTIONS,
    RAW,
    Lazy,
    Patches,
    graph_of,
    in_order,
    number_of,
    stands_for,
    tensor_of,
)
from taskflow.models.pytorch.shaping import expand
from taskflow.models.pytorch.site import require
from taskflow.models.pytorch.steps import Fixed, Unset
from taskflow.models.pytorch.writes import as_it_is
from taskflow.operators.tensor import Tensor


@stands_for("fill_diagonal_")
def fill_diagonal(name: str, input: Tensor, fill_value: float, wrap: bool = False) -> Any:
    """A number on the diagonal of a matrix."""
    require(input.ndim == 2 and not wrap, "only of a matrix, with wrap=False")
    return chosen(graph_of(input), name, Fixed(torch.eye(*input.shape, dtype=torch.bool), 0), fill_value, input)  # type: ignore[arg-type]


@stands_for("__setitem__", later=True)
def assigned(name: str, input: Any, index: Any, value: Any) -> Any:
    """The tensor ``input`` with ``value`` in a part of it, which slices with any steps and whole numbers take."""
    if isinstance(index, Fixed) and index.tensor.dtype is torch.bool:
        return assigned_where(graph_of(input, value), name, input, index, value)
    shape = tuple(input.tensor.shape) if isinstance(input, Fixed) else tuple(input.shape)
    spans, kept = _spans(index, shape)
    part = tuple(map(len, spans))
    if isinstance(input, (Unset, Patches)):
        return _patched(name, input, spans, _as_part(name, in_order(value), part, kept))
    require(isinstance(input, (Tensor, Fixed, *Lazy)), "writes into what is not computed in this step")
    x = tensor_of(input, graph_of(*(v for v in (input, value) if not isinstance(v, Fixed))), name)
    number = number_of(value)
    if number is None:
        new = _as_part(name, tensor_of(value, x.graph, name), part, kept)
        new = new if new.dtype == x.dtype else ops.cast(new, x.dtype, name=f"{name}.cast")
    else:
        new = ops.full_like(_taken(f"{name}.old", x, spans), number, name=f"{name}.new")
    return _put(name, x, spans, new)


def _as_it_is(name: str, value: Fixed) -> Fixed:
    """A fixed tensor, until something is written into it."""
    return value


FUNCTIONS[as_it_is] = _as_it_is
OF_COMPLEX[as_it_is] = lambda graph, name, value: value
RAW.add(_as_it_is)


@stands_for("fill_", "zero_")
def filled(name: str, input: Tensor, value: float = 0.0) -> Tensor:
    """A number in place of all elements."""
    return ops.full_like(input, float(value), name=name)


def _spans(index: Any, shape: tuple[int, ...]) -> tuple[list[range], list[int]]:
    """Which elements of each dimension an index takes, and the dimensions that are left: those that no whole number takes."""
    wanted = list(index) if isinstance(index, tuple) else [index]
    if any(part is Ellipsis for part in wanted):
        at = next(i for i, part in enumerate(wanted) if part is Ellipsis)
        wanted[at : at + 1] = [slice(None)] * (len(shape) - len(wanted) + 1)
    wanted += [slice(None)] * (len(shape) - len(wanted))
    plain = all(isinstance(part, slice) or type(part) is int for part in wanted)
    require(plain, "only parts that slices and whole numbers take can be written into")
    spans = [
        range(*part.indices(size)) if isinstance(part, slice) else range(part % size, part % size + 1)
        for part, size in zip(wanted, shape)
    ]
    require(all(len(span) for span in spans), "a slice must have elements")
    return spans, [dim for dim, part in enumerate(wanted) if isinstance(part, slice)]


def _as_part(name: str, value: Any, part: tuple[int, ...], kept: Sequence[int]) -> Tensor:
    """A value as large as the part that it is written into: repeated, and with the dimensions that whole numbers have taken."""
    require(isinstance(value, Tensor), "a number in an array that is made without numbers")
    shape = tuple(part[dim] for dim in kept)
    if value.shape != shape:
        count = len(shape) - value.ndim  # below 0 where it has more dimensions, of one element
        led = (1,) * count + value.shape if count >= 0 else value.shape[-count:]
        value = expand(f"{name}.expanded", value if led == value.shape else ops.reshape(value, led, name=f"{name}.led"), *shape)
    return value if value.shape == part else ops.reshape(value, part, name=f"{name}.row")


def _patched(name: str, input: Unset | Patches, spans: Sequence[range], new: Tensor) -> Any:
    """An array that is made without numbers with one part more."""
    shape = input.shape
    cut = [dim for dim, span in enumerate(spans) if len(span) < shape[dim]]
    require(len(cut) <= 1, "a part of several dimensions is written, of an array that is made without numbers")
    if not cut:
        return new
    (dim,), span = cut, spans[cut[0]]
    known = input.parts if isinstance(input, Patches) and (input.dim, input.step) == (dim, span.step) else {}
    require(isinstance(input, Unset) or bool(known) or not input.parts, "parts along different dimensions are written")
    apart = span.step > 1 or all(
        start >= span.stop or start + other.shape[dim] <= span.start for start, other in known.items() if start != span.start
    )
    require(apart and span.step > 0, "parts that overlap are written")
    return Patches(shape, dim, {**known, span.start: new}, name, span.step)


def _taken(name: str, x: Tensor, spans: Sequence[range]) -> Tensor:
    """The elements of a part."""
    return item(name, x, tuple(slice(span.start, span.stop, span.step) for span in spans))  # type: ignore[no-any-return]


def _put(name: str, x: Tensor, spans: Sequence[range], new: Tensor) -> Tensor:
    """x with ``new`` where the spans are: along the first dimension that they cut, into what others take of that part."""
    cut = [dim for dim, span in enumerate(spans) if len(span) < x.shape[dim]]
    if not cut:
        return new
    dim = cut[0]
    if len(cut) > 1:
        inside = _taken(f"{name}.part{dim}", x, [s if i == dim else range(n) for i, (s, n) in enumerate(zip(spans, x.shape))])
        new = _put(f"{name}.within{dim}", inside, [range(len(s)) if i == dim else s for i, s in enumerate(spans)], new)
    span, size = spans[dim], x.shape[dim]
    require(span.step > 0, "only slices with steps above 0 can be written into")
    end = span.start + len(span) * span.step
    if span.step > 1:
        if end > size:  # the last row of so many is not whole
            x = ops.pad(x, (*[0] * (2 * (x.ndim - 1 - dim)), 0, end - size), name=f"{name}.longer")
        new = _between(name, ops.narrow(x, dim, span.start, end - span.start, name=f"{name}.range"), dim, new)
    before = [ops.narrow(x, dim, 0, span.start, name=f"{name}.before")] if span.start else []
    after = [ops.narrow(x, dim, end, size - end, name=f"{name}.after")] if end < size else []
    whole = ops.concat([*before, new, *after], dim, name=name) if before or after else new
    return ops.narrow(whole, dim, 0, size, name=f"{name}.first") if end > size else whole


def _between(name: str, old: Tensor, dim: int, new: Tensor) -> Tensor:
    """``old`` with every so-manieth element of a dimension new, from the first on."""
    count = new.shape[dim]
    step = old.shape[dim] // count
    rows = ops.reshape(old, (*old.shape[:dim], count, step, *old.shape[dim + 1 :]), name=f"{name}.rows")
    others = ops.narrow(rows, dim + 1, 1, step - 1, name=f"{name}.others")
    each = ops.reshape(new, (*old.shape[:dim], count, 1, *old.shape[dim + 1 :]), name=f"{name}.each")
    return ops.reshape(ops.concat([each, others], dim + 1, name=f"{name}.joined"), old.shape, name=f"{name}.between")
