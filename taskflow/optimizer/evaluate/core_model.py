"""describe_model: tells the compiled core a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from taskflow.graph import OperatorGraph
from taskflow.optimizer.evaluate._core import Core
from taskflow.regions import Rect
from taskflow.rules import UpdateRule
from taskflow.tasks.lower import gradient_flow


def describe_model(
    core: Core, graph: OperatorGraph, rule: UpdateRule | None, clips: bool, layers: Mapping[str, int],
    region: Callable[[Rect], int], listed: Callable[[list[Rect]], int],
) -> None:
    """Tell the core the graph and the update rule. ``clips``: whether gradients are clipped; ``layers``: their numbers by name;
    ``region`` and ``listed`` give the core's numbers of a Rect and of a list of them."""
    core.rule(rule is not None, rule.buffers if rule else 0, rule.flops(1) if rule else 0, clips)
    active, needs, trained = gradient_flow(graph)
    for parameter in graph.parameters:
        dtype = parameter.spec.dtype
        core.add_parameter(
            layers[parameter.layer], region(parameter.spec.rect), dtype.itemsize, parameter.name in trained, dtype.num,
        )
    numbers = {p.name: i for i, p in enumerate(graph.parameters)}
    for node in graph:
        keeps = node.operator.keeps(node.specs)
        core.add_node(
            [t.node for t in node.inputs],
            [t.index for t in node.inputs],
            [numbers[p.name] for p in node.parameters],
            [t.dtype.itemsize for t in node.outputs],
            [(t.node, t.index) in needs for t in node.outputs],
            [any(t is loss for loss in graph.losses) for t in node.outputs],
            node.operator.kind == "state",
            node.number in active,
            keeps.inputs, keeps.weights, keeps.outputs,
        )
    for loss in graph.losses:
        core.add_loss(loss.node, loss.index, listed([loss.spec.rect]))
    for state, becomes in graph.carries:
        core.add_carry(state.node, state.index, becomes.node, becomes.index)
    core.finish_model()
