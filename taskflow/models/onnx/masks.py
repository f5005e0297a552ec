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
    """Convert integers and truth values to floats, numbers to truth values and to integers."""
    wanted = np.dtype(c.onnx.helper.tensor_dtype_to_np_dtype(c.attributes(node, to=1, saturate=1)["to"]))
    if c.is_truth(node, 0):
        mask = c.mask(node, 0)
        if wanted.kind == "b" or wanted == mask.dtype:
            return Truth(mask) if wanted.kind == "b" else mask
        if wanted.kind in "iu":
            return ops.to_integer(mask, name=name_of(node))
        raise Unknown(f"from truth values to {wanted}")
    x = c.tensor(node, 0)
    if x.dtype == wanted or (x.dtype.kind in "iu" and wanted.kind in "iu"):
        return x
    if wanted.kind == "b":
        return Truth(ops.compare(x, "ne", 0, name=name_of(node)))
    if x.spec.differentiable and wanted.kind in "iu":
        return ops.to_integer(x, name=name_of(node))
    if x.dtype.kind in "iu" and wanted == np.dtype(c.graph.dtype):
        return ops.to_float(x, name=name_of(node))
    raise Unknown(f"from {x.dtype} to {wanted}; one float type in the whole network, please")


@says(*RELATIONS)
def compared(c: Context, node: Any) -> Truth:
    """Compare numbers with numbers of their type, or with one."""
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
    if number is not None and number.size == 1 and number.ndim <= x.ndim:
        alone = c.constant(node, other).reshape(-1)[0]
        return ops.compare(x, relation, int(alone) if x.dtype.kind in "iu" else float(alone), name=name)
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


@says("Xor")
def one_of_both(c: Context, node: Any) -> Truth:
    """Logical exclusive or."""
    c.attributes(node)
    return Truth(ops.compare(c.mask(node, 0), "ne", c.mask(node, 1), name=name_of(node)))


@says("IsNaN")
def no_number(c: Context, node: Any) -> Truth:
    """Where there is no number, which does not equal itself."""
    c.attributes(node)
    x = c.tensor(node, 0)
    return Truth(ops.compare(x, "ne", x, name=name_of(node)))


@says("IsInf")
def infinite(c: Context, node: Any) -> Truth:
    """Where a number is infinite, of either sign or of one."""
    attrs, x, name = c.attributes(node, detect_negative=1, detect_positive=1), c.tensor(node, 0), name_of(node)
    if not (attrs["detect_positive"] or attrs["detect_negative"]):
        raise Unknown("asks for neither sign")
    if not attrs["detect_positive"]:
        x = ops.scale(x, -1.0, name=f"{name}.minus")
    both = attrs["detect_positive"] and attrs["detect_negative"]
    return Truth(ops.compare(ops.abs(x, name=f"{name}.size") if both else x, "eq", math.inf, name=name))


@says("Where")
def where(c: Context, node: Any) -> Tensor:
    """Take the first tensor where a mask is true, else the second. What is not taken does not count, even if it is infinite."""
    c.attributes(node)
    first, second = c.tensor(node, 1), c.tensor(node, 2)
    return ops.where(c.mask(node, 0), "ne", 0.0, first, second, name=name_of(node))


def _not(mask: Tensor, name: str) -> Tensor:
    return ops.shift(ops.scale(mask, -1.0, name=f"{name}.minus"), 1.0, name=name)
