"""Handlers of ONNX operators that are layers: products with weights, convolutions, norms, poolings, embeddings, LSTM and GRU."""

from __future__ import annotations

from math import prod
from string import ascii_lowercase
from typing import Any

import numpy as np

from taskflow import operators as ops
from taskflow.models.onnx.context import ArrayPart, Context, LayerWeight, Unknown, name_of, says
from taskflow.models.onnx.resizing import chosen
from taskflow.operators.gru import gru_layer
from taskflow.operators.lstm import lstm_layer
from taskflow.operators.recurrent import first_states
from taskflow.operators.tensor import Tensor

# ---- products --------------------------------------------------------------------------------------------------------------


def _product(c: Context, x: Tensor, weight: LayerWeight, name: str) -> Tensor:
    """x (..., k) times a weight that is read as (k, c): a linear layer, whose own weight is (c, k)."""
    turned = LayerWeight(weight.name, weight.array.T, not weight.turned)
    held = c.tied(weight)
    if held is not None and held[1] == weight.turned:  # another layer has it as it is read here
        letters = ascii_lowercase[: x.ndim]
        return ops.einsum(f"{letters},{letters[-1]}z->{letters[:-1]}z", x, c.parameter(weight), name=name)
    return c.build(ops.linear, [turned], x, weight.array.shape[1], False, name=name)


@says("MatMul")
def matmul(c: Context, node: Any) -> Tensor:
    """Multiply x (..., k) by a weight (k, c), a linear layer; or multiply two stacks of equally many matrices."""
    c.attributes(node)
    x, known = c.tensor(node, 0), c.weight_at(node.input[1])
    if known is not None and known.array.ndim == 2 and known.array.dtype.kind == "f" and c.is_parameter(node.input[1]):
        return _product(c, x, c.weight(node, 1), name_of(node))
    other = c.tensor(node, 1)
    if x.ndim == other.ndim and x.shape[:-2] == other.shape[:-2] and x.ndim >= 3:
        return ops.matmul(x, other, name=name_of(node))
    lead = [a == b for a, b in zip(x.shape[-3::-1], other.shape[-3::-1])]
    if min(x.ndim, other.ndim) < 2 or not all(lead):
        raise Unknown(f"of {list(x.shape)} and {list(other.shape)}: leading dimensions must be equal or missing")
    letters = ascii_lowercase[: max(x.ndim, other.ndim) - 2]
    first, second = letters[len(letters) - x.ndim + 2 :], letters[len(letters) - other.ndim + 2 :]
    return ops.einsum(f"{first}xy,{second}yz->{letters}xz", x, other, name=name_of(node))


@says("Gemm")
def gemm(c: Context, node: Any) -> Tensor:
    """Linear layer: x W^T + b, where W and b are initializers."""
    attrs, name = c.attributes(node, alpha=1.0, beta=1.0, transA=0, transB=0), name_of(node)
    if not (attrs["alpha"] == attrs["beta"] == 1.0) or attrs["transA"]:
        raise Unknown("needs alpha, beta and transA by default")
    x, weight = c.tensor(node, 0), c.weight(node, 1)
    bias = c.weight(node, 2) if c.has(node, 2) else None
    if attrs["transB"]:
        own = (weight,) if bias is None else (weight, bias)
        shared = c.tied(weight) is not None and tuple((w.name, w.turned) for w in own) not in c.together
        if not shared and (bias is None or bias.array.shape == weight.array.shape[:1]):
            return c.build(ops.linear, own, x, weight.array.shape[0], bias is not None, name=name)
        weight = LayerWeight(weight.name, weight.array.T, not weight.turned)
    if bias is None:
        return _product(c, x, weight, name)
    y = _product(c, x, weight, f"{name}.product")
    return c.with_parameter(ops.add_weight, y, bias)


# ---- convolutions and windows ------------------------------------------------------------------------------------------------


def _pads(attrs: dict[str, Any], sizes: tuple[int, ...]) -> list[tuple[int, int]]:
    """Padding before and behind each of an image's dimensions."""
    kernel, strides, apart = attrs["kernel_shape"], attrs["strides"], attrs["dilations"]
    if attrs["auto_pad"] == "NOTSET":
        count = len(attrs["pads"]) // 2
        return list(zip(attrs["pads"][:count], attrs["pads"][count:]))
    if attrs["auto_pad"] == "VALID":
        return [(0, 0)] * len(kernel)
    if attrs["auto_pad"] not in ("SAME_UPPER", "SAME_LOWER"):
        raise Unknown(f"auto_pad={attrs['auto_pad']!r} is not understood")
    found = []
    for size, k, stride, d in zip(sizes, kernel, strides, apart):
        whole = max(0, (-(-size // stride) - 1) * stride + (k - 1) * d + 1 - size)
        less, more = whole // 2, whole - whole // 2
        found.append((less, more) if attrs["auto_pad"] == "SAME_UPPER" else (more, less))
    return found


@says("Conv")
def conv(c: Context, node: Any) -> Tensor:
    """Convolution of images (N, C, H, W)."""
    x, weight, name = c.tensor(node, 0), c.weight(node, 1), name_of(node)
    dims = weight.array.ndim - 2
    if dims not in (1, 2) or x.ndim != dims + 2:
        raise Unknown(f"only of images (N, C, H, W) and rows (N, C, L), got a weight {list(weight.array.shape)}")
    attrs = c.attributes(
        node, auto_pad="NOTSET", dilations=[1] * dims, group=1, kernel_shape=list(weight.array.shape[2:]), pads=[0] * 2 * dims,
        strides=[1] * dims,
    )
    pads = _pads(attrs, x.shape[2:])
    if dims == 1:  # as images of one row
        x = ops.reshape(x, (*x.shape[:2], 1, x.shape[2]), name=f"{name}.rows")
        weight, pads = weight.part(ArrayPart((*weight.array.shape[:2], 1, weight.array.shape[2]))), [(0, 0), *pads]
        attrs |= {key: [1, *attrs[key]] for key in ("dilations", "kernel_shape", "strides")}
    own = (weight, c.weight(node, 2)) if c.has(node, 2) else (weight,)
    y = c.build(
        ops.conv2d, own, x, weight.array.shape[0], tuple(attrs["kernel_shape"]), tuple(attrs["strides"]), tuple(pads),
        tuple(attrs["dilations"]), attrs["group"], len(own) > 1, name=name,
    )
    return y if dims == 2 else ops.reshape(y, (*y.shape[:2], y.shape[3]), name=f"{name}.line")


@says("MaxPool", "AveragePool")
def pooled(c: Context, node: Any) -> Tensor:
    """Maximum or mean of windows of images."""
    x, name, most = c.tensor(node, 0), name_of(node), node.op_type == "MaxPool"
    attrs = c.attributes(
        node, auto_pad="NOTSET", ceil_mode=0, dilations=[1, 1], kernel_shape=None, pads=[0, 0, 0, 0], strides=[1, 1],
        **({"storage_order": 0} if most else {"count_include_pad": 0}),
    )
    c.left_out |= {output: "where a MaxPool found its largest" for output in node.output[1:] if output}
    if x.ndim != 4 or len(attrs["kernel_shape"]) != 2:
        raise Unknown("only of images (N, C, H, W)")
    if attrs["auto_pad"] != "NOTSET" and (attrs["ceil_mode"] or attrs["auto_pad"] == "SAME_LOWER"):
        raise Unknown(f"auto_pad={attrs['auto_pad']!r}: onnx's own tools read SAME_LOWER, or ceil_mode beside it, in two ways")
    (top, bottom), (left, right) = _pads(attrs, x.shape[2:])
    kernel, strides, apart = (tuple(attrs[name]) for name in ("kernel_shape", "strides", "dilations"))
    ceil = attrs["ceil_mode"]
    if (top, left) != (bottom, right) and (ceil or not (most or attrs["count_include_pad"])):
        raise Unknown("only with as much padding before as behind")
    if (top, left) != (bottom, right):
        x = ops.pad(x, (left, right, top, bottom), float(np.finfo(x.dtype).min) if most else 0.0, name=f"{name}.padded")
        top = left = 0
    if most:
        return ops.max_pool2d(x, kernel, strides, (top, left), apart, ceil_mode=bool(ceil), name=name)
    if apart != (1, 1):
        raise Unknown(f"dilations={list(apart)} is not understood")
    return ops.avg_pool2d(
        x, kernel, strides, (top, left), ceil_mode=bool(ceil), count_include_pad=bool(attrs["count_include_pad"]), name=name
    )


@says("GlobalAveragePool", "GlobalMaxPool")
def global_pool(c: Context, node: Any) -> Tensor:
    """Mean or maximum of each channel."""
    c.attributes(node)
    x = c.tensor(node, 0)
    return (ops.amax if "Max" in node.op_type else ops.mean)(x, tuple(range(2, x.ndim)), True, name=name_of(node))


# ---- norms -------------------------------------------------------------------------------------------------------------------


@says("BatchNormalization")
def batch_norm(c: Context, node: Any) -> Tensor:
    """Normalisation over the batch. A graph trains with the batch's statistics, and predicts with the running ones, which begin
    with the file's mean and variance."""
    attrs = c.attributes(node, epsilon=1e-5, momentum=0.9, training_mode=0, spatial=1)
    if not attrs["spatial"]:
        raise Unknown("spatial=0 is not understood")
    scale, bias, mean, variance = (c.weight(node, number) for number in (1, 2, 3, 4))
    rates = attrs["epsilon"], 1.0 - attrs["momentum"]
    y = c.build(ops.batch_norm, [scale, bias], c.tensor(node, 0), *rates, name=name_of(node))
    for tensor, weight in zip(c.graph.nodes[y.node].inputs[2:], (mean, variance)):
        c.hold(tensor, weight)
    c.left_out |= {name: "statistics that a BatchNormalization returns" for name in node.output[1:] if name}
    return y


@says("LayerNormalization")
def layer_norm(c: Context, node: Any) -> Tensor:
    """Normalisation over the last dimension."""
    attrs, x = c.attributes(node, axis=-1, epsilon=1e-5, stash_type=1), c.tensor(node, 0)
    if attrs["axis"] % x.ndim != x.ndim - 1 or not c.has(node, 2):
        raise Unknown("only over the last dimension, with scale and bias")
    own = c.weight(node, 1), c.weight(node, 2)
    c.left_out |= {name: "statistics that a LayerNormalization returns" for name in node.output[1:] if name}
    return c.build(ops.layer_norm, own, x, attrs["epsilon"], name=name_of(node))


@says("InstanceNormalization", "GroupNormalization")
def group_norm(c: Context, node: Any) -> Tensor:
    """Normalisation of each group of channels; of each channel by itself without groups."""
    attrs, x, name = c.attributes(node, epsilon=1e-5, num_groups=None, stash_type=1), c.tensor(node, 0), name_of(node)
    own = c.weight(node, 1), c.weight(node, 2)
    if own[0].array.shape != x.shape[1:2]:
        raise Unknown("a scale for each group, as before opset 21; export with that")
    return c.build(ops.group_norm, own, x, attrs["num_groups"] or x.shape[1], attrs["epsilon"], name=name)


# ---- rows --------------------------------------------------------------------------------------------------------------------


@says("Gather")
def gather(c: Context, node: Any) -> Tensor:
    """Rows of an initializer (an embedding), or one element of a dimension by a fixed index."""
    axis, known = c.attributes(node, axis=0)["axis"], c.weight_at(node.input[0])
    at = c.arrays.get(node.input[1])
    table = known is not None and known.array.ndim == 2 and axis in (0, -2) and c.is_parameter(node.input[0])
    if table and (at is None or at.ndim):
        rows = c.weight(node, 0)
        held = c.tied(rows)
        if held is None or held[1] == rows.turned:
            if at is not None and at.min() < 0:
                c.arrays[node.input[1]] = at % rows.array.shape[0]
            return c.build(ops.embedding, [rows], c.tensor(node, 1), *rows.array.shape, name=name_of(node))
    at, x = c.constant(node, 1), c.tensor(node, 0)
    axis %= x.ndim
    if at is None or at.size != 1:
        return chosen(c, x, axis, at % x.shape[axis], name_of(node))
    index = int(at.reshape(-1)[0]) % x.shape[axis]
    if not at.ndim:
        return ops.select(x, axis, index, name=name_of(node))
    y = ops.narrow(x, axis, index, 1, name=name_of(node))
    shape = (*x.shape[:axis], *at.shape, *x.shape[axis + 1 :])
    return y if y.shape == shape else ops.reshape(y, shape, name=f"{name_of(node)}.shaped")


@says("Flatten")
def flatten(c: Context, node: Any) -> Tensor:
    """Flatten to two dimensions."""
    axis, x = c.attributes(node, axis=1)["axis"], c.tensor(node, 0)
    axis += x.ndim if axis < 0 else 0
    return ops.reshape(x, (prod(x.shape[:axis]), -1), name=name_of(node))


GATES = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2)}
"""Where ours are among theirs: input, output, forget, cell; update, reset, hidden."""


@says("LSTM", "GRU")
def recurrent(c: Context, node: Any) -> tuple[Tensor, ...]:
    """A layer over (T, N, I), in one direction or in both: y (T, directions, N, H), and its last states (directions, N, H)."""
    kind, name, order = node.op_type, name_of(node), GATES[node.op_type]
    attrs = c.attributes(
        node, direction="forward", hidden_size=None, layout=0, activations=None, **(
            {"input_forget": 0} if kind == "LSTM" else {"linear_before_reset": 0}
        ),
    )
    _require_usual(c, node, attrs)
    ways = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}[attrs["direction"]]
    x, w, r, b = c.tensor(node, 0), c.weight(node, 1), c.weight(node, 2), c.weight(node, 3)
    hidden, gates = r.array.shape[2], len(order)
    x = ops.transpose(x, 0, 1, name=f"{name}.samples")
    shape = (x.shape[0], hidden)
    states = [_first(c, node, number, len(ways)) for number in range(5, 5 + (2 if kind == "LSTM" else 1))]
    each: list[tuple[Tensor, ...]] = []
    for way, reverse in enumerate(ways):
        at = f"{name}.way{way}" if len(ways) > 1 else name
        both = (gates, hidden)
        own = [
            w.part(ArrayPart((*both, x.shape[2]), way, order=order)), r.part(ArrayPart((*both, hidden), way, order=order)),
            b.part(ArrayPart(both, way, 0, gates * hidden, order)), b.part(ArrayPart(both, way, gates * hidden, None, order)),
        ]
        start = [
            first_states(c.graph, shape, x.dtype, [f"{at}.state{k}"])[0] if given is None
            else ops.select(given, 0, way, name=f"{at}.state{k}") for k, given in enumerate(states)
        ]
        each.append(_layer(kind, x, hidden, start, reverse, at))
        c.own(each[-1][0], *own)
    ends = [_joined([part[k] for part in each], 0, f"{name}.last{k}") for k in range(1, 1 + len(states))]
    rows = [ops.transpose(part[0], 0, 1, name=f"{name}.steps{i}") for i, part in enumerate(each)]
    return (_joined(rows, 1, f"{name}.both"), *ends)


def _layer(kind: str, x: Tensor, hidden: int, start: list[Tensor], reverse: bool, name: str) -> tuple[Tensor, ...]:
    if kind == "LSTM":
        return lstm_layer(x, hidden, (start[0], start[1]), reverse=reverse, name=name)
    return gru_layer(x, hidden, start[0], reverse=reverse, name=name)


def _joined(parts: list[Tensor], dim: int, name: str) -> Tensor:
    """Tensors along a new dimension of the directions."""
    alone = [ops.reshape(p, (*p.shape[:dim], 1, *p.shape[dim:]), name=f"{name}.{i}") for i, p in enumerate(parts)]
    return alone[0] if len(alone) == 1 else ops.concat(alone, dim, name=name)


def _first(c: Context, node: Any, number: int, ways: int) -> Tensor | None:
    """The first states (directions, N, H) that a node is given; None for zeros."""
    if not c.has(node, number):
        return None
    known = c.arrays.get(node.input[number])
    if known is not None and not known.any():
        c.constant(node, number)
        return None
    return c.tensor(node, number)


def _require_usual(c: Context, node: Any, attrs: dict[str, Any]) -> None:
    """Raise Unknown for what PyTorch's exporter does not write."""
    usual = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"]}[node.op_type]
    given = [text.decode(errors="backslashreplace") if isinstance(text, bytes) else text for text in attrs["activations"] or ()]
    if given not in ([], usual, usual * 2):
        raise Unknown(f"activations {given}; only {usual}")
    if attrs["layout"] or attrs.get("input_forget") or attrs.get("linear_before_reset") == 0:
        raise Unknown("layout and input_forget must be 0, and linear_before_reset 1")
    if c.has(node, 4):
        lengths = c.arrays.get(node.input[4])
        if lengths is None or (lengths != (c.shape(node, 0) or (0,))[0]).any():
            raise Unknown("sequence_lens: each sample has a length of its own; pad the sequences and leave it out")
        c.constant(node, 4)
    if c.has(node, 7):
        raise Unknown("peepholes have no counterpart")
    if not c.has(node, 3):
        raise Unknown("only with biases")
