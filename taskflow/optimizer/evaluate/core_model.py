"""describe_model, describe_cut: tell the compiled core a graph, and cuts of its operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from taskflow.graph import Node, OperatorGraph
from taskflow.operators.operator import Spec
from taskflow.optimizer.evaluate._core import Core
from taskflow.optimizer.evaluate.equivalence import first_equal, shapes
from taskflow.regions import Rect
from taskflow.rules import UpdateRule
from taskflow.tasks.lower import gradient_flow


def describe_model(
    core: Core, graph: OperatorGraph, rule: UpdateRule | None, clips: bool, layers: Mapping[str, int],
    region: Callable[[Rect], int], listed: Callable[[list[Rect]], int],
) -> None:
    """Tell the core the graph and the update rule. ``clips``: whether gradients are clipped; ``layers``: their numbers by name;
    ``region`` and ``listed`` give the core's numbers of a Rect and of a list of them."""
    if rule is None:
        core.rule(False, 0, 0, 0, clips)
    else:
        core.rule(True, rule.state_bytes(4), rule.state_bytes(8), rule.flops(1), clips)
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


def describe_cut(core: Core, node: Node, rects: Sequence[Rect], local: bool, listed: Callable[[list[Rect]], int]) -> int:
    """Tell the core an operator's pieces, and return its number of the cut. ``local``: each is computed for what reads it on its
    own processor (`Piece.local`). ``listed`` gives the core's number of a list of Rects."""
    operator, specs = node.operator, node.specs
    reads, writes = [node.reads(rect) for rect in rects], [node.writes(rect) for rect in rects]
    saves = [operator.saves(specs, rect) for rect in rects]
    flops = [operator.flops(specs, rect) for rect in rects]
    backward = [operator.backward_flops(specs, rect) for rect in rects]
    return core.add_cut(
        len(rects),
        local,
        [listed([r.inputs[i] for r in reads]) for i in range(len(node.inputs))],
        [listed([r.weights[i] for r in reads]) for i in range(len(node.parameters))],
        [listed([w[i] for w in writes]) for i in range(len(node.outputs))],
        first_equal(zip(map(shapes, rects, reads, writes, saves), flops, backward)) if len(rects) > 1 else [0],
        flops,
        backward,
        [
            [_nbytes(r.inputs, specs) for r in reads],
            [_nbytes(r.weights, [p.spec for p in node.parameters]) for r in reads],
            [_nbytes(w, [t.spec for t in node.outputs]) for w in writes],
            [sum(spec.nbytes for spec in saved) for saved in saves],
        ],
    )


def _nbytes(rects: Sequence[Rect], specs: Sequence[Spec]) -> int:
    return sum([rect.volume * spec.dtype.itemsize for rect, spec in zip(rects, specs)])
