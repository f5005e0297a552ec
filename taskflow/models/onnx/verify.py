"""Verification of an import: predictions of the graph on random numbers are those of onnx's reference evaluator."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from taskflow.machine import host
from taskflow.mapper import choose
from taskflow.models.onnx.context import Context
from taskflow.models.onnx.follow import FollowedModel, follow, numbers_of
from taskflow.models.onnx.needed import evaluator_of, first_line
from taskflow.operators.tensor import Tensor
from taskflow.runtime import Executor

MOST_PARAMETERS = 50_000_000  # of what is verified: some copies of them are in memory then
MOST_FLOPS = 2e10  # of one forward pass of what is verified: some ten seconds of the reference evaluator, which is numpy
MOST_ELEMENTS = 200_000_000  # of one array of what is verified
FEW_FLOPS = 1e8  # what costs no more is verified with the batch that is given
BATCH = 2  # of what costs more, where the file leaves the batch open
CLOSE = 1e-3  # of the largest number: both sides compute in float32, and may sum in another order
ZEROS = 0.05  # of the numbers that are fed

Numbers = dict[str, Any]


def verified(onnx: Any, model: Any, followed: FollowedModel, batch: int | None) -> None:
    """Raise ValueError that names the first node in which graph and file differ, in prediction (with running statistics, without
    dropout). Warns if the model is too large to be run, or onnx's evaluator cannot run it."""
    title, small = followed.graph.name, followed
    if batch is not None and batch > BATCH and _flops(followed) > FEW_FLOPS:
        small = follow(onnx, model, title, BATCH)
    count, flops = small.graph.parameter_count, _flops(small)
    if count > MOST_PARAMETERS or flops > MOST_FLOPS:
        _unverified(
            title, f"{count:,} parameters and {flops:.2g} operations a step are more than {MOST_PARAMETERS:,} or {MOST_FLOPS:.2g}"
        )
        return
    if (largest := max(tensor.spec.rect.volume for node in small.graph for tensor in node.outputs)) > MOST_ELEMENTS:
        _unverified(title, f"an array of {largest:,} numbers is longer than {MOST_ELEMENTS:,}")
        return
    numbers = np.random.default_rng(0)
    arrays = _near(small, numbers)
    feeds = _feeds(small.context, numbers)
    outputs = {v.name: small.context.values[v.name] for v in model.graph.output if v.name in small.context.values}
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            evaluator = evaluator_of(_for_prediction(onnx, model, arrays))
            theirs = dict(zip(outputs, evaluator.run(list(outputs), feeds)))
    except Exception as error:  # whatever its arithmetic raises
        _unverified(title, f"onnx's reference evaluator cannot run it ({type(error).__name__}: {first_line(error)})")
        return
    run = Executor(small.graph, choose("data", small.graph, host(1))[0], machine=host(1))
    run.set_parameters(numbers_of(small.account, arrays))
    ours = _predicted(run, feeds, outputs)
    if not all(same(ours[name], theirs[name]) for name in outputs):
        raise ValueError(
            f"from_onnx: {title}: the graph does not compute what onnx's reference evaluator computes: "
            f"{_located(evaluator, small, run, feeds)} differs. Replace that part, or pass verify=False to import it all the same"
        )


def same(ours: Any, theirs: Any) -> bool:
    """True if two arrays are equal up to rounding."""
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    if ours.shape != theirs.shape:
        return False
    if not theirs.size:
        return True
    equal = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
    with np.errstate(invalid="ignore"):
        off = np.where(equal, 0.0, np.abs(ours - theirs))
    return bool(off.max() <= CLOSE * np.abs(theirs[np.isfinite(theirs)]).max(initial=0.0))


def _unverified(title: str, why: str) -> None:
    warnings.warn(f"from_onnx: {title} was not verified: {why}; pass verify=False to import it without this line", stacklevel=4)


def _flops(followed: FollowedModel) -> float:
    return float(sum(node.operator.flops(node.specs, node.space) for node in followed.graph))


def _near(followed: FollowedModel, numbers: np.random.Generator) -> Numbers:
    """The file's arrays; those that are trained with some noise, since zeros and ones would hide mistakes."""
    context, account = followed.context, followed.account
    found = dict(context.arrays)
    for name in {*account.parameters, *account.states} & context.initial:
        array = context.arrays[name]
        noise = numbers.standard_normal(array.shape)
        if any(state.endswith("running_var") for state in account.states.get(name, ())):  # a variance stays positive
            found[name] = (array * (1 + 0.3 * np.tanh(noise))).astype(array.dtype)
        else:
            found[name] = (array + 0.1 * noise * (np.abs(array).mean() + 0.1)).astype(array.dtype)
    return found


def _for_prediction(onnx: Any, model: Any, arrays: Numbers) -> Any:
    """A copy of the model with these arrays, and with what only training does left out."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    for initializer in result.graph.initializer:
        initializer.CopyFrom(onnx.numpy_helper.from_array(np.ascontiguousarray(arrays[initializer.name]), initializer.name))
    for node in result.graph.node:
        if node.op_type == "BatchNormalization":
            kept = [a for a in node.attribute if a.name == "epsilon"]
            del node.attribute[:], node.output[1:]
            node.attribute.extend([*kept, onnx.helper.make_attribute("momentum", 1.0)])  # before opset 14 it mixes statistics
        elif node.op_type == "Dropout":
            del node.input[2:]
        elif node.op_type == "MaxPool":  # the evaluator pads twice for ceil_mode, which changes nothing in steps of 1
            attrs = {a.name: a for a in node.attribute}
            if "ceil_mode" in attrs and set(attrs["strides"].ints if "strides" in attrs else [1]) == {1}:
                attrs["ceil_mode"].i = 0
    return result


def _feeds(context: Context, numbers: np.random.Generator) -> Numbers:
    """Random numbers for every input; integers are below the limit of the operators that read them."""
    found, graph = {}, context.graph
    for name, tensor in context.values.items():
        if graph.nodes[tensor.node].operator.kind != "input" or name in context.made_by:
            continue
        if tensor.dtype.kind == "f":
            values: Any = numbers.standard_normal(tensor.shape)
            values[numbers.random(tensor.shape) < ZEROS] = 0.0
        else:
            readers = [n.operator.integers_below(n.specs) for n in graph if tensor in n.inputs]
            highest = min((below for below in readers if below is not None), default=2)
            values = numbers.integers(0, highest, tensor.shape)
        found[name] = values.astype(tensor.dtype)
    return found


def _predicted(run: Executor, feeds: Numbers, outputs: dict[str, Tensor]) -> Numbers:
    found = run.predict(feeds, list(outputs.values()))
    return {name: found[tensor.name] for name, tensor in outputs.items()} if found is not None else {}


def _located(evaluator: Any, followed: FollowedModel, run: Executor, feeds: Numbers) -> str:
    """The first node whose result differs."""
    values = {
        name: (node, followed.context.values[name]) for node in followed.nodes for name in node.output
        if name in followed.context.made_by
    }
    theirs = evaluator.run(None, feeds, intermediate=True)
    ours = _predicted(run, feeds, {name: tensor for name, (_, tensor) in values.items()})
    for name, (node, _) in values.items():
        if name in theirs and not same(ours[name], np.asarray(theirs[name], np.asarray(ours[name]).dtype)):
            return f"the result of node {node.name or name} ({node.op_type})"
    return "an output"
