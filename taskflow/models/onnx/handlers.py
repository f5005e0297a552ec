"""Handlers that turn ONNX operators into ours: for each a function of the context and the node. A node that is not fully
understood is an error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from taskflow import operators as ops
from taskflow.graph import OperatorGraph
from taskflow.operators.operator import Init
from taskflow.operators.tensor import Parameter, Tensor


class Unknown(ValueError):
    """Error for a node that has no counterpart; the message says why."""


@dataclass(slots=True)
class Context:
    """State of an import. ``arrays``: initializers, and values computed from constants. ``values``: tensors by ONNX's names.
    ``shared``: our parameters by initializer."""

    onnx: Any
    graph: OperatorGraph
    arrays: dict[str, Any]
    values: dict[str, Tensor] = field(default_factory=dict)
    initial: frozenset[str] = frozenset()
    shared: dict[str, tuple[Parameter, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.initial = frozenset(self.arrays)

    def attributes(self, node: Any, **defaults: Any) -> dict[str, Any]:
        """Return a node's attributes, with defaults for those that are absent. Raises Unknown for any other attribute."""
        said = {a.name: self.onnx.helper.get_attribute_value(a) for a in node.attribute}
        said = {k: v.decode() if isinstance(v, bytes) else v for k, v in said.items()}
        if other := sorted(said.keys() - defaults.keys()):
            raise Unknown(f"attribute {other[0]}={said[other[0]]!r} is not understood")
        return defaults | said

    def array(self, node: Any, number: int) -> Any:
        """Return the numbers of an input that must be constant."""
        if number >= len(node.input) or not node.input[number]:
            return None
        if node.input[number] not in self.arrays:
            raise Unknown(f"input {number} must be a constant")
        return self.arrays[node.input[number]]

    def tensor(self, node: Any, number: int) -> Tensor:
        """Return an input as a tensor: a float initializer as a parameter of its own, any other array as a constant."""
        name = node.input[number]
        if name in self.values:
            return self.values[name]
        array = self.arrays[name]
        if self.is_parameter(name):
            return self.parameter(name)
        array = array.astype(self.graph.dtype) if array.dtype.kind == "f" else array
        made = ops.constant(self.graph, array.reshape(array.shape or (1,)), name=f"{name_of(node)}.constant")
        return made if array.shape else ops.reshape(made, ())

    def parameter(self, name: str) -> Tensor:
        """Return an initializer as a parameter by itself."""
        array = self.arrays[name]
        made = ops.expand_weight(
            self.graph, array.shape, array.shape, init=Init("normal", float(array.std()) or 0.02), name=name,
            parameters=self.shared.get(name),
        )
        self.shared.setdefault(name, self.graph.parameters_of(made))
        return made

    def turned_linear(self, x: Tensor, name: str, node: str) -> Tensor:
        """Multiply x by an initializer (k, c), as a linear layer, whose weight is (c, k)."""
        key = name + TURNED
        y = ops.linear(x, self.arrays[name].shape[1], False, name=node, parameters=self.shared.get(key))
        return self.weights(y, key)

    def with_parameter(self, build: Callable[..., Tensor], x: Tensor, name: str) -> Tensor:
        """Combine a tensor and an initializer that is broadcast to its shape, as one operator."""
        array = self.arrays[name]
        init = Init("normal", float(array.std()) or 0.02)
        return self.weights(build(x, array.shape, init=init, name=name, parameters=self.shared.get(name)), name)

    def is_parameter(self, name: str) -> bool:
        """True if it is a float initializer of several numbers."""
        return name in self.initial and self.arrays[name].dtype.kind == "f" and self.arrays[name].size > 1

    def weights(self, made: Tensor, *names: str) -> Tensor:
        """Remember a layer's parameters, so that another layer may share them."""
        self.shared.setdefault(" ".join(names), self.graph.parameters_of(made))
        return made


TURNED = "^T"  # behind an initializer's name: our parameter is its transpose
Handler = Callable[[Context, Any], Any]
HANDLERS: dict[str, Handler] = {}


def name_of(node: Any) -> str:
    """Return a node's name, or its output's."""
    return str(node.name or node.output[0])


def says(*names: str) -> Callable[[Handler], Handler]:
    """Decorator that registers a function for these operators of ONNX."""

    def add(handler: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(names, handler))
        return handler

    return add


def _unary(kind: str, build: Callable[..., Tensor]) -> None:
    def made(c: Context, node: Any) -> Tensor:
        c.attributes(node)
        return build(c.tensor(node, 0), name=name_of(node))

    HANDLERS[kind] = made


for _kind, _build in {
    "Relu": ops.relu, "Sigmoid": ops.sigmoid, "Tanh": ops.tanh, "Exp": ops.exp, "Log": ops.log, "Sqrt": ops.sqrt, "Sin": ops.sin,
    "Cos": ops.cos, "Abs": ops.abs, "HardSwish": ops.hardswish,
}.items():
    _unary(_kind, _build)


@says("Identity", "Dropout")
def same(c: Context, node: Any) -> Tensor:
    """Return the input; dropout of an exported model has its inference form."""
    return c.tensor(node, 0)


@says("Neg")
def neg(c: Context, node: Any) -> Tensor:
    """-x."""
    return ops.scale(c.tensor(node, 0), -1.0, name=name_of(node))


@says("Reciprocal")
def reciprocal(c: Context, node: Any) -> Tensor:
    """1 / x."""
    return ops.pow(c.tensor(node, 0), -1.0, name=name_of(node))


@says("Gelu")
def gelu(c: Context, node: Any) -> Tensor:
    """x Phi(x)."""
    return ops.gelu(c.tensor(node, 0), c.attributes(node, approximate="none")["approximate"], name=name_of(node))


@says("Erf")
def erf(c: Context, node: Any) -> Tensor:
    """Compute erf(x) = 2 gelu(sqrt(2) x) / (sqrt(2) x) - 1, which is not defined at 0."""
    raise Unknown("only as a part of Gelu: export with opset 20 or later, which has Gelu")


@says("Softmax")
def softmax(c: Context, node: Any) -> Tensor:
    """Softmax along a dimension."""
    return ops.softmax(c.tensor(node, 0), c.attributes(node, axis=-1)["axis"], name=name_of(node))


@says("Cast")
def cast(c: Context, node: Any) -> Tensor:
    """Cast to the type that the tensor already has."""
    x, wanted = c.tensor(node, 0), c.onnx.helper.tensor_dtype_to_np_dtype(c.attributes(node, to=1, saturate=1)["to"])
    if x.dtype != wanted:
        raise Unknown(f"from {x.dtype} to {wanted}; one float type in the whole network, please")
    return x


# ---- arithmetic ------------------------------------------------------------------------------------------------------------


def _number(c: Context, node: Any, number: int) -> float | None:
    array = c.arrays.get(node.input[number])
    return float(array.reshape(-1)[0]) if array is not None and array.size == 1 else None


def _repeats(own: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    """True if an array broadcasts to a tensor's shape without enlarging it."""
    return len(own) <= len(whole) and all(mine in (1, n) for mine, n in zip(own[::-1], whole[::-1]))


@says("Add", "Sub", "Mul", "Div")
def two(c: Context, node: Any) -> Tensor:
    """Apply an operation to two tensors, to a tensor and a number, or to a tensor and a trained parameter."""
    name, kind = name_of(node), node.op_type
    a, b = _number(c, node, 0), _number(c, node, 1)
    if b is not None:
        given = c.tensor(node, 0)
        if kind in ("Add", "Sub"):
            return ops.shift(given, b if kind == "Add" else -b, name=name)
        return ops.scale(given, b if kind == "Mul" else 1 / b, name=name)
    for x, other in ((0, 1), (1, 0)):
        held, shape = node.input[other], c.values[node.input[x]].shape if node.input[x] in c.values else ()
        if kind in ("Add", "Mul") and c.is_parameter(held) and _repeats(c.arrays[held].shape, shape):
            return c.with_parameter(ops.add_weight if kind == "Add" else ops.mul_weight, c.tensor(node, x), held)
    y = c.tensor(node, 1)
    if a is not None:
        if kind == "Mul":
            return ops.scale(y, a, name=name)
        if kind == "Div":
            return ops.scale(ops.pow(y, -1.0, name=f"{name}.inverse"), a, name=name)
        return ops.shift(ops.scale(y, -1.0, name=f"{name}.minus") if kind == "Sub" else y, a, name=name)
    first = c.tensor(node, 0)
    if kind == "Div":
        return ops.mul(first, ops.pow(y, -1.0, name=f"{name}.inverse"), name=name)
    return {"Add": ops.add, "Sub": ops.sub, "Mul": ops.mul}[kind](first, y, name=name)


@says("Pow")
def power(c: Context, node: Any) -> Tensor:
    """Raise to the power of a number."""
    exponent = _number(c, node, 1)
    if exponent is None or exponent == 0:
        raise Unknown("the exponent must be a number that is not 0")
    x = c.tensor(node, 0)
    return x if exponent == 1 else ops.pow(x, exponent, name=name_of(node))


@says("MatMul")
def matmul(c: Context, node: Any) -> Tensor:
    """Multiply x (..., k) by a weight (k, c), a linear layer; or multiply two stacks of equally many matrices."""
    x, array, weight = c.tensor(node, 0), c.arrays.get(node.input[1]), node.input[1]
    if array is not None and array.ndim == 2 and weight in c.initial:
        return c.turned_linear(x, weight, name_of(node))
    other = c.tensor(node, 1)
    if x.ndim != other.ndim or x.shape[:-2] != other.shape[:-2] or x.ndim < 3:
        raise Unknown(f"of {list(x.shape)} and {list(other.shape)}: leading dimensions must be equal")
    return ops.matmul(x, other, name=name_of(node))


@says("Gemm")
def gemm(c: Context, node: Any) -> Tensor:
    """Linear layer: x W^T + b, where W and b are initializers."""
    said, names = c.attributes(node, alpha=1.0, beta=1.0, transA=0, transB=0), list(node.input)
    weight = c.arrays.get(names[1])
    plain = said["alpha"] == said["beta"] == 1.0 and not said["transA"] and names[1] in c.initial
    if weight is None or not plain or (len(names) > 2 and names[2] not in c.initial):
        raise Unknown("needs initializers as weight and bias, and alpha, beta, transA by default")
    x = c.tensor(node, 0)
    if said["transB"]:
        y = ops.linear(x, weight.shape[0], len(names) > 2, name=name_of(node), parameters=c.shared.get(" ".join(names[1:])))
        return c.weights(y, *names[1:])
    y = c.turned_linear(x, names[1], name_of(node))
    return c.with_parameter(ops.add_weight, y, names[2]) if len(names) > 2 else y


@says("ReduceMean", "ReduceSum")
def reduced(c: Context, node: Any) -> Tensor:
    """Mean or sum over some dimensions."""
    said = c.attributes(node, axes=None, keepdims=1, noop_with_empty_axes=0)
    axes = c.array(node, 1) if len(node.input) > 1 else said["axes"]
    over = None if axes is None else tuple(int(a) for a in axes)
    build = ops.mean if node.op_type == "ReduceMean" else ops.sum
    return build(c.tensor(node, 0), over, bool(said["keepdims"]), name=name_of(node))


# ---- layers ----------------------------------------------------------------------------------------------------------------


@says("Conv")
def conv(c: Context, node: Any) -> Tensor:
    """Convolution of images (N, C, H, W)."""
    said = c.attributes(
        node, auto_pad="NOTSET", dilations=[1, 1], group=1, kernel_shape=None, pads=[0, 0, 0, 0], strides=[1, 1]
    )
    weight = c.arrays.get(node.input[1])
    if weight is None or weight.ndim != 4 or said["auto_pad"] != "NOTSET":
        raise Unknown("only of images, with an initializer as weight, and auto_pad=NOTSET")
    top, left, bottom, right = said["pads"]
    y = ops.conv2d(
        c.tensor(node, 0), weight.shape[0], tuple(weight.shape[2:]), tuple(said["strides"]), ((top, bottom), (left, right)),
        tuple(said["dilations"]), said["group"], len(node.input) > 2, name=name_of(node),
        parameters=c.shared.get(" ".join(node.input[1:])),
    )
    return c.weights(y, *node.input[1:])


@says("MaxPool", "AveragePool")
def pooled(c: Context, node: Any) -> Tensor:
    """Maximum or mean of windows of images."""
    said = c.attributes(
        node, auto_pad="NOTSET", ceil_mode=0, dilations=[1, 1], kernel_shape=None, pads=[0, 0, 0, 0], strides=[1, 1],
        count_include_pad=0, storage_order=0,
    )
    top, left, bottom, right = said["pads"]
    if (top, left) != (bottom, right) or said["auto_pad"] != "NOTSET" or len(said["kernel_shape"]) != 2:
        raise Unknown("only of images, with as much padding before as behind")
    x, name = c.tensor(node, 0), name_of(node)
    if node.op_type == "MaxPool":
        return ops.max_pool2d(
            x, tuple(said["kernel_shape"]), tuple(said["strides"]), (top, left), tuple(said["dilations"]),
            ceil_mode=bool(said["ceil_mode"]), name=name,
        )
    return ops.avg_pool2d(
        x, tuple(said["kernel_shape"]), tuple(said["strides"]), (top, left), ceil_mode=bool(said["ceil_mode"]),
        count_include_pad=bool(said["count_include_pad"]), name=name,
    )


@says("GlobalAveragePool")
def global_mean(c: Context, node: Any) -> Tensor:
    """Mean of each channel."""
    return ops.mean(c.tensor(node, 0), (2, 3), True, name=name_of(node))


@says("BatchNormalization")
def batch_norm(c: Context, node: Any) -> Tensor:
    """Normalisation over the batch; a graph trains with the batch's statistics."""
    said = c.attributes(node, epsilon=1e-5, momentum=0.9, training_mode=0)
    return ops.batch_norm(c.tensor(node, 0), said["epsilon"], 1.0 - said["momentum"], name=name_of(node))


@says("LayerNormalization")
def layer_norm(c: Context, node: Any) -> Tensor:
    """Normalisation over the last dimension."""
    said, x = c.attributes(node, axis=-1, epsilon=1e-5, stash_type=1), c.tensor(node, 0)
    if said["axis"] % x.ndim != x.ndim - 1 or len(node.input) < 3:
        raise Unknown("only over the last dimension, with scale and bias")
    y = ops.layer_norm(x, said["epsilon"], name=name_of(node), parameters=c.shared.get(" ".join(node.input[1:])))
    return c.weights(y, *node.input[1:])


@says("Gather")
def gather(c: Context, node: Any) -> Tensor:
    """Rows of an initializer (an embedding), or one element of a dimension by a fixed index."""
    axis, table = c.attributes(node, axis=0)["axis"], c.arrays.get(node.input[0])
    if table is not None and table.ndim == 2 and axis == 0 and node.input[0] in c.initial:
        indices = c.tensor(node, 1)
        y = ops.embedding(indices, *table.shape, name=name_of(node), parameters=c.shared.get(node.input[0]))
        return c.weights(y, node.input[0])
    at = c.array(node, 1)
    if at is None or at.ndim:
        raise Unknown("by several numbers")
    return ops.select(c.tensor(node, 0), axis, int(at), name=name_of(node))
