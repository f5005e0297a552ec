"""from_onnx: the operator graph of an ONNX file, to plan its training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from taskflow import operators as ops
from taskflow.graph import OperatorGraph
from taskflow.models.onnx import shaping  # noqa: F401  it fills HANDLERS
from taskflow.models.onnx.handlers import HANDLERS, TURNED, Context, Unknown
from taskflow.models.onnx.needed import onnx_package
from taskflow.operators.tensor import Tensor

MOST_FOLDED = 10_000_000  # elements of a constant that is computed at the import


def from_onnx(
    model: Any, *, loss: str | None = "cross_entropy", batch: int | None = None, name: str | None = None,
    weights: dict[str, Any] | None = None,
) -> OperatorGraph:
    """Return the graph of an ONNX model or file. Its float initializers become parameters (named after the operators that read
    them). Other initializers, and values computed only from them, become constants.

    Args: ``loss``: "cross_entropy" of the first output (N, ..., classes) and an input ``labels`` (N, ...) int64, "mse_loss" of
    it and an input ``targets``, or None. ``batch``: for inputs whose first dimension has a name but no size. ``weights``: a
    dict that receives the initializers under the names of our parameters. Raises ImportError without onnx, FileNotFoundError,
    and ValueError that names the node without a counterpart, and why.
    """
    onnx = onnx_package()
    title = name or (Path(str(model)).stem if isinstance(model, (str, Path)) else model.graph.name or "model")
    if isinstance(model, (str, Path)):
        if not Path(model).is_file():
            raise FileNotFoundError(f"from_onnx: there is no file {model}")
        try:
            model = onnx.load(str(model))
        except Exception as error:  # of protobuf, for what is no model
            raise ValueError(f"from_onnx: {model} is no ONNX model: {error}") from error
        if not model.graph.node:
            raise ValueError(f"from_onnx: {title} has no nodes; is the file a whole ONNX model?")
    graph = OperatorGraph("float32", title)
    context = Context(onnx, graph, {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer})
    for value in model.graph.input:
        if value.name not in context.arrays:
            context.values[value.name] = _input(onnx, graph, value, batch)
    missing = sorted({node.op_type for node in model.graph.node if _key(node) not in HANDLERS and not _folds(context, node)})
    for node in model.graph.node:
        _follow(context, node, missing)
    if weights is not None:
        for names, parameters in context.shared.items():
            for parameter, their in zip(parameters, names.split(" ")):
                array = context.arrays[their.removesuffix(TURNED)]
                weights[parameter.name] = (array.T if their.endswith(TURNED) else array).reshape(parameter.shape)
    output = next((context.values.get(value.name) for value in model.graph.output), None)
    if not isinstance(output, Tensor):
        raise ValueError(f"from_onnx: {title}: its first output is not computed from its inputs")
    if loss == "cross_entropy":
        labels = ops.input(graph, output.shape[:-1], "int64", name="labels")
        graph.minimize(ops.cross_entropy(output, labels, name="loss"))
    elif loss == "mse_loss":
        graph.minimize(ops.mse_loss(output, ops.input(graph, output.shape, name="targets"), name="loss"))
    elif loss is not None:
        raise ValueError(f"from_onnx: loss must be 'cross_entropy', 'mse_loss' or None, got {loss!r}")
    return graph


def _input(onnx: Any, graph: OperatorGraph, value: Any, batch: int | None) -> Tensor:
    kind = value.type.tensor_type
    shape = []
    for axis, dim in enumerate(kind.shape.dim):
        size = dim.dim_value or (batch if axis == 0 else None)
        if not size:
            raise ValueError(
                f"from_onnx: input {value.name}: dimension {axis} ({dim.dim_param or 'without a name'}) has no size; "
                + ("give batch" if axis == 0 else "export the model with fixed sizes")
            )
        shape.append(size)
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type))
    if dtype.kind == "f" and dtype != graph.dtype:
        raise ValueError(f"from_onnx: input {value.name} is {dtype}; only float32")
    return ops.input(graph, tuple(shape), str(dtype), name=value.name)


def _key(node: Any) -> str:
    return str(node.op_type) if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"


def _folds(context: Context, node: Any) -> bool:
    return node.op_type == "Constant" or node.op_type == "Shape" or all(name in context.arrays for name in node.input if name)


def _follow(context: Context, node: Any, missing: list[str]) -> None:
    """One node: computed at once if its inputs are known, else as operators."""
    where = f"from_onnx: {context.graph.name}: node {node.name or node.output[0]} ({_key(node)})"
    given = [name for name in node.input if name]
    if node.op_type == "Shape" and isinstance(context.values.get(node.input[0]), Tensor) and not node.attribute:
        context.arrays[node.output[0]] = np.asarray(context.values[node.input[0]].shape, np.int64)
        return
    if node.op_type == "Constant" or (all(n in context.arrays for n in given) and not _trained(context, given)):
        context.arrays.update(zip(node.output, _computed(context, node, where)))
        return
    if _key(node) not in HANDLERS:
        others = ", ".join(kind for kind in missing if kind != node.op_type)
        raise ValueError(
            f"{where}: no counterpart{f' (nor for {others})' if others else ''}. "
            "Replace it in the model that was exported, or build the network with taskflow's operators"
        )
    try:
        made = HANDLERS[_key(node)](context, node)
    except (Unknown, ValueError, TypeError) as error:
        raise ValueError(f"{where}: {error}") from error
    made = made if isinstance(made, tuple) else (made,)
    context.values.update(zip(node.output, made))


def _trained(context: Context, names: list[str]) -> bool:
    """True if some are float initializers with several numbers, which are trained."""
    return any(n in context.initial and context.arrays[n].dtype.kind == "f" and context.arrays[n].size > 1 for n in names)


def _computed(context: Context, node: Any, where: str) -> list[Any]:
    from onnx.reference import ReferenceEvaluator

    given = {name: context.arrays[name] for name in node.input if name}
    helper = context.onnx.helper
    types = {n: helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in given.items()}
    outputs = [helper.make_empty_tensor_value_info(name) for name in node.output]
    model = helper.make_model(helper.make_graph([node], "constant", list(types.values()), outputs))
    found = [np.asarray(a) for a in ReferenceEvaluator(model).run(None, given)]
    if any(a.size > MOST_FOLDED for a in found):
        raise ValueError(f"{where}: a constant of more than {MOST_FOLDED:,} numbers")
    return found
