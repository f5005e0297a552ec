"""Graph of an ONNX model: one node after the other, with an account of the initializers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from taskflow import operators as ops
from taskflow.graph import OperatorGraph
from taskflow.models.onnx import handlers, layers, masks, numbers, resizing  # noqa: F401  they fill HANDLERS
from taskflow.models.onnx.context import HANDLERS, Account, Context, Truth, Unknown, name_of, read_as
from taskflow.models.onnx.needed import evaluator_of, first_line
from taskflow.models.onnx.patterns import with_gelu, with_layer_norm
from taskflow.operators.tensor import Tensor

MOVES = {"Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Concat", "Split", "Expand", "Slice", "Gather"}
MOST_FOLDED = 10_000_000  # elements of a constant that is computed at the import
DOMAINS = ("", "ai.onnx")
CHOOSES = {
    "If": "chooses between two graphs when it runs, and a plan is of one: export the model with the condition fixed",
    "Loop": "runs a graph a number of times that is known when it runs: export the model with the loop unrolled",
    "Scan": "runs a graph once for each step: export the model with the loop unrolled",
    "SequenceMap": "runs a graph once for each tensor of a sequence: export the model without sequences",
}
RANDOM = {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial"}


@dataclass(frozen=True, slots=True)
class FollowedModel:
    """A model's graph without a loss. ``nodes``: those that some output needs, in order. ``account``: of its initializers."""

    graph: OperatorGraph
    context: Context
    nodes: tuple[Any, ...]
    account: Account


def follow(onnx: Any, model: Any, title: str, batch: int | None) -> FollowedModel:
    """Return the graph of a model without a loss, with an account of its initializers. Raises ValueError as `from_onnx`."""
    for sparse in model.graph.sparse_initializer:
        raise ValueError(f"from_onnx: {title}: initializer {sparse.values.name} is sparse; only dense ones are understood")
    graph = OperatorGraph("float32", title)
    arrays = {t.name: _array(onnx, t, title) for t in model.graph.initializer}
    opset = max((o.version for o in model.opset_import if o.domain in DOMAINS), default=onnx.defs.onnx_opset_version())
    context = Context(onnx, graph, opset, arrays)
    nodes, constants = with_gelu(onnx, _needed(model), {v.name for v in model.graph.output}, _number_in(onnx, model, arrays))
    vectors = {name for name, array in arrays.items() if array.ndim == 1 and array.size > 1}
    nodes, more = with_layer_norm(onnx, nodes, {v.name for v in model.graph.output}, _number_in(onnx, model, arrays), vectors)
    context.constants |= (constants | more) & arrays.keys()
    for node in nodes:
        if _key(node) in CHOOSES:
            raise ValueError(f"from_onnx: {title}: node {name_of(node)} ({_key(node)}): {CHOOSES[_key(node)]}")
    read = {name for node in nodes for name in node.input} | {value.name for value in model.graph.output}
    for value in model.graph.input:
        if value.name not in arrays and value.name in read:
            tensor = _input(onnx, graph, value, batch)
            if tensor.dtype.kind == "b":
                context.truth.add(value.name)
                tensor = ops.to_float(tensor, name=f"{value.name}.floats")
            context.values[value.name] = tensor
    missing = sorted({_key(node) for node in nodes if _key(node) not in HANDLERS and not _folds(context, node)})
    for node in nodes:
        _follow(context, node, missing)
    for value in model.graph.output:
        if value.name not in context.values and value.name not in context.arrays and value.name not in context.also:
            why = context.left_out.get(value.name)
            reason = f"{why} have no counterpart here" if why else "no node makes it"
            raise ValueError(f"from_onnx: {title}: output {value.name}: {reason}")
    account = context.account()
    if both := sorted(name for name in account.parameters.keys() & account.constants if context.arrays[name].ndim > 1):
        raise ValueError(f"from_onnx: {title}: initializer {both[0]} is trained by one node and is a fixed number of another")
    return FollowedModel(graph, context, nodes, account)


def numbers_of(account: Account, arrays: dict[str, Any]) -> dict[str, Any]:
    """Return the file's numbers under the names of our parameters and states."""
    found = {
        p.name: read_as(arrays[name], turned) for name, own in account.parameters.items() for p, turned in own
    }
    return found | {state: arrays[name] for name, states in account.states.items() for state in states}


# ---- the file ------------------------------------------------------------------------------------------------------------


def _array(onnx: Any, initializer: Any, title: str) -> Any:
    try:
        return np.asarray(onnx.numpy_helper.to_array(initializer))
    except Exception as error:  # such as too few numbers, or a file of weights that was not loaded
        raise ValueError(f"from_onnx: {title}: initializer {initializer.name} cannot be read: {first_line(error)}") from error


def _number_in(onnx: Any, model: Any, arrays: dict[str, Any]) -> Callable[[str], float | None]:
    """A function that returns the only number of an initializer or of a Constant, by name; None for any other name."""
    known = {name: array for name, array in arrays.items() if array.size == 1}
    for node in model.graph.node:
        for attribute in node.attribute if node.op_type == "Constant" and node.output else ():
            value = onnx.helper.get_attribute_value(attribute)
            if attribute.name in ("value", "value_float"):
                tensor = attribute.name == "value"
                known[node.output[0]] = _array(onnx, value, model.graph.name) if tensor else np.asarray(value)
    return lambda name: float(known[name].reshape(-1)[0]) if name in known and known[name].size == 1 else None


def _needed(model: Any) -> tuple[Any, ...]:
    """The nodes that some output needs, in the file's order."""
    wanted, found = {value.name for value in model.graph.output}, []
    for node in reversed(model.graph.node):
        if wanted & {name for name in node.output if name} or (not node.output and node.input):
            wanted |= {name for name in node.input if name}
            found.append(node)
    return tuple(reversed(found))


def _input(onnx: Any, graph: OperatorGraph, value: Any, batch: int | None) -> Tensor:
    kind = value.type.tensor_type
    shape = []
    if not value.type.HasField("tensor_type") or not kind.shape.dim:
        what = "a single number" if value.type.HasField("tensor_type") else "no tensor"
        raise ValueError(f"from_onnx: input {value.name} is {what}; only tensors with samples in their first dimension are fed")
    for axis, dim in enumerate(kind.shape.dim):
        size = dim.dim_value or (batch if axis == 0 else None)
        if not size:
            raise ValueError(
                f"from_onnx: input {value.name}: dimension {axis} ({dim.dim_param or 'without a name'}) has no size; "
                + ("give batch" if axis == 0 else "export the model with fixed sizes")
            )
        shape.append(size)
    try:
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type))
    except KeyError:
        raise ValueError(f"from_onnx: input {value.name} has a type that onnx does not know ({kind.elem_type})") from None
    if dtype.kind not in "iub" and dtype != graph.dtype:
        raise ValueError(f"from_onnx: input {value.name} is {dtype}; only float32")
    return ops.input(graph, tuple(shape), str(dtype), name=value.name)


# ---- nodes -------------------------------------------------------------------------------------------------------------------


def _key(node: Any) -> str:
    return str(node.op_type) if node.domain in DOMAINS else f"{node.domain}.{node.op_type}"


def _folds(context: Context, node: Any) -> bool:
    return node.op_type in ("Constant", "Shape") or all(name in context.arrays for name in node.input if name)


def _follow(context: Context, node: Any, missing: Sequence[str]) -> None:
    """One node: computed at once if its inputs are known, else as operators."""
    where = f"from_onnx: {context.graph.name}: node {name_of(node)} ({_key(node)})"
    context.read.clear()
    try:
        _require_names(context, node)
        if _is_known(context, node):
            return
        if _key(node) not in HANDLERS:
            others = ", ".join(kind for kind in missing if kind != _key(node))
            raise Unknown(
                f"no counterpart{f' (nor for {others})' if others else ''}. "
                "Replace it in the model that was exported, or build the network with taskflow's operators"
            )
        truths = [name in context.truth for name in node.input]
        context.moving = _key(node) in MOVES and truths[0] and (_key(node) != "Concat" or all(truths))
        result = HANDLERS[_key(node)](context, node)
        if unread := [name for name in node.input if name and name not in context.read]:
            what = "initializer" if context.weight_at(unread[0]) is not None else "input"
            raise Unknown(f"{what} {unread[0]} would be left out")
    except (Unknown, ValueError, TypeError, KeyError, IndexError, OverflowError, ZeroDivisionError, AttributeError) as error:
        why = str(error) if isinstance(error, ValueError) else _unfit(context, node)
        raise ValueError(f"{where}: {why}") from error
    for name, tensor in zip(node.output, result if isinstance(result, tuple) else (result,)):
        if context.moving or isinstance(tensor, Truth):
            context.truth.add(name)
        context.values[name] = tensor.tensor if isinstance(tensor, Truth) else tensor
        context.made_by[name] = node


def _unfit(context: Context, node: Any, else_said: str = "") -> str:
    """What is wrong with a node whose inputs and attributes are not those of its operator, as onnx's own check says."""
    checker = context.onnx.checker
    about = checker.C.CheckerContext()
    about.ir_version, about.opset_imports = context.onnx.IR_VERSION, {"": context.opset}
    try:
        checker.check_node(node, about)
    except Exception as error:  # whatever onnx finds
        return first_line(error)
    return else_said or f"inputs or attributes that {node.op_type} of opset {context.opset} cannot have"


def _require_names(context: Context, node: Any) -> None:
    """Raise Unknown for an input that nobody makes, and for an output that there is already."""
    for name in filter(None, node.input):
        if name in context.left_out and name not in context.values:
            raise Unknown(f"reads {name}: {context.left_out[name]} have no counterpart here")
        if not (name in context.values or name in context.arrays or name in context.also):
            raise Unknown(f"reads {name!r}, which no input, initializer or earlier node makes")
    for name in filter(None, node.output):
        if name in context.values or name in context.arrays or name in context.also:
            raise Unknown(f"writes {name!r}, which is there already")
    if not any(node.input) and node.op_type != "Constant":
        raise Unknown("reads nothing: its inputs have empty names" if node.input else "makes numbers of nothing")
    if _key(node) in RANDOM:
        raise Unknown("draws random numbers when it runs; only Dropout may")


def _is_known(context: Context, node: Any) -> bool:
    """True if a node's output is known at once, and entered: another name of an initializer, or numbers."""
    given, kind = [name for name in node.input if name], _key(node)
    if kind == "Shape" and given[0] not in context.arrays:
        known = context.weight_at(given[0])
        whole = context.values[given[0]].shape if known is None else known.array.shape
        attrs = context.attributes(node, start=0, end=None)
        context.arrays[node.output[0]] = np.asarray(whole[attrs["start"] : attrs["end"]], np.int64)
        return True
    trained = any(context.is_parameter(name) for name in given)
    original = context.weight_at(given[0]) if given else None
    if trained and original is not None and (kind == "Identity" or (kind == "Transpose" and _turns(context, node))):
        context.also[node.output[0]] = original.name, original.turned != (kind == "Transpose")
        return True
    if kind == "Constant" or (all(n in context.arrays for n in given) and (not trained or kind == "Shape")):
        context.arrays.update(zip(node.output, _computed(context, node)))
        context.constants.update(name for name in given if not (trained and kind == "Shape"))
        return True
    return False


def _turns(context: Context, node: Any) -> bool:
    known = context.weight_at(next(filter(None, node.input)))
    perm = context.attributes(node, perm=[1, 0])["perm"]
    return known is not None and known.array.ndim == 2 and list(perm) == [1, 0]


def _computed(context: Context, node: Any) -> list[Any]:
    given, helper = {name: context.arrays[name] for name in node.input if name}, context.onnx.helper
    types = {n: helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in given.items()}
    outputs = [helper.make_empty_tensor_value_info(name) for name in node.output]
    graph = helper.make_graph([node], "constant", list(types.values()), outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", context.opset)])
    try:
        found = [np.asarray(a) for a in evaluator_of(model).run(None, given)]
    except Exception as error:  # whatever its arithmetic raises
        raise Unknown(f"cannot be computed of constants: {_unfit(context, node, first_line(error))}") from error
    if any(a.size > MOST_FOLDED for a in found):
        raise Unknown(f"a constant of more than {MOST_FOLDED:,} numbers")
    return found
