"""Handlers that turn ONNX operators of arithmetic into ours: for each a function of the context and the node. A node that is not
fully understood is an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from taskflow import operators as ops
from taskflow.models.onnx.context import HANDLERS, Context, Unknown, name_of, says
from taskflow.operators.tensor import Tensor


def _unary(kind: str, build: Callable[..., Tensor]) -> None:
    def make(c: Context, node: Any) -> Tensor:
        c.attributes(node)
        return build(c.tensor(node, 0), name=name_of(node))

    HANDLERS[kind] = make


for _kind, _build in {
    "Relu": ops.relu, "Sigmoid": ops.sigmoid, "Tanh": ops.tanh, "Exp": ops.exp, "Log": ops.log, "Sqrt": ops.sqrt, "Sin": ops.sin,
    "Cos": ops.cos, "Abs": ops.abs, "HardSwish": ops.hardswish, "Softplus": ops.softplus, "Mish": ops.mish,
}.items():
    _unary(_kind, _build)
_unary("Neg", lambda x, name: ops.scale(x, -1.0, name=name))
_unary("Reciprocal", lambda x, name: ops.pow(x, -1.0, name=name))


@says("Identity")
def same(c: Context, node: Any) -> Tensor:
    """Return the input."""
    c.attributes(node)
    return c.tensor(node, 0)


@says("Dropout")
def dropout(c: Context, node: Any) -> Tensor:
    """Dropout where training has it; evaluation and prediction pass everything on."""
    attrs, ratio = c.attributes(node, ratio=0.5, seed=0), c.number(node, 1)
    c.constant(node, 2)  # training_mode: a graph trains in training, and only then
    c.left_out |= {name: "which values a Dropout keeps" for name in node.output[1:] if name}
    p = attrs["ratio"] if ratio is None else ratio
    return ops.dropout(c.tensor(node, 0), p, name=name_of(node)) if p else c.tensor(node, 0)


@says("Gelu")
def gelu(c: Context, node: Any) -> Tensor:
    """x Phi(x)."""
    return ops.gelu(c.tensor(node, 0), c.attributes(node, approximate="none")["approximate"], name=name_of(node))


@says("Erf")
def erf(c: Context, node: Any) -> Tensor:
    """Compute erf(x) = 2 gelu(sqrt(2) x) / (sqrt(2) x) - 1, which is not defined at 0."""
    raise Unknown("only as a part of Gelu: x (1 + erf(x / sqrt 2)) / 2, whose parts nothing else reads")


@says("LeakyRelu")
def leaky_relu(c: Context, node: Any) -> Tensor:
    """x where it is positive, alpha x elsewhere."""
    return ops.leaky_relu(c.tensor(node, 0), c.attributes(node, alpha=0.01)["alpha"], name=name_of(node))


@says("PRelu")
def prelu(c: Context, node: Any) -> Tensor:
    """x where it is positive, elsewhere x times a trained slope, or a number."""
    c.attributes(node)
    x, slope, name = c.tensor(node, 0), c.number(node, 1), name_of(node)
    if slope is not None and not c.is_parameter(node.input[1]) and node.input[1] not in c.initial:
        return ops.leaky_relu(x, slope, name=name)
    above = ops.relu(x, name=f"{name}.above")
    below, weight = ops.sub(x, above, name=f"{name}.below"), c.weight(node, 1)
    if not _repeats(weight.array.shape, x.shape):
        raise Unknown(f"a slope {list(weight.array.shape)} for {list(x.shape)}")
    return ops.add(above, c.with_parameter(ops.mul_weight, below, weight), name=name)


@says("Elu", "Selu", "Celu")
def elu(c: Context, node: Any) -> Tensor:
    """Exponential below 0."""
    kind, x, name = node.op_type, c.tensor(node, 0), name_of(node)
    if kind == "Selu":
        attrs = c.attributes(node, alpha=1.6732632423543772, gamma=1.0507009873554805)
        return ops.elu(x, attrs["alpha"], attrs["gamma"], name=name)
    alpha = c.attributes(node, alpha=1.0)["alpha"]
    return ops.elu(x, alpha, 1.0, 1.0 if kind == "Elu" else 1 / alpha, name=name)


@says("HardSigmoid")
def hardsigmoid(c: Context, node: Any) -> Tensor:
    """Clamp alpha x + beta between 0 and 1."""
    attrs, x, name = c.attributes(node, alpha=0.2, beta=0.5), c.tensor(node, 0), name_of(node)
    if abs(attrs["alpha"] - 1 / 6) < 1e-6 and attrs["beta"] == 0.5:
        return ops.hardsigmoid(x, name=name)
    rise = ops.shift(ops.scale(x, attrs["alpha"], name=f"{name}.scaled"), attrs["beta"], name=f"{name}.rise")
    return ops.hardtanh(rise, 0.0, 1.0, name=name)


@says("Clip")
def clip(c: Context, node: Any) -> Tensor:
    """Clamp to two bounds, each of which may be missing."""
    attrs, x = c.attributes(node, min=None, max=None), c.tensor(node, 0)
    low, high = (attrs[key] if not c.has(node, i) else c.number(node, i) for i, key in ((1, "min"), (2, "max")))
    if (c.has(node, 1) and low is None) or (c.has(node, 2) and high is None):
        raise Unknown("bounds must be constants")
    return x if low is None and high is None else ops.clamp(x, low, high, name=name_of(node))


@says("Max", "Min")
def bounded(c: Context, node: Any) -> Tensor:
    """The larger or the smaller of a tensor and a number."""
    c.attributes(node)
    which = next((i for i in range(len(node.input)) if c.number(node, i) is not None), None)
    if which is None or len(node.input) != 2:
        raise Unknown("only of a tensor and a number")
    number, x = c.number(node, which), c.tensor(node, 1 - which)
    if x.dtype.kind != "f" or len(c.shape(node, which) or ()) > x.ndim:
        raise Unknown("only of floats, and of a number without more dimensions")
    low, high = (number, None) if node.op_type == "Max" else (None, number)
    return ops.clamp(x, low, high, name=name_of(node))


@says("Sum")
def total(c: Context, node: Any) -> Tensor:
    """The sum of several tensors."""
    c.attributes(node)
    x = c.tensor(node, 0)
    for i in range(1, len(node.input)):
        x = ops.add(x, c.tensor(node, i), name=name_of(node))
    return x


@says("Softmax", "LogSoftmax")
def softmax(c: Context, node: Any) -> Tensor:
    """Softmax along a dimension, or its logarithm; before opset 13 it was over all dimensions from one on."""
    x, axis = c.tensor(node, 0), c.attributes(node, axis=-1 if c.opset >= 13 else 1)["axis"]
    if c.opset < 13 and axis % x.ndim != x.ndim - 1:
        raise Unknown(f"opset {c.opset} has it over all dimensions from {axis} on; only the last: export with opset 13 or later")
    if node.op_type == "LogSoftmax":
        return ops.sub(x, ops.logsumexp(x, axis, True, name=f"{name_of(node)}.sum"), name=name_of(node))
    return ops.softmax(x, axis, name=name_of(node))


# ---- arithmetic ------------------------------------------------------------------------------------------------------------


def _repeats(own: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    """True if an array broadcasts to a tensor's shape without enlarging it."""
    return len(own) <= len(whole) and all(mine in (1, n) for mine, n in zip(own[::-1], whole[::-1]))


def _is_bias(c: Context, node: Any, number: int) -> bool:
    """True for an initializer (1) that is added to a layer's only feature: it is trained, as any bias is."""
    name, other = node.input[number], node.input[1 - number]
    maker = c.made_by.get(other)
    one = name in c.initial and c.arrays[name].shape == (1,) and c.arrays[name].dtype.kind == "f"
    return one and maker is not None and maker.op_type in ("MatMul", "Gemm") and (c.shape(node, 1 - number) or (0,))[-1] == 1


@says("Add", "Sub", "Mul", "Div")
def two(c: Context, node: Any) -> Tensor:
    """Apply an operation to two tensors, to a tensor and a number, or to a tensor and a trained parameter."""
    c.attributes(node)
    name, kind = name_of(node), node.op_type
    for x, other in ((0, 1), (1, 0)):
        held, shape = node.input[other], c.shape(node, x) if node.input[x] in c.values else ()
        trained = c.is_parameter(held) or (kind == "Add" and _is_bias(c, node, other))
        if kind in ("Add", "Mul") and trained and _repeats(c.weight(node, other).array.shape, shape or ()):
            return c.with_parameter(ops.add_weight if kind == "Add" else ops.mul_weight, c.tensor(node, x), c.weight(node, other))
    a, b = c.number(node, 0), c.number(node, 1)
    if b is not None:
        given = _of_rank(c.tensor(node, 0), len(c.shape(node, 1) or ()), name)
        if kind in ("Add", "Sub"):
            return ops.shift(given, b if kind == "Add" else -b, name=name)
        return ops.scale(given, b if kind == "Mul" else 1 / b, name=name)
    y = c.tensor(node, 1)
    if a is not None:
        y = _of_rank(y, len(c.shape(node, 0) or ()), name)
        if kind == "Mul":
            return ops.scale(y, a, name=name)
        if kind == "Div":
            return ops.scale(ops.pow(y, -1.0, name=f"{name}.inverse"), a, name=name)
        return ops.shift(ops.scale(y, -1.0, name=f"{name}.minus") if kind == "Sub" else y, a, name=name)
    first = c.tensor(node, 0)
    if kind == "Div":
        return ops.mul(first, ops.pow(y, -1.0, name=f"{name}.inverse"), name=name)
    return {"Add": ops.add, "Sub": ops.sub, "Mul": ops.mul}[kind](first, y, name=name)


def _of_rank(x: Tensor, rank: int, name: str) -> Tensor:
    """A tensor with at least ``rank`` dimensions, as one number with more dimensions makes it."""
    return x if x.ndim >= rank else ops.reshape(x, (1,) * (rank - x.ndim) + x.shape, name=f"{name}.wide")


@says("Pow")
def power(c: Context, node: Any) -> Tensor:
    """Raise to the power of a number."""
    c.attributes(node)
    exponent = c.number(node, 1)
    if exponent is None or exponent == 0:
        raise Unknown("the exponent must be a number that is not 0")
    x = _of_rank(c.tensor(node, 0), len(c.shape(node, 1) or ()), name_of(node))
    return x if exponent == 1 else ops.pow(x, exponent, name=name_of(node))


def _lengths(x: Tensor, over: Any, keepdim: bool, *, name: str) -> Tensor:
    return ops.sqrt(_squares(x, over, keepdim, name=f"{name}.sum"), name=name)


def _squares(x: Tensor, over: Any, keepdim: bool, *, name: str) -> Tensor:
    return ops.sum(ops.pow(x, 2.0, name=f"{name}.squares"), over, keepdim, name=name)


def _sizes(x: Tensor, over: Any, keepdim: bool, *, name: str) -> Tensor:
    return ops.sum(ops.abs(x, name=f"{name}.sizes"), over, keepdim, name=name)


def _least(x: Tensor, over: Any, keepdim: bool, *, name: str) -> Tensor:
    return ops.amax(x, over, keepdim, least=True, name=name)


REDUCTIONS: dict[str, Callable[..., Tensor]] = {
    "ReduceMean": ops.mean, "ReduceSum": ops.sum, "ReduceMax": ops.amax, "ReduceMin": _least, "ReduceLogSumExp": ops.logsumexp,
    "ReduceL1": _sizes, "ReduceL2": _lengths, "ReduceSumSquare": _squares,
}


@says(*REDUCTIONS)
def reduced(c: Context, node: Any) -> Tensor:
    """One number of all those along some dimensions."""
    attrs = c.attributes(node, axes=None, keepdims=1, noop_with_empty_axes=0)
    axes = c.constant(node, 1) if c.has(node, 1) else attrs["axes"]
    over = None if axes is None or len(axes) == 0 else tuple(int(a) for a in axes)
    if over is None and attrs["noop_with_empty_axes"]:
        if node.op_type in ("ReduceL1", "ReduceL2", "ReduceSumSquare"):
            raise Unknown("over no dimensions")
        return c.tensor(node, 0)
    return REDUCTIONS[node.op_type](c.tensor(node, 0), over, bool(attrs["keepdims"]), name=name_of(node))


@says("CumSum")
def cumsum(c: Context, node: Any) -> Tensor:
    """Sums of all elements up to each one."""
    attrs, axis = c.attributes(node, exclusive=0, reverse=0), c.number(node, 1)
    if axis is None or attrs["exclusive"] or attrs["reverse"]:
        raise Unknown("exclusive and reverse are not understood, and the axis must be a constant")
    return ops.cumsum(c.tensor(node, 0), int(axis), name=name_of(node))


@says("TopK")
def top_k(c: Context, node: Any) -> tuple[Tensor, ...]:
    """The largest numbers of a dimension, and their positions."""
    attrs, k, x, name = c.attributes(node, axis=-1, largest=1, sorted=1), c.number(node, 1), c.tensor(node, 0), name_of(node)
    if k is None or not attrs["largest"] or x.ndim < 2:
        raise Unknown("only the largest, how many must be a constant, and there must be samples")
    axis = attrs["axis"] % x.ndim
    last = axis == x.ndim - 1
    values, places = ops.top_k(x if last else ops.transpose(x, axis, -1, name=f"{name}.last"), int(k), name=name)
    if last:
        return values, places
    c.left_out |= {output: "positions along another dimension than the last" for output in node.output[1:] if output}
    return (ops.transpose(values, axis, -1, name=f"{name}.back"),)


@says("Einsum")
def einsum(c: Context, node: Any) -> Tensor:
    """Sum products over letters."""
    equation = str(c.attributes(node, equation=None)["equation"]).replace(" ", "")
    return ops.einsum(equation, *(c.tensor(node, i) for i in range(len(node.input))), name=name_of(node))
