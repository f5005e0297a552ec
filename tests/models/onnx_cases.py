"""Random small ONNX graphs, one kind of operator in each, with the options and the initializers that it may have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import onnx

H = onnx.helper
FLOAT, LONG, BOOL = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.BOOL


@dataclass
class Case:
    """A graph that grows. ``r`` chooses; ``add`` appends a node and returns its first output's name."""

    r: Random
    opset: int = 20
    nodes: list[Any] = field(default_factory=list)
    inputs: list[Any] = field(default_factory=list)
    arrays: dict[str, Any] = field(default_factory=dict)

    def x(self, *shape: int) -> str:
        """An input of floats."""
        name = f"x{len(self.inputs)}"
        self.inputs.append(H.make_tensor_value_info(name, FLOAT, shape))
        return name

    def ids(self, *shape: int) -> str:
        name = f"ids{len(self.inputs)}"
        self.inputs.append(H.make_tensor_value_info(name, LONG, shape))
        return name

    def w(self, *shape: int, positive: bool = False) -> str:
        """An initializer of floats."""
        array = np.random.default_rng(self.r.randrange(1 << 30)).normal(size=shape).astype("float32")
        return self.keep(np.abs(array) + np.float32(0.5) if positive else array)

    def keep(self, array: Any) -> str:
        name = f"w{len(self.arrays)}"
        self.arrays[name] = np.asarray(array)
        return name

    def ints(self, *values: int) -> str:
        return self.keep(np.array(values, np.int64))

    def add(self, kind: str, inputs: list[str], outputs: int = 1, **attributes: Any) -> str:
        number = len(self.nodes)
        names = [f"t{number}" if i == 0 else f"t{number}.{i}" for i in range(outputs)]
        said = {key: value for key, value in attributes.items() if value is not None}
        self.nodes.append(H.make_node(kind, inputs, names, f"n{number}", **said))
        return names[0]

    def model(self, outputs: list[str]) -> Any:
        kept = [onnx.numpy_helper.from_array(array, name) for name, array in self.arrays.items()]
        said = [H.make_empty_tensor_value_info(name) for name in outputs]
        graph = H.make_graph(self.nodes, "net", self.inputs, said, initializer=kept)
        return H.make_model(graph, opset_imports=[H.make_opsetid("", self.opset)], ir_version=9)


Maker = Callable[[Case], "str | list[str]"]


def _shape(c: Case, least: int = 2, most: int = 4) -> list[int]:
    return [c.r.randint(1, 4) for _ in range(c.r.randint(least, most))]


def unary(kind: str, **attributes: list[Any]) -> Maker:
    def made(c: Case) -> str:
        x = c.x(*_shape(c))
        if kind in ("Log", "Sqrt", "Reciprocal"):
            x = c.add("Add", [c.add("Abs", [x]), c.keep(np.float32(0.5))])
        return c.add(kind, [x], **{key: c.r.choice([None, *values]) for key, values in attributes.items()})

    return made


def binary(kind: str) -> Maker:
    def made(c: Case) -> str:
        shape = _shape(c)
        own = [n if c.r.random() < 0.6 else 1 for n in shape[c.r.randint(0, len(shape) - 1) :]]
        other = c.r.choice([
            lambda: c.w(*own, positive=True), lambda: c.keep(np.float32(c.r.uniform(0.5, 2))), lambda: c.w(1, positive=True),
            lambda: c.add("Exp", [c.x(*shape)]), lambda: c.keep(np.full((1,) * (len(shape) + 1), 2, "float32")),
            lambda: c.w(2, *shape, positive=True),
        ])()
        x = c.add("Exp", [c.x(*shape)]) if kind == "Div" else c.x(*shape)
        return c.add(kind, [x, other] if c.r.random() < 0.5 else [other, x])

    return made


def power(c: Case) -> str:
    exponent = c.keep(np.float32(c.r.choice([1, 2, 3, 0.5, -1, 0])) if c.r.random() < 0.7 else np.array([2], "float32"))
    return c.add("Pow", [c.add("Exp", [c.x(*_shape(c))]), exponent])


def clip(c: Case) -> str:
    low, high = c.keep(np.float32(c.r.uniform(-1, 0))), c.keep(np.float32(c.r.uniform(0.1, 1)))
    return c.add("Clip", [c.x(*_shape(c)), *c.r.choice([[], [low], ["", high], [low, high]])])


def dropout(c: Case) -> str:
    return c.add("Dropout", [c.x(*_shape(c)), *c.r.choice([[], [c.keep(np.float32(0.3))]])], outputs=c.r.choice([1, 2]))


def reduced(kind: str) -> Maker:
    def made(c: Case) -> str:
        shape = _shape(c)
        axes = c.r.choice([[], [c.ints(*c.r.sample(range(-len(shape), 0), c.r.randint(1, len(shape) - 1)))]])
        return c.add(kind, [c.x(*shape), *axes], keepdims=c.r.choice([None, 0, 1]), noop_with_empty_axes=c.r.choice([None, 0, 1]))

    return made


def matmul(c: Case) -> str:
    n, k, m, stack = c.r.randint(2, 4), c.r.randint(2, 4), c.r.randint(1, 4), c.r.randint(1, 3)
    kind = c.r.choice(["weight", "turned", "tensors", "tied", "constant"])
    if kind == "tensors":
        return c.add("MatMul", [c.x(stack, n, k), c.x(stack, k, m)])
    x = c.x(*c.r.choice([(n, k), (stack, n, k)]))
    if kind == "weight":
        y = c.add("MatMul", [x, c.w(k, m)])
        return c.add("Add", [y, c.w(m)]) if c.r.random() < 0.5 else y
    if kind == "turned":
        return c.add("MatMul", [x, c.add("Transpose", [c.w(m, k)], perm=c.r.choice([None, [1, 0]]))])
    if kind == "constant":
        array = onnx.numpy_helper.from_array(np.eye(k, dtype="float32") * 2, "eye")
        return c.add("MatMul", [x, c.add("Constant", [], value=array)])
    table = c.w(k, k)
    y = c.add("MatMul", [x, table])
    return c.add("MatMul", [y, c.r.choice([table, c.add("Transpose", [table]), c.add("Identity", [table])])])


def gemm(c: Case) -> str:
    n, k, m = (c.r.randint(1, 4) for _ in range(3))
    turned = c.r.choice([None, 0, 1])
    weight = c.w(m, k) if turned else c.w(k, m)
    bias = c.r.choice([[], [""], [c.w(m)], [c.w(1, m)], [c.w(1)]])
    y = c.add("Gemm", [c.x(n, k), weight, *bias], transB=turned, alpha=c.r.choice([None, None, 1.0, 2.0]))
    if c.r.random() < 0.4 and k == m:  # the same weight once more, with a bias of its own or without
        y = c.add("Gemm", [y, weight, *c.r.choice([[], [c.w(m)], bias])], transB=c.r.choice([0, 1]))
    return y


def conv(c: Case) -> str:
    group = c.r.choice([1, 1, 2])
    channels, kernel = 2 * group, [c.r.randint(1, 3), c.r.randint(1, 3)]
    said: dict[str, Any] = {"kernel_shape": c.r.choice([None, kernel]), "group": group if group > 1 else None}
    said["strides"], said["dilations"] = c.r.choice([None, [1, 2], [2, 2]]), c.r.choice([None, None, [2, 1]])
    if c.r.random() < 0.5:
        said["auto_pad"] = c.r.choice(["SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"])
    else:
        said["pads"] = c.r.choice([None, [1, 1, 1, 1], [0, 1, 2, 1]])
    out = group * c.r.randint(1, 3)
    weight = c.w(out, channels // group, *kernel)
    bias = c.r.choice([[], [""], [c.w(out)]])
    return c.add("Conv", [c.x(2, channels, c.r.randint(5, 7), c.r.randint(5, 7)), weight, *bias], **said)


def pooled(kind: str) -> Maker:
    def made(c: Case) -> str:
        said: dict[str, Any] = {"kernel_shape": [c.r.randint(2, 3), c.r.randint(2, 3)]}
        said["strides"] = c.r.choice([None, [2, 2], [1, 2]])
        said["ceil_mode"] = c.r.choice([None, 0, 1]) if said["strides"] else None  # onnx's evaluator is wrong for steps of 1
        if c.r.random() < 0.5:
            said["auto_pad"] = c.r.choice(["SAME_UPPER", "SAME_LOWER", "VALID"])
        else:
            said["pads"] = c.r.choice([None, [1, 1, 1, 1], [0, 1, 1, 0]])
        if kind == "AveragePool":
            said["count_include_pad"] = c.r.choice([None, 0, 1])
        said["dilations"] = c.r.choice([None, [1, 1], [2, 1] if kind == "MaxPool" else None])
        return c.add(kind, [c.x(2, 2, c.r.randint(5, 8), c.r.randint(5, 8))], outputs=1, **said)

    return made


def batch_norm(c: Case) -> str:
    channels, spatial = c.r.randint(1, 4), c.r.choice([(), (2,), (3, 2)])
    own = [c.w(channels, positive=True), c.w(channels), c.w(channels), c.w(channels, positive=True)]
    x = c.x(3, channels, *spatial)
    y = c.add("BatchNormalization", [x, *own], epsilon=c.r.choice([None, 1e-3, 0.1]), momentum=c.r.choice([None, 0.5]))
    if c.r.random() < 0.3:
        own = [*own[:2], c.w(channels), own[3]]
        y = c.add("BatchNormalization", [y, *own])
    return y


def layer_norm(c: Case) -> str:
    shape = [c.r.randint(2, 4) for _ in range(c.r.randint(2, 3))]
    axis = c.r.choice([None, -1, len(shape) - 1, 1])
    own = shape[axis or -1 :] if axis != -1 else shape[-1:]
    inputs = [c.x(*shape), c.w(*own), *c.r.choice([[], [c.w(*own)]])]
    return c.add("LayerNormalization", inputs, axis=axis, epsilon=c.r.choice([None, 0.1]))


def gather(c: Case) -> str:
    rows, width = c.r.randint(2, 5), c.r.randint(2, 4)
    kind = c.r.choice(["table", "fixed", "element", "turned"])
    if kind == "table":
        return c.add("Gather", [c.w(rows, width), c.ids(2, 3)], axis=c.r.choice([None, 0]))
    if kind == "fixed":
        return c.add("Add", [c.x(2, 2, width), c.add("Gather", [c.w(rows, width), c.ints(c.r.choice([0, -1]), 1)])])
    if kind == "turned":
        table = c.w(rows, rows)
        return c.add("MatMul", [c.add("Gather", [table, c.ids(2, 3)]), c.r.choice([table, c.add("Transpose", [table])])])
    at = c.keep(np.array(c.r.choice([1, -1, [1], [1, 0]]), np.int64))
    return c.add("Gather", [c.x(2, rows, width), at], axis=c.r.choice([1, 2, -1]))


def reshape(c: Case) -> str:
    a, b, d = (c.r.randint(1, 4) for _ in range(3))
    x = c.x(a, b, d) if c.r.random() < 0.7 else c.w(a, b, d)
    shape = c.r.choice([[0, -1], [a * b, d], [-1], [0, 0, 1, d]])
    own = c.r.choice([None, 0] if 0 in shape else [None, 0, 1])  # as PyTorch's exporter writes it everywhere
    return c.add("Mul", [c.add("Reshape", [x, c.ints(*shape)], allowzero=own), c.x(1, 1)])


def squeezed(kind: str) -> Maker:
    def made(c: Case) -> str:
        x = c.x(2, 1, 3, 1)
        if kind == "Squeeze":
            return c.add(kind, [x, *c.r.choice([[], [c.ints(1)], [c.ints(-1, 1)]])])
        return c.add(kind, [x, c.r.choice([c.ints(0), c.ints(-1, 1), c.ints(2)])])

    return made


def transpose(c: Case) -> str:
    return c.add("Transpose", [c.x(2, 3, 4)], perm=c.r.choice([None, [0, 2, 1], [2, 0, 1], [1, 0, 2]]))


def concat(c: Case) -> str:
    axis = c.r.choice([1, -1, 0])
    return c.add("Concat", [c.x(2, 3), c.r.choice([c.w(2, 3), c.x(2, 3)]), c.w(2, 3)], axis=axis)


def split(c: Case) -> list[str]:
    how = c.r.choice([{"num_outputs": 2}, {}])
    sizes = [] if how else [c.ints(1, 4)]
    first = c.add("Split", [c.x(2, 5), *sizes], outputs=2, axis=c.r.choice([1, -1]), **how)
    return [first, f"{first}.1"]


def expand(c: Case) -> str:
    return c.add("Expand", [c.x(2, 1, 3), c.r.choice([c.ints(2, 4, 3), c.ints(4, 1), c.ints(2, 2, 1, 3)])])


def sliced(c: Case) -> str:
    rest = c.r.choice([[], [c.ints(1, 2)], [c.ints(-1, 1), c.ints(1, 1)], [c.ints(1, 2), c.ints(2, 1)]])
    return c.add("Slice", [c.x(3, 4, 4), c.ints(0, 1), c.ints(c.r.choice([2, -1, 9]), 3), *rest])


def flatten(c: Case) -> str:
    return c.add("Flatten", [c.x(2, 3, 2)], axis=c.r.choice([None, 0, 1, 2, -1]))


def erf(c: Case) -> str:
    """Gelu as exporters write it: the factors in any order, and now and then something that it is not."""
    x, half, one = c.add("MatMul", [c.x(3, 2), c.w(2, 4)]), c.keep(np.float32(0.5)), c.keep(np.float32(c.r.choice([1, 1, 1, 2])))
    root = [x, c.keep(np.float32(2**0.5))] if c.r.random() < 0.5 else None
    inner = c.add("Div", root) if root else c.add("Mul", [x, c.keep(np.float32(0.5**0.5))])
    plus = c.add("Add", [c.add("Erf", [inner]), one] if c.r.random() < 0.5 else [one, c.add("Erf", [inner])])
    how = c.r.choice("abc")
    if how == "a":
        return c.add("Mul", [c.add("Mul", [x, plus]), half])
    if how == "b":
        return c.add("Mul", [plus, c.add("Mul", [half, x])])
    return c.add("Mul", [x, c.add("Mul", [plus, half])])


def _mask(c: Case, *shape: int) -> str:
    kinds = ["Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"]
    other = c.r.choice([lambda: c.keep(np.int64(1)), lambda: c.ints(1), lambda: c.ids(*shape), lambda: c.ints(*range(shape[-1]))])()
    both = [c.ids(*shape), other] if c.r.random() < 0.6 else [other, c.ids(*shape)]
    return c.r.choice([lambda: c.add(c.r.choice(kinds), both), lambda: c.add("Cast", [c.ids(*shape)], to=BOOL)])()


def masked(kind: str) -> Maker:
    def made(c: Case) -> str:
        mask = {
            "Not": lambda: c.add("Not", [_mask(c, 2, 3)]), "And": lambda: c.add("And", [_mask(c, 2, 3), _mask(c, 2, 3)]),
            **{both: lambda both=both: c.add(both, [_mask(c, 2, 3), _mask(c, 2, 3)]) for both in ("Or", "Xor")},
        }.get(kind, lambda: c.add(kind, [c.ids(2, 3), c.ids(2, 3)]))()
        if c.r.random() < 0.5:
            mask = c.add("Squeeze", [c.add("Unsqueeze", [mask, c.ints(1)]), c.ints(1)])
        return c.add("Mul", [c.add("Cast", [mask], to=FLOAT), c.x(2, 3)])

    return made


def where(c: Case) -> str:
    low = c.keep(np.float32(c.r.choice([0, -1e4, -3e38, -np.inf])))
    choices = c.r.choice([[c.x(2, 3), low], [low, c.x(2, 3)], [c.w(2, 3), c.x(2, 3)], [c.x(2, 3), c.w(3)]])
    fixed = c.keep(np.array([[True, False, True]]))
    return c.add("Where", [c.r.choice([fixed, _mask(c, 2, 3)]), *choices])


def cast(c: Case) -> str:
    x = c.r.choice([lambda: c.ids(2, 3), lambda: c.x(2, 3), lambda: _mask(c, 2, 3), lambda: c.add("Cast", [c.ids(2, 3)], to=6)])()
    return c.add("Mul", [c.add("Cast", [x], to=FLOAT), c.x(2, 3)])


def rows(c: Case) -> str:
    """Convolution of (N, C, L)."""
    group, k = c.r.choice([1, 2]), c.r.randint(1, 3)
    said = c.r.choice([{"pads": [1, 2]}, {"auto_pad": "SAME_UPPER"}, {"strides": [2]}, {"dilations": [2], "kernel_shape": [k]}])
    weight = c.w(2 * group, 2, k)
    return c.add("Conv", [c.x(2, 2 * group, c.r.randint(5, 7)), weight, *c.r.choice([[], [c.w(2 * group)]])], group=group, **said)


def conv_transpose(c: Case) -> str:
    kernel = [c.r.randint(2, 3), c.r.randint(2, 3)]  # in one group: onnx's evaluator fails with several
    said: dict[str, Any] = {"strides": c.r.choice([None, [2, 2]]), "dilations": c.r.choice([None, [1, 2]])}
    said["pads"] = c.r.choice([None, [1, 0, 1, 0], [1, 1, 0, 1]])
    if said["strides"]:
        said["output_padding"] = c.r.choice([None, [1, 0]])
    weight = c.w(2, 3, *kernel)
    return c.add("ConvTranspose", [c.x(2, 2, 3, 4), weight, *c.r.choice([[], [c.w(3)]])], **said)


def padded(c: Case) -> str:
    mode = c.r.choice([None, "constant", "reflect", "edge"])
    pads, rest = c.r.choice([([0, 1, 0, 2], []), ([1, 0], ["", c.ints(1)]), ([0, 0, 1, 1], [])])
    value = [c.keep(np.float32(0.5))] if mode in (None, "constant") and not rest and c.r.random() < 0.5 else []
    return c.add("Pad", [c.x(3, 4), c.ints(*pads), *value, *rest], mode=mode)


def resized(c: Case) -> str:
    mode = c.r.choice(["nearest", "linear", "cubic"])
    how = c.r.choice(["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"])
    x, said = c.x(2, 2, 4, 5), {"mode": mode, "coordinate_transformation_mode": how}
    if mode == "nearest":
        said["nearest_mode"] = c.r.choice([None, "floor"])
    if c.r.random() < 0.5:
        return c.add("Resize", [x, "", c.keep(np.array([1, 1, 2, c.r.choice([1, 1.5, 3])], np.float32))], **said)
    return c.add("Resize", [x, "", "", c.ints(2, 2, c.r.choice([3, 8]), 5)], **said)


def old_resized(c: Case) -> str:
    c.opset = 9
    return c.add("Upsample", [c.x(2, 2, 4, 3), c.keep(np.array([1, 1, 2, c.r.choice([1, 2])], np.float32))], mode="nearest")


def sampled(c: Case) -> str:
    mode = c.r.choice([None, "nearest", "linear", "cubic"])  # as opset 20 has them: onnx's evaluator knows no older names
    padding = c.r.choice([None, "zeros", *([] if mode == "cubic" else ["border", "reflection"])])
    x, grid = c.x(2, 3, 4, 5), c.x(2, 3, 2, 2)
    return c.add("GridSample", [x, grid], mode=mode, padding_mode=padding, align_corners=c.r.choice([None, 0, 1]))


def pixels(kind: str) -> Maker:
    def made(c: Case) -> str:
        if kind == "SpaceToDepth":
            return c.add(kind, [c.x(2, 2, 4, 6)], blocksize=2)
        return c.add(kind, [c.x(2, 8, 2, 3)], blocksize=2, mode=c.r.choice([None, "DCR", "CRD"]))

    return made


def einsum(c: Case) -> str:
    return c.r.choice([
        lambda: c.add("Einsum", [c.x(2, 3, 4), c.w(4, 5)], equation="bij, jk -> bik"),
        lambda: c.add("Einsum", [c.x(2, 3, 4), c.x(2, 5, 4)], equation="bid,bjd->bij"),
    ])()


def recurrent(kind: str, gates: int) -> Maker:
    def made(c: Case) -> list[str]:
        direction = c.r.choice([None, "forward", "reverse", "bidirectional"])
        ways, h, i = 2 if direction == "bidirectional" else 1, c.r.randint(1, 3), c.r.randint(1, 3)
        own = [c.w(ways, gates * h, i), c.w(ways, gates * h, h), c.w(ways, 2 * gates * h)]
        count = 2 if kind == "LSTM" else 1
        first = c.r.choice([
            [], ["", *[c.keep(np.zeros((ways, 2, h), "float32")) for _ in range(count)]],
            ["", *[c.x(ways, 2, h) for _ in range(count)]],
        ])
        usual = {} if kind == "LSTM" else {"linear_before_reset": 1}
        y = c.add(kind, [c.x(3, 2, i), *own, *first], outputs=1 + count, hidden_size=h, direction=direction, **usual)
        return [y, *(f"{y}.{k + 1}" for k in range(count))]

    return made


def top_k(c: Case) -> list[str]:
    y = c.add("TopK", [c.x(3, 5), c.ints(2)], outputs=2, axis=c.r.choice([None, -1, 1]), largest=c.r.choice([None, 1, 1, 0]))
    return [y, f"{y}.1"]


def bounded(kind: str) -> Maker:
    return lambda c: c.add(kind, c.r.choice([[c.x(2, 3), c.keep(np.float32(0.2))], [c.keep(np.float32(-0.1)), c.x(4)]]))


def normed(kind: str) -> Maker:
    def made(c: Case) -> str:
        if kind == "GroupNormalization":
            c.opset, groups = 21, {"num_groups": 2}
        else:
            groups = {}
        return c.add(kind, [c.x(2, 4, 3, 2), c.w(4), c.w(4)], epsilon=c.r.choice([None, 0.1]), **groups)

    return made


def prelu(c: Case) -> str:
    return c.add("PRelu", [c.x(2, 3, 4), c.r.choice([c.w(3, 1), c.w(1), c.w(2, 3, 4)])])


MAKERS: dict[str, Maker] = {
    **{kind: unary(kind) for kind in (
        "Relu", "Sigmoid", "Tanh", "Exp", "Log", "Sqrt", "Sin", "Cos", "Abs", "HardSwish", "Identity", "Neg", "Reciprocal",
        "GlobalAveragePool",
    )},
    "Gelu": unary("Gelu", approximate=["none", "tanh"]), "LeakyRelu": unary("LeakyRelu", alpha=[0.2, -0.3, 1.5]),
    "Softmax": unary("Softmax", axis=[-1, 0, 1]), **{kind: binary(kind) for kind in ("Add", "Sub", "Mul", "Div")},
    "Pow": power, "Clip": clip, "Dropout": dropout, "ReduceMean": reduced("ReduceMean"), "ReduceSum": reduced("ReduceSum"),
    "MatMul": matmul, "Gemm": gemm, "Conv": conv, "MaxPool": pooled("MaxPool"), "AveragePool": pooled("AveragePool"),
    "BatchNormalization": batch_norm, "LayerNormalization": layer_norm, "Gather": gather, "Reshape": reshape,
    "Squeeze": squeezed("Squeeze"), "Unsqueeze": squeezed("Unsqueeze"), "Transpose": transpose, "Concat": concat, "Split": split,
    "Erf": erf, "Where": where, "Cast": cast, **{kind: masked(kind) for kind in (
        "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Not", "And", "Or",
    )},
    "Expand": expand, "Slice": sliced, "Flatten": flatten, "rows": rows, "ConvTranspose": conv_transpose, "Pad": padded,
    "Resize": resized, "Upsample": old_resized, "GridSample": sampled,
    **{kind: pixels(kind) for kind in ("DepthToSpace", "SpaceToDepth")},
    "Einsum": einsum, "LSTM": recurrent("LSTM", 4), "GRU": recurrent("GRU", 3), "TopK": top_k,
    **{kind: bounded(kind) for kind in ("Max", "Min")}, "PRelu": prelu,
    **{kind: normed(kind) for kind in ("InstanceNormalization", "GroupNormalization")},
    **{kind: reduced(kind) for kind in (
        "ReduceMax", "ReduceMin", "ReduceLogSumExp", "ReduceL1", "ReduceL2", "ReduceSumSquare",
    )},
    **{kind: unary(kind) for kind in ("Softplus", "Mish", "Selu")}, "Elu": unary("Elu", alpha=[0.5, 2.0]),
    "Celu": unary("Celu", alpha=[0.5, 2.0]), "HardSigmoid": unary("HardSigmoid", alpha=[0.3], beta=[0.4]),
    "LogSoftmax": unary("LogSoftmax", axis=[-1, 0, 1]),
    "CumSum": lambda c: c.add("CumSum", [c.x(3, 4), c.keep(np.int64(c.r.choice([0, 1, -1])))], exclusive=c.r.choice([None, 0, 1])),
    "Tile": lambda c: c.add("Tile", [c.x(2, 3), c.ints(*c.r.choice([(1, 2), (2, 1), (3, 2)]))]),
    "GlobalMaxPool": lambda c: c.add("GlobalMaxPool", [c.x(2, 3, c.r.randint(1, 4), 3)]),
    "Sum": lambda c: c.add("Sum", [c.x(2, 3), c.w(3), c.x(2, 1)]),
}


def case_of(kind: str, seed: int) -> Any:
    """A random model of one operator."""
    case = Case(Random(f"{kind} {seed}"))
    outputs = MAKERS[kind](case)
    return case.model([outputs] if isinstance(outputs, str) else outputs)
