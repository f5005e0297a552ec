"""Handlers that make tensors larger or smaller: Resize and Pad, pixels from channels, repetitions, enlarging filters; or that give
them another shape."""

from __future__ import annotations

from string import ascii_lowercase
from typing import Any

import numpy as np

from taskflow import operators as ops
from taskflow.models.onnx.context import Context, Unknown, name_of, says
from taskflow.models.onnx.needed import evaluator_of, first_line
from taskflow.operators.tensor import Tensor

MOST_CHOSEN = 4_000_000  # zeros and ones of an index by several fixed numbers


def _along(c: Context, x: Tensor, dim: int, matrix: Any, name: str) -> Tensor:
    """Each result along a dimension as a weighted sum of what is there: ``matrix`` (elements, results)."""
    letters = ascii_lowercase[: x.ndim]
    result = ops.constant(c.graph, np.ascontiguousarray(matrix.T).astype(x.dtype), name=f"{name}.weights")
    return ops.einsum(f"{letters},z{letters[dim]}->{letters.replace(letters[dim], 'z')}", x, result, name=name)


def chosen(c: Context, x: Tensor, dim: int, at: Any, name: str) -> Tensor:
    """Elements of a dimension that fixed integers name, as a product with zeros and ones."""
    if at.size * x.shape[dim] > MOST_CHOSEN:
        raise Unknown(f"by {at.size} numbers below {x.shape[dim]}")
    y = _along(c, x, dim, np.arange(x.shape[dim])[:, None] == at.reshape(-1), name)
    shape = (*x.shape[:dim], *at.shape, *x.shape[dim + 1 :])
    return y if y.shape == shape else ops.reshape(y, shape, name=f"{name}.shaped")


def _of_units(c: Context, node: Any, size: int, *rest: Any) -> Any:
    """What a node makes of each unit vector of a dimension: (size, results), by onnx's own evaluator."""
    helper = c.onnx.helper
    arrays = {f"i{k}": array for k, array in enumerate((np.eye(size, dtype=np.float32), *rest)) if array is not None}
    inputs = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in arrays.items()]
    result = helper.make_node(node.op_type, [f"i{k}" if a is not None else "" for k, a in enumerate((0, *rest))], ["y"])
    result.attribute.extend(a for a in node.attribute if a.name != "axes")
    graph = helper.make_graph([result], "units", inputs, [helper.make_empty_tensor_value_info("y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", c.opset)])
    try:
        return evaluator_of(model).run(None, arrays)[0]
    except Exception as error:  # whatever its arithmetic raises
        raise Unknown(first_line(error)) from error


@says("Resize", "Upsample")
def resize(c: Context, node: Any) -> Tensor:
    """Resample, along one dimension after the other, as a product with what the node makes of unit vectors."""
    x, name, old = c.tensor(node, 0), name_of(node), node.op_type == "Upsample" or c.opset < 11
    attrs = c.attributes(
        node, mode="nearest", coordinate_transformation_mode="half_pixel", nearest_mode="round_prefer_floor", cubic_coeff_a=-0.75,
        antialias=0, axes=None, exclude_outside=0, extrapolation_value=0.0, keep_aspect_ratio_policy="stretch",
    )
    if attrs["coordinate_transformation_mode"] == "tf_crop_and_resize" or attrs["keep_aspect_ratio_policy"] != "stretch":
        raise Unknown("tf_crop_and_resize and keep_aspect_ratio_policy are not understood")
    c.constant(node, 1)  # of no meaning then, or the scales of old
    scales = c.constant(node, 1 if old else 2)
    sizes = None if old else c.constant(node, 3)
    axes = list(range(x.ndim)) if attrs["axes"] is None else [int(a) % x.ndim for a in attrs["axes"]]
    for i, dim in enumerate(axes):
        scale = None if scales is None or not scales.size else np.array([1, scales[i]], np.float32)
        size = None if sizes is None else np.array([x.shape[dim], sizes[i]], np.int64)
        if (scale is not None and scale[1] == 1) or (size is not None and size[1] == x.shape[dim]):
            continue
        given = (scale,) if old else (None, scale, size)
        x = _along(c, x, dim, _of_units(c, node, x.shape[dim], *given), f"{name}.along{dim}")
    return x


@says("Pad")
def pad(c: Context, node: Any) -> Tensor:
    """Pad with a number, or with what is there (reflect, edge, wrap)."""
    x, name = c.tensor(node, 0), name_of(node)
    attrs = c.attributes(node, mode="constant", pads=None, value=0.0)
    pads, value = c.constant(node, 1) if c.has(node, 1) else attrs["pads"], c.number(node, 2)
    axes = [int(a) % x.ndim for a in c.constant(node, 3)] if c.has(node, 3) else list(range(x.ndim))
    widths = [int(w) for w in pads]
    edges = {dim: (widths[i], widths[i + len(axes)]) for i, dim in enumerate(axes)}
    if min(widths) < 0:
        raise Unknown("negative widths: use Slice")
    if attrs["mode"] == "constant":
        flat = [w for dim in reversed(range(x.ndim)) for w in edges.get(dim, (0, 0))]
        return ops.pad(x, flat, attrs["value"] if value is None else value, name=name)
    for dim, edge in edges.items():
        if any(edge):
            both = np.array([0, edge[0], 0, edge[1]], np.int64)
            x = _along(c, x, dim, _of_units(c, node, x.shape[dim], both), f"{name}.along{dim}")
    return x


@says("GridSample")
def grid_sample(c: Context, node: Any) -> Tensor:
    """Images at computed places."""
    attrs = c.attributes(node, mode="bilinear", padding_mode="zeros", align_corners=0)
    mode = {"linear": "bilinear", "cubic": "bicubic"}.get(attrs["mode"], attrs["mode"])  # as opset 20 has them
    if mode == "bicubic" and attrs["padding_mode"] != "zeros":
        raise Unknown(f"mode={attrs['mode']} with padding_mode={attrs['padding_mode']}, which PyTorch has otherwise; only zeros")
    x, grid = c.tensor(node, 0), c.tensor(node, 1)
    return ops.grid_sample(x, grid, mode, attrs["padding_mode"], bool(attrs["align_corners"]), name=name_of(node))


@says("DepthToSpace", "SpaceToDepth")
def pixels(c: Context, node: Any) -> Tensor:
    """Channels become pixels of blocks, or the other way round."""
    attrs, x, name = c.attributes(node, blocksize=None, mode="DCR"), c.tensor(node, 0), name_of(node)
    if attrs["mode"] not in ("DCR", "CRD"):
        raise Unknown(f"mode={attrs['mode']!r}; only DCR and CRD")
    (n, channels, rows, columns), b = x.shape, attrs["blocksize"]
    if node.op_type == "DepthToSpace":
        first, shape = (attrs["mode"] == "DCR"), (n, channels // b**2, rows * b, columns * b)
        x = ops.reshape(x, (n, b, b, channels // b**2, rows, columns) if first else (n, channels // b**2, b, b, rows, columns))
        order = (0, 3, 4, 1, 5, 2) if first else (0, 1, 4, 2, 5, 3)
    else:
        order, shape = (0, 3, 5, 1, 2, 4), (n, channels * b**2, rows // b, columns // b)
        x = ops.reshape(x, (n, channels, rows // b, b, columns // b, b))
    return ops.reshape(permuted(x, order, name), shape, name=name)


def permuted(x: Tensor, order: Any, name: str) -> Tensor:
    """Dimensions in another order."""
    now = list(range(x.ndim))
    for i, dim in enumerate(order):
        if (j := now.index(dim)) != i:
            x = ops.transpose(x, i, j, name=name)
            now[i], now[j] = now[j], now[i]
    return x


@says("Tile")
def tile(c: Context, node: Any) -> Tensor:
    """Repeat the whole tensor along every dimension."""
    c.attributes(node)
    x, name = c.tensor(node, 0), name_of(node)
    for dim, times in enumerate(int(t) for t in c.constant(node, 1)):
        if times < 1 or times > 64:
            raise Unknown(f"repeats a tensor {times} times; from 1 to 64")
        x = ops.concat([x] * times, dim, name=name) if times > 1 else x
    return x


@says("ConvTranspose")
def conv_transpose(c: Context, node: Any) -> Tensor:
    """Convolution of images turned round."""
    x, weight = c.tensor(node, 0), c.weight(node, 1)
    if weight.array.ndim != 4 or x.ndim != 4:
        raise Unknown(f"only of images (N, C, H, W), got a weight {list(weight.array.shape)}")
    attrs = c.attributes(
        node, auto_pad="NOTSET", dilations=[1, 1], group=1, kernel_shape=list(weight.array.shape[2:]), output_padding=[0, 0],
        output_shape=None, pads=[0, 0, 0, 0], strides=[1, 1],
    )
    (top, left, bottom, right), more = attrs["pads"], attrs["output_padding"]
    if attrs["auto_pad"] not in ("NOTSET", "VALID") or attrs["output_shape"] is not None:
        raise Unknown("auto_pad and output_shape are not understood; give pads")
    more = [more[0] + top - bottom, more[1] + left - right]  # less is cut off behind than before
    if min(more) < 0:
        raise Unknown("pads must not be larger behind than before")
    own = (weight, c.weight(node, 2)) if c.has(node, 2) else (weight,)
    y = ops.conv_transpose2d(
        x, weight.array.shape[1] * attrs["group"], tuple(attrs["kernel_shape"]), tuple(attrs["strides"]), (top, left), tuple(more),
        attrs["group"], len(own) > 1, tuple(attrs["dilations"]), name=name_of(node), parameters=c.owners(*own),
    )
    return c.own(y, *own)


@says("Reshape")
def reshape(c: Context, node: Any) -> Tensor:
    """Reshape; a size of 0 keeps the input's, where the file does not say that it is none at all."""
    attrs, x = c.attributes(node, allowzero=0), c.tensor(node, 0)
    shape = [int(s) for s in c.constant(node, 1)]
    if attrs["allowzero"] and 0 in shape:
        raise Unknown("allowzero=1 with a size of 0: the result has no elements")
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
