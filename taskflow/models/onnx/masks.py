"""Handlers of ONNX operators that make, combine and use truth values, and of Cast. Truth values are zeros and ones here."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from taskflow import operators as ops
from taskflow.models.onnx.context import Context, Truth, Unknown, name_of, says
from taskflow.operators.tensor import Tensor

RELATIONS = {"Equal": "eq", "Less": "lt", "LessOrEqual": "le", "Greater": "gt", "GreaterOrEqual": "ge"}


@says("Cast")
def cast(c: Context, node: Any) -> Tensor | Truth:
    """Convert integers and truth values to floats, integers to truth values and to other integers; floats stay what they are."""
    wanted = np.dtype(c.onnx.helper.tensor_dtype_to_np_dtype(c.attributes(node, to=1, saturate=1)["to"]))
    if c.is_truth(node, 0):
        mask = c.mask(node, 0)
        if wanted.kind == "b" or wanted == mask.dtype:
            return Truth(mask) if wanted.kind == "b" else mask
        raise Unknown(f"from truth values to {wanted}")
    x = c.tensor(node, 0)
    if x.dtype == wanted or (x.dtype.kind in "iu" and wanted.kind in "iu"):
        return x
    if x.dtype.kind in "iu" and wanted.kind == "b":
        return Truth(ops.compare(x, "ne", 0, name=name_of(node)))
    if x.dtype.kind in "iu" and wanted == np.dtype(c.graph.dtype):
        return ops.to_float(x, name=name_of(node))
    raise Unknown(f"from {x.dtype} to {wanted}; one float type in the whole network, please")


@says(*RELATIONS)
def compared(c: Context, node: Any) -> Truth:
    """Compare integers with integers, or with a number."""
    c.attributes(node)
    relation, name = RELATIONS[node.op_type], name_of(node)
    first, second = (c.arrays.get(text) for text in node.input)
    if first is not None and second is None:  # the other way round
        turned = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "eq": "eq"}[relation]
        return Truth(_compared(c, node, 1, turned, 0, name))
    return Truth(_compared(c, node, 0, relation, 1, name))


def _compared(c: Context, node: Any, own: int, relation: str, other: int, name: str) -> Tensor:
    x = c.tensor(node, own)
    number = c.arrays.get(node.input[other])
    if x.dtype.kind not in "iu" or (number is not None and number.dtype.kind not in "iu"):
        raise Unknown("only integers are compared: of floats the graph would hide which side a number is on")
    if number is not None and number.size == 1 and number.ndim <= x.ndim:
        return ops.compare(x, relation, int(c.constant(node, other).reshape(-1)[0]), name=name)
    return ops.compare(x, relation, c.tensor(node, other), name=name)


@says("Not")
def opposite(c: Context, node: Any) -> Truth:
    """Logical not."""
    c.attributes(node)
    return Truth(_not(c.mask(node, 0), name_of(node)))


@says("And")
def both(c: Context, node: Any) -> Truth:
    """Logical and."""
    c.attributes(node)
    return Truth(ops.mul(c.mask(node, 0), c.mask(node, 1), name=name_of(node)))


@says("Or")
def either(c: Context, node: Any) -> Truth:
    """Logical or: not both are false."""
    c.attributes(node)
    name = name_of(node)
    first, second = _not(c.mask(node, 0), f"{name}.first"), _not(c.mask(node, 1), f"{name}.second")
    return Truth(_not(ops.mul(first, second, name=f"{name}.neither"), name))


@says("Where")
def where(c: Context, node: Any) -> Tensor:
    """Take the first tensor or number where a mask is true, the second elsewhere."""
    c.attributes(node)
    name, mask = name_of(node), c.mask(node, 0)
    parts = []
    for number, chosen in ((1, mask), (2, _not(mask, f"{name}.other"))):
        value, at = c.number(node, number), f"{name}.{'first' if number == 1 else 'second'}"
        if value is None:
            x = c.tensor(node, number)
            if x.dtype.kind != "f":
                raise Unknown("chooses integers; only floats")
            parts.append(ops.mul(x, chosen, name=at))
        elif not math.isfinite(value):
            raise Unknown("only finite numbers: export the model with torch.finfo(x.dtype).min for minus infinity")
        else:
            parts.append(ops.scale(chosen, value, name=at))
    return ops.add(*parts, name=name)


def _not(mask: Tensor, name: str) -> Tensor:
    return ops.shift(ops.scale(mask, -1.0, name=f"{name}.minus"), 1.0, name=name)
