"""Handlers of ONNX operators that move, cut and repeat elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from taskflow import operators as ops
from taskflow.models.onnx.context import Context, Unknown, name_of, says
from taskflow.models.onnx.resizing import chosen, permuted
from taskflow.operators.tensor import Tensor


@says("Reshape")
def reshape(c: Context, node: Any) -> Tensor:
    """Reshape; a size of 0 keeps the input's."""
    attrs, x = c.attributes(node, allowzero=0), c.tensor(node, 0)
    shape = [int(s) for s in c.constant(node, 1)]
    if attrs["allowzero"]:
        raise Unknown("allowzero")
    return ops.reshape(x, [x.shape[i] if s == 0 else s for i, s in enumerate(shape)], name=name_of(node))


@says("Squeeze", "Unsqueeze")
def squeezed(c: Context, node: Any) -> Tensor:
    """Remove or add dimensions of size 1."""
    attrs, x = c.attributes(node, axes=None), c.tensor(node, 0)
    given = c.constant(node, 1) if c.has(node, 1) else attrs["axes"]
    axes = [i for i, n in enumerate(x.shape) if n == 1] if given is None else [int(a) for a in given]
    if node.op_type == "Squeeze":
        gone = {a % x.ndim for a in axes}
        return ops.reshape(x, [n for i, n in enumerate(x.shape) if i not in gone], name=name_of(node))
    shape = list(x.shape)
    for axis in sorted(a % (x.ndim + len(axes)) for a in axes):
        shape.insert(axis, 1)
    return ops.reshape(x, shape, name=name_of(node))


@says("Transpose")
def transpose(c: Context, node: Any) -> Tensor:
    """Permute dimensions."""
    x = c.tensor(node, 0)
    wanted = c.attributes(node, perm=list(range(x.ndim))[::-1])["perm"]
    return permuted(x, wanted, name_of(node))


@says("Concat")
def concat(c: Context, node: Any) -> Tensor:
    """Concatenate along a dimension."""
    return ops.concat([c.tensor(node, i) for i in range(len(node.input))], c.attributes(node, axis=0)["axis"], name=name_of(node))


@says("Split")
def split(c: Context, node: Any) -> tuple[Tensor, ...]:
    """Split into parts of given sizes, or of one size."""
    attrs, x = c.attributes(node, axis=0, num_outputs=len(node.output), split=None), c.tensor(node, 0)
    sizes = c.constant(node, 1) if c.has(node, 1) else attrs["split"]
    axis = attrs["axis"] % x.ndim
    parts = -(-x.shape[axis] // attrs["num_outputs"]) if sizes is None else [int(s) for s in sizes]
    return tuple(ops.split(x, parts, axis, name=name_of(node)))


@says("Expand")
def expand(c: Context, node: Any) -> Tensor:
    """Repeat dimensions of size 1."""
    x = c.tensor(node, 0)
    return ops.expand(x, np.broadcast_shapes(x.shape, tuple(int(s) for s in c.constant(node, 1))), name=name_of(node))


@says("Slice")
def sliced(c: Context, node: Any) -> Tensor:
    """Slice ranges of dimensions."""
    attrs, x = c.attributes(node, starts=None, ends=None, axes=None), c.tensor(node, 0)  # attributes before opset 10
    starts, ends = (attrs[key] if not c.has(node, i) else c.constant(node, i) for i, key in ((1, "starts"), (2, "ends")))
    axes = c.constant(node, 3) if c.has(node, 3) else attrs["axes"] or range(len(starts))
    steps = c.constant(node, 4) if c.has(node, 4) else [1] * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps):
        low, high, by = slice(int(start), int(end), int(step)).indices(x.shape[int(axis)])
        if not range(low, high, by):
            raise Unknown("only ranges that leave elements")
        if by != 1:
            x = chosen(c, x, int(axis) % x.ndim, np.arange(low, high, by), name_of(node))
            continue
        x = ops.narrow(x, int(axis), low, high - low, name=name_of(node)) if high - low < x.shape[int(axis)] else x
    return x
