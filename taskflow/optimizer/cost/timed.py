"""Timed operators: seconds of a piece's task on a device whose operators were timed (`taskflow.machine.Timed`).

A layer or function of a framework becomes several operators here, which it computes in one kernel or a few: a normalisation six, an
attention five. Where the graph says which operators are one call (`OperatorGraph.calls`), one of them has the whole call's time and
the others none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from taskflow.graph import Node, OperatorGraph
from taskflow.machine import Device
from taskflow.operators.operator import Operator, Spec, Work
from taskflow.optimizer.cost.library import FUSED, Spent
from taskflow.optimizer.cost.phases import arrays
from taskflow.programs import KINDS
from taskflow.regions import Rect
from taskflow.rules import Adam, UpdateRule

VIEWS = frozenset({
    "view", "transpose", "permute", "unsqueeze", "squeeze", "expand", "split", "chunk", "getitem", "unbind", "t", "swapaxes",
    "narrow", "flatten", "unflatten", "select", "slice", "identity", "detach",
})  # fmt: skip
"""Calls that copy nothing."""

NAMES = {
    "conv1d": "conv2d", "maxpool2d": "pool", "max_pool2d": "pool", "avg_pool2d": "pool", "avgpool2d": "pool", "linear": "linear",
    "scaled_dot_product_attention": "attention", "layernorm": "layer_norm", "rmsnorm": "rms_norm", "batchnorm2d": "batch_norm",
    "batchnorm1d": "batch_norm", "newgelu": "gelu", "sub": "add", "iadd": "add", "radd": "add", "rmul": "mul", "imul": "mul",
    "contiguous": "turned", "reshape": "view", "log_softmax": "softmax", "relu_": "relu", "crossentropyloss": "cross_entropy",
    "adaptive_avg_pool2d": "mean", "adaptiveavgpool2d": "mean", "sum": "mean", "pow": "mul", "div": "mul",
}  # fmt: skip
"""Of calls and operators that a probe has under another name."""

GROUPS = {"conv2d": "convolution", "attention": "attention", "linear": "product", "matmul": "product", "embedding": "embedding",
          "batch_norm": "batch_norm", "pool": "pool", "turned": "copy", "view": "view", "depthwise": "convolution",
          "lstm": "recurrent", "gru": "recurrent", "rms_norm_parts": "norm"}  # fmt: skip

OF_FUNCTIONS = {"rms_norm": "rms_norm_parts", "rotary": "rotary", "swiglu": "swiglu"}
"""Of operators that stand for several functions of a framework, a probe's name where no module has it as one. The last of these
functions is the call that is known."""


OF_EXPERTS = ("routed_linear", "expert_linear")
PRODUCTS_OF_EXPERTS = 3  # of a gated layer, of which the leading operator is one


@dataclass(frozen=True, slots=True)
class CallPart:
    """Place of an operator in its call: the call's name, and whether this operator has the call's time."""

    name: str
    leads: bool


def parts_of(graph: OperatorGraph) -> Mapping[str, CallPart]:
    """Return the place of each operator that is part of a call."""
    calls: dict[int, list[Node]] = {}
    for node in graph:
        if (call := graph.calls.get(node.name)) is not None:
            calls.setdefault(call.number, []).append(node)
    found = {}
    for nodes in calls.values():
        if _is_several(nodes):
            continue
        leader, name = _leader(nodes), _named(graph, nodes)
        found.update({node.name: CallPart(name, node is leader) for node in nodes})
    return found


def _is_several(nodes: Sequence[Node]) -> bool:
    products = [node.operator for node in nodes if node.operator.work is not Work.MEMORY]
    return len(products) > 1 and not any(one.kind in OF_EXPERTS for one in products)


def _leader(nodes: Sequence[Node]) -> Node:
    """The operator that multiplies, of equal ones the first; if there is none the last of those that make most."""
    return max(nodes, key=lambda node: (
        node.operator.work is not Work.MEMORY, node.operator.flops(node.specs, node.space) if node.operator.work is not Work.MEMORY
        else sum(out.spec.nbytes for out in node.outputs), node.number if node.operator.work is Work.MEMORY else -node.number,
    ))  # fmt: skip


def _named(graph: OperatorGraph, nodes: Sequence[Node]) -> str:
    what = graph.calls[nodes[0].name].what.lower()
    first = nodes[0]
    if any(node.operator.kind in OF_EXPERTS for node in nodes):
        return "experts"
    if what in ("reshape", "contiguous", "flatten"):  # copies what was turned, and nothing else
        before = graph.nodes[first.inputs[0].node].operator.kind if first.inputs else ""
        return "turned" if before == "transpose" else "view"
    name, kind = "view" if what in VIEWS else NAMES.get(what, what), _leader(nodes).operator.kind
    if name == "conv2d":
        return name_of(_leader(nodes).operator)
    return OF_FUNCTIONS[kind] if kind in OF_FUNCTIONS and name != kind else name


def name_of(operator: Operator) -> str:
    """Return a probe's name for an operator by itself."""
    if operator.work is Work.CONTRACTION:
        return "attention" if operator.kind in FUSED else "linear"
    if operator.work is Work.CONVOLUTION:
        groups = getattr(operator, "groups", 1)
        return "depthwise" if groups > 1 and groups == getattr(operator, "out_channels", 0) else "conv2d"
    return "view" if operator.kind in ("reshape", "scale", "input", "state") else NAMES.get(operator.kind, operator.kind)


def untimed(graph: OperatorGraph, device: Device) -> list[str]:
    """Return a probe's names for what the graph has and a device's timed operators lack: others of a group stand for it, or rates
    do. Nothing for a device of which nothing was timed."""
    parts, known, found = parts_of(graph), {one.name for one in device.timed}, dict[str, None]()
    for node in graph if known else ():
        part = parts.get(node.name)
        name = part.name if part is not None else name_of(node.operator)
        if (part is None or part.leads) and name not in (*known, "view", "constant"):
            found[name] = None
    return list(found)


def timed_spent(
    device: Device, operator: Operator, inputs: Sequence[Spec], piece: Rect, backward: bool, wanted: Sequence[bool],
    adds: Sequence[bool], dtype: object, part: CallPart | None = None,
) -> Spent | None:
    """Return the seconds of a piece's task on a device whose operators were timed; None if nothing like it was. ``part``: its place
    in its call."""
    touched = arrays(operator, tuple(inputs), piece)
    device_seconds = host_seconds = 0.0
    if part is None or part.leads:
        name = part.name if part is not None else name_of(operator)
        group = group_of(name, operator)
        if operator.kind == "input" or (backward and operator.kind == "state"):
            return Spent(0.0, 0.0)
        if (found := device.timed_of(name, group, backward, dtype)) is None:
            return None
        flops, nbytes = size_of(name, operator, inputs, piece)
        share = _wanted_share(operator, inputs, wanted) if backward else 1.0
        device_seconds, host_seconds = share * found.seconds(flops, nbytes), found.host_seconds(flops, nbytes)
    for nbytes in _added(touched.inputs, touched.weight_gradients, adds):
        if (sums := device.timed_of("add", "residual", False, dtype)) is not None:
            device_seconds += sums.seconds(0.0, 3.0 * nbytes)
            host_seconds += sums.host_seconds(0.0, 3.0 * nbytes)
    return Spent(device_seconds, host_seconds)


def size_of(name: str, operator: Operator, inputs: Sequence[Spec], piece: Rect) -> tuple[float, float]:
    """Return the operations and bytes of forward by which a piece of an operator is found among those that were timed."""
    touched = arrays(operator, tuple(inputs), piece)
    flops = 0.0 if operator.work is Work.MEMORY else float(operator.flops(inputs, piece))
    if name == "embedding":
        flops = float(sum(touched.output_elements))  # the rest of the table is not looked at
    if name == "experts":  # rows come and go, and there are as many weights for each product
        nbytes = touched.inputs[0] + sum(touched.inputs) + PRODUCTS_OF_EXPERTS * sum(touched.weights)
        return PRODUCTS_OF_EXPERTS * flops, float(nbytes)
    inputs_read = touched.inputs[:1] if name == "batch_norm" else touched.inputs  # its statistics are part of the call
    return flops, float(sum(inputs_read) + sum(touched.weights) + sum(touched.outputs))


def group_of(name: str, operator: Operator) -> str:
    """Return the group of operators that work alike."""
    return "product" if operator.work is Work.CONTRACTION and name != "attention" else GROUPS.get(name, KINDS.get(name, "other"))


def _wanted_share(operator: Operator, inputs: Sequence[Spec], wanted: Sequence[bool]) -> float:
    """Of the products of a backward pass, the part that is wanted: not of the gradients of data."""
    if operator.work is Work.MEMORY:
        return 1.0
    counted = 1 if operator.work is Work.RECURRENT else len(inputs)  # first states take no products of their own
    floats = [want for want, spec in zip(wanted[:counted], inputs) if spec.differentiable]
    most = max(2, len(floats) + (len(floats) < 2))
    return (most - len(floats) + sum(floats) - operator.frozen) / most


def _added(inputs: Sequence[int], weights: Sequence[int], adds: Sequence[bool]) -> Iterator[int]:
    yield from (nbytes for nbytes, added in zip((*inputs, *weights), adds) if added)


def timed_memory(device: Device, kind: str, nbytes: float, rule: UpdateRule | None) -> float | None:
    """Return the seconds of a task that is no operator's; None if nothing like it was timed."""
    name = "add"
    if kind == "update":
        name = "adam" if isinstance(rule, Adam) else "momentum"
    found = device.timed_of(name, "update" if kind == "update" else "residual", False, np.dtype("float32"))
    return None if found is None else found.seconds(0.0, nbytes)
