"""lower: operator graph + strategy -> the tasks of one step. The only place that decides what moves where."""

from __future__ import annotations

from collections.abc import Sequence

from taskflow.graph import OperatorGraph
from taskflow.mapper.strategy import Strategy
from taskflow.operators.tensor import Parameter, Tensor
from taskflow.regions import Rect
from taskflow.rules import UpdateRule
from taskflow.tasks.backward import backward, gradient_flow
from taskflow.tasks.emit import Emitter
from taskflow.tasks.forward import forward
from taskflow.tasks.lowering import Lowering, Piece, SourceSelector
from taskflow.tasks.parameters import lay_out
from taskflow.tasks.synchronise import synchronise
from taskflow.tasks.task import TaskGraph


def lower(
    graph: OperatorGraph,
    strategy: Strategy,
    rule: UpdateRule | None,
    *,
    clip_norm: float | None = None,
    fetch: Sequence[Tensor] = (),
    select_source: SourceSelector | None = None,
    prefix: str = "",
) -> TaskGraph:
    """The tasks of one step of ``graph`` cut and placed by ``strategy``.

    With an update ``rule``: forward, backward, gradient sums, clipping to ``clip_norm`` and updates. Without: forward only
    (evaluation). The tensors in ``fetch``, and the losses, are brought to processor 0. Kept buffers that are not
    parameters (the state carried between steps) get ``prefix`` before their name, unless they are lasting.

    Raises ValueError that names the operator if the strategy does not fit the graph.
    """
    strategy.verify(graph)
    emit = Emitter(strategy.processors)
    pieces = [cut(graph, strategy, number) for number in range(len(graph))]
    active, needs_gradient, trained = gradient_flow(graph)
    layout = lay_out(graph, parameter_uses(pieces), trained)
    state = Lowering(graph, strategy, emit, pieces, layout, active, needs_gradient, select_source, prefix)
    for bundle in layout.bundles:
        for processor in bundle.group:
            flat = emit.buffer(bundle.name, Rect((0,), (bundle.size,)), processor, bundle.dtype, kept=True)
            state.flat_weights[bundle.name, processor] = flat
    for node in graph:
        forward(state, node)
    emit.graph.bundles, emit.graph.weights = list(layout.bundles), state.flat_weights
    for tensor in (*graph.losses, *fetch):
        emit.graph.fetched[tensor.name] = state.read(tensor, tensor.spec.rect, 0)
    if rule is not None:
        for node in reversed(graph.nodes):
            if node.number in active:
                backward(state, node)
        synchronise(state, rule, clip_norm)
    for carried, becomes in graph.carries:
        _carry(state, carried, becomes)
    return emit.graph


def cut(graph: OperatorGraph, strategy: Strategy, number: int) -> list[Piece]:
    """The pieces of one node under a strategy."""
    node = graph.nodes[number]
    return [
        Piece(node, index, rect, processor, node.reads(rect), node.writes(rect))
        for index, (rect, processor) in enumerate(strategy[node.name].pieces(node))
    ]


def parameter_uses(pieces: Sequence[Sequence[Piece]]) -> dict[Parameter, dict[int, list[Rect]]]:
    """The distinct Rects of each parameter that tasks read, by processor."""
    uses: dict[Parameter, dict[int, dict[Rect, None]]] = {}
    for of_node in pieces:
        for piece in of_node:
            for parameter, rect in zip(piece.node.parameters, piece.reads.weights):
                if not rect.empty:
                    uses.setdefault(parameter, {}).setdefault(piece.processor, {})[rect] = None
    return {p: {k: list(v) for k, v in table.items()} for p, table in uses.items()}


def _carry(state: Lowering, carried: Tensor, becomes: Tensor) -> None:
    """Write next step's state. It is read by this step's tasks, so these copies wait for them."""
    for rect, processor, buffer in state.owners[carried.node, carried.index]:
        source = state.read(becomes, rect, processor)
        state.emit.transfer(f"carry {carried.name}{rect}", state.emit.whole(source), state.emit.whole(buffer))
