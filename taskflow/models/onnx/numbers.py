"""Handlers of ONNX operators that round, divide with rests, choose places, and take entries at places."""

from __future__ import annotations

from typing import Any

import numpy as np

from taskflow import operators as ops
from taskflow.models.onnx.context import HANDLERS, Context, Unknown, name_of, says
from taskflow.operators.tensor import Tensor

STEPS = {"Floor": "floor", "Ceil": "ceil", "Round": "round", "Sign": "sign"}


@says(*STEPS)
def stepped(c: Context, node: Any) -> Tensor:
    """Whole numbers, or signs."""
    c.attributes(node)
    return ops.step(c.tensor(node, 0), STEPS[node.op_type], name=name_of(node))


@says("Mod")
def rest(c: Context, node: Any) -> Tensor:
    """What is left of a division by a constant number: of integers with its sign, with ``fmod`` with theirs."""
    fmod, x, number, name = c.attributes(node, fmod=0)["fmod"], c.tensor(node, 0), c.number(node, 1), name_of(node)
    if number is None or not number:
        raise Unknown("only by a constant number")
    if x.dtype.kind in "iu":
        return ops.divide_integers(x, int(number), rest=True, toward_zero=bool(fmod), name=name)
    share = ops.scale(x, 1 / number, name=f"{name}.share")
    whole = ops.step(share, "trunc" if fmod else "floor", name=f"{name}.whole")
    return ops.sub(x, ops.scale(whole, number, name=f"{name}.taken"), name=name)


@says("ArgMax", "ArgMin")
def place(c: Context, node: Any) -> Tensor:
    """The position of the largest, or the least, number along a dimension."""
    attrs, x, name = c.attributes(node, axis=0, keepdims=1, select_last_index=0), c.tensor(node, 0), name_of(node)
    if attrs["select_last_index"] or x.dtype.kind in "iu":
        raise Unknown("only the first of equal floats")
    axis = attrs["axis"] % x.ndim
    x = ops.scale(x, -1.0, name=f"{name}.minus") if node.op_type == "ArgMin" else x
    last = x if axis == x.ndim - 1 else ops.transpose(x, axis, -1, name=f"{name}.last")
    found = ops.argmax(last, name=f"{name}.place")
    kept = ops.reshape(found, (*found.shape, 1), name=f"{name}.kept")
    back = kept if last is x else ops.transpose(kept, axis, -1, name=f"{name}.back")
    return ops.reshape(back, (*x.shape[:axis], *((1,) if attrs["keepdims"] else ()), *x.shape[axis + 1 :]), name=name)


@says("Trilu")
def triangle(c: Context, node: Any) -> Tensor:
    """What is on one side of a diagonal, zeros on the other."""
    upper, at, x = c.attributes(node, upper=1)["upper"], c.number(node, 1) or 0, c.tensor(node, 0)
    side = (np.triu if upper else np.tril)(np.ones(x.shape[-2:], c.graph.dtype), int(at))
    there = ops.constant(c.graph, side, name=f"{name_of(node)}.side")
    zero = ops.constant(c.graph, np.zeros(1, x.dtype), name=f"{name_of(node)}.zero")
    return ops.where(there, "ne", 0.0, x, zero, name=name_of(node))


def _of_parts(kind: str, wave: bool) -> None:
    """Tan and Sinh, Cosh by two functions that there are."""

    def make(c: Context, node: Any) -> Tensor:
        c.attributes(node)
        x, name = c.tensor(node, 0), name_of(node)
        if wave:
            inverse = ops.pow(ops.cos(x, name=f"{name}.cos"), -1.0, name=f"{name}.inverse")
            return ops.mul(ops.sin(x, name=f"{name}.sin"), inverse, name=name)
        up, down = (ops.exp(ops.scale(x, s, name=f"{name}.{s}"), name=f"{name}.exp{s}") for s in (1.0, -1.0))
        return ops.scale((ops.sub if kind == "Sinh" else ops.add)(up, down, name=f"{name}.both"), 0.5, name=name)

    HANDLERS[kind] = make


for _kind in ("Tan", "Sinh", "Cosh"):
    _of_parts(_kind, _kind == "Tan")
