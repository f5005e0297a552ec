"""Gradient flow: which operators have backward tasks, and which gradients these take and give."""

from __future__ import annotations

from taskflow.graph import Node, OperatorGraph
from taskflow.operators.operator import Operator, Spec

TensorKey = tuple[int, int]  # (node, output)


def gradient_flow(graph: OperatorGraph) -> tuple[set[int], set[TensorKey], set[str]]:
    """Return which nodes' backward runs, which tensors' gradients are needed, and which parameters get gradients.

    A tensor needs a gradient if a trained parameter lies upstream and a loss downstream, both through differentiable tensors that
    are actually read (a convolution may see nothing but padding).
    """
    upstream: set[TensorKey] = set()
    for node in graph:
        if node.operator.stops_gradient:
            continue
        if any(p.trained for p in node.parameters) or any((t.node, t.index) in upstream for t in node.inputs):
            upstream.update((t.node, t.index) for t in node.outputs if t.spec.differentiable)
    downstream: set[TensorKey] = {(t.node, t.index) for t in graph.losses}
    active: set[int] = set()
    seen: dict[tuple[Operator, tuple[Spec, ...]], tuple[int, ...]] = {}  # layers are alike
    for node in reversed(graph.nodes):
        reached = any((t.node, t.index) in downstream for t in node.outputs)
        if reached and any((t.node, t.index) in upstream for t in node.outputs):
            active.add(node.number)
            if (key := (node.operator, node.specs)) not in seen:
                seen[key] = _passes_on(node)
            downstream.update((node.inputs[i].node, node.inputs[i].index) for i in seen[key])
    trained = {p.name for node in graph if node.number in active for p in node.parameters if p.trained}
    return active, upstream & downstream, trained


def _passes_on(node: Node) -> tuple[int, ...]:
    """The inputs that a node reads and through which gradients flow."""
    reads = node.reads(node.space).inputs
    return tuple(i for i, (spec, rect) in enumerate(zip(node.specs, reads)) if spec.differentiable and not rect.empty)


def gradients_given(graph: OperatorGraph, active: set[int], needs: set[TensorKey]) -> list[tuple[bool, ...]]:
    """Return for each node which of its outputs' gradients its backward tasks get: those that a reader or a loss provides.
    ``active``, ``needs``: the first two results of `gradient_flow`."""
    put = {(loss.node, loss.index) for loss in graph.losses}
    result: list[tuple[bool, ...]] = []
    for node in reversed(graph.nodes):
        given = tuple((t.node, t.index) in needs and (t.node, t.index) in put for t in node.outputs)
        if node.number in active and any(given):
            put.update((t.node, t.index) for t in node.inputs)
        result.append(given)
    return result[::-1]
