"""lower: operator graph + strategy -> the tasks of one step. The only place that decides which data move where."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real

import numpy as np

from taskflow.collector import paused_collector
from taskflow.graph import Node, OperatorGraph
from taskflow.mapper import OpConfig, Strategy, sample_dim, units_of
from taskflow.operators.state import State
from taskflow.operators.tensor import Parameter, Tensor
from taskflow.regions import Rect
from taskflow.rules import UpdateRule
from taskflow.tasks.lower.emit import Emitter
from taskflow.tasks.lower.forward import forward
from taskflow.tasks.lower.gradient_flow import gradient_flow
from taskflow.tasks.lower.parameters import ParameterLayout, lay_out
from taskflow.tasks.lower.part import NotAlikeError, StepPart
from taskflow.tasks.lower.passes import backward_pass, forward_and_backward
from taskflow.tasks.lower.sharded import end_pass
from taskflow.tasks.lower.shards import LateGather, Shards, late_gathers, shards_of
from taskflow.tasks.lower.state import Lowering, Piece, SourceSelector, TensorKey
from taskflow.tasks.lower.synchronise import synchronise
from taskflow.tasks.task import Bundle, TaskGraph
from taskflow.tasks.topic import Purpose, Topic


@dataclass(frozen=True, slots=True)
class CutGraph:
    """A graph as a strategy cuts it, whatever is run of it: the pieces of every node, which nodes' backward runs and which
    tensors need gradients, and where parameters live. Training and evaluation share it, and so share weights."""

    pieces: list[list[Piece]]
    active: set[int]
    needs_gradient: set[TensorKey]
    layout: ParameterLayout
    shards: Mapping[str, Shards] = field(default_factory=dict)  # of bundles whose gradients, or weights too, are kept as shares
    late: Mapping[str, LateGather] = field(default_factory=dict)  # of bundles whose weights are gathered as a step begins

    def kept(self, bundle: Bundle, processor: int) -> Rect:
        """Return the elements of a bundle's weights that a holder keeps from step to step; they may be empty."""
        shards = self.shards.get(bundle.name)
        return Rect((0,), (bundle.size,)) if shards is None or shards.zero < 3 else shards.span(processor)

    def current(self, bundle: Bundle, processor: int) -> Rect:
        """Return those of them that are new after a step; the others arrive as the next step begins."""
        late = self.late.get(bundle.name)
        return self.kept(bundle, processor) if late is None else late.shards.span(processor)


def cut_graph(
    graph: OperatorGraph, strategy: Strategy, part: StepPart | None = None, checkpoint: Callable[[], object] = lambda: None
) -> CutGraph:
    """Cut every node as the strategy says; for a ``part`` of the step, only its own pieces (the part must have been verified).
    Raises ValueError that names the operator if the strategy does not fit the graph."""
    if part is None:
        strategy.verify(graph)
    pieces: list[list[Piece]] = []
    alike: dict[tuple[object, ...], list[Piece]] = {}  # of a part there are few layers that are not like another one
    for node in graph:
        checkpoint()
        key = None if part is None else (id(strategy[node.name]), node.operator, node.specs, sample_dim(node))
        if key is None or key not in alike:
            pieces.append(cut(graph, strategy, node.number, part))
        else:
            pieces.append([piece.of(node) for piece in alike[key]])
        if key is not None:
            alike.setdefault(key, pieces[-1])
    active, needs_gradient, trained = gradient_flow(graph)
    units = units_of(graph, strategy)
    layout = lay_out(
        graph, parameter_uses(pieces), trained, None if part is None else part.everywhere, units, _holders(graph, strategy, part)
    )
    shards = shards_of(graph, strategy, layout)
    if part is not None:
        _verify_alike(part, shards, layout)
    return CutGraph(pieces, active, needs_gradient, layout, shards, late_gathers(graph, strategy, layout, shards))


def _holders(graph: OperatorGraph, strategy: Strategy, part: StepPart | None) -> dict[str, dict[Rect, tuple[int, ...]]]:
    """Who holds which Rects of the parameters that replicas divide. NotAlikeError if other operators use other Rects of these."""
    found: dict[str, dict[Rect, tuple[int, ...]]] = {}
    for node in graph if part is not None and part.spread else ():
        assert part is not None
        for i, parameter in enumerate(node.parameters):
            divided = node.name in part.spread
            of = part.holders(node, strategy[node.name], strategy.pipeline, i) if divided else {}
            before = found.setdefault(parameter.name, of)
            if before.keys() != of.keys():
                raise NotAlikeError(f"lower: users of {parameter.name} divide it otherwise among replicas")
            if before is not of:
                found[parameter.name] = {rect: tuple(sorted({*before[rect], *of[rect]})) for rect in of}
    return {name: of for name, of in found.items() if of}


def _verify_alike(part: StepPart, shards: Mapping[str, Shards], layout: ParameterLayout) -> None:
    """NotAlikeError if replicas do not do the same with weights and gradients by shares. It is raised here, since lowering would
    come to it seconds later."""
    for bundle in layout.bundles:
        if bundle.name not in shards:
            continue
        if bundle.size < len(shards[bundle.name].cuts) - 1:
            raise NotAlikeError(f"lower: not every replica has a share of {bundle.name}")
        for group in shards[bundle.name].groups:
            part.lowered(group, bundle.name, bundle.group)


@paused_collector()
def lower(
    graph: OperatorGraph,
    strategy: Strategy,
    rule: UpdateRule | None,
    *,
    clip_norm: float | None = None,
    scaled: bool = False,
    fetch: Sequence[Tensor] = (),
    select_source: SourceSelector | None = None,
    prefix: str = "",
    wanted: Sequence[Tensor] | None = None,
    shared: CutGraph | None = None,
    part: StepPart | None = None,
    hides_sums: bool = False,
    checkpoint: Callable[[], object] = lambda: None,
) -> TaskGraph:
    """Return the tasks of one step of ``graph``, cut and placed by ``strategy``.

    With an update ``rule``: forward, backward, gradient sums, clipping to ``clip_norm`` and updates. Without: forward only
    (evaluation). The tensors in ``fetch``, and the losses, are copied to processor 0. ``prefix``: put before the names of
    persistent buffers that are neither parameters nor lasting (the state carried between steps). ``wanted`` (without a rule):
    only what these tensors need is run, and only they are copied to processor 0. ``shared``: the result of `cut_graph`, if it
    is known. ``scaled``: the loss has a scale, so that each processor is told whether some gradient has overflowed (see
    `FACTOR`). ``part`` (of a training step): only that part is lowered. ``hides_sums``: in passes, a tensor group
    sums gradients of what products read while those of weights are computed (`late_weights`). ``checkpoint``: called for each
    operator, pass and bundle of weights, since lowering may take seconds; an exception that it raises ends the lowering.

    Raises ValueError that names the operator if the strategy does not fit the graph, or for a ``clip_norm`` that is not above
    0; NotAlikeError if it cannot be lowered in part.
    """
    if clip_norm is not None and not (isinstance(clip_norm, Real) and clip_norm > 0):
        raise ValueError(f"lower: clip_norm must be a number above 0, or None, got {clip_norm!r}")
    if part is not None and ((graph.carries and not part.alone) or rule is None):
        raise NotAlikeError("lower: carried states are not lowered in part")
    cut = shared or cut_graph(graph, strategy, part, checkpoint)
    emit, layout = Emitter(strategy.processors), cut.layout
    needed = None if wanted is None else needed_for(graph, wanted)
    pieces = cut.pieces if needed is None else _in_evaluation(cut.pieces)
    state = Lowering(
        graph, strategy, emit, pieces, layout, cut.active, cut.needs_gradient, select_source, prefix, needed, cut.shards
    )
    state.part = state.gathers.part = part
    state.gathers.late = cut.late
    state.checkpoint, state.hides_sums = checkpoint, hides_sums
    for bundle in layout.bundles:
        for processor in bundle.group if part is None else part.here(bundle.group):
            if bundle.name in state.gathers:
                state.gathers.keep(bundle, processor)
                continue
            flat = emit.buffer(bundle.name, Rect((0,), (bundle.size,)), processor, bundle.dtype, kept=True)
            state.flat_weights[bundle.name, processor] = flat
    pipeline = strategy.pipeline if rule is not None else None
    if pipeline is not None:
        forward_and_backward(state, pipeline)
    else:
        # What is computed again waits for nothing else, and would be there long before it is needed.
        state.chained = rule is not None and bool(strategy.again)
        if part is not None and not part.alone:
            state.gathers.turns = emit.graph.turns
        for node in graph:
            if needed is None or node.number in needed:
                checkpoint()
                forward(state, node)
        end_pass(state, over=rule is None)
    emit.graph.bundles, emit.graph.weights = list(layout.bundles), {**state.flat_weights, **state.gathers.shares}
    for tensor in (*graph.losses, *fetch) if wanted is None else wanted:
        emit.graph.fetched[tensor.name] = state.read(tensor, tensor.spec.rect, 0)
    if rule is not None:
        if pipeline is None:
            backward_pass(state, graph.nodes[::-1])
        synchronise(state, rule, clip_norm, scaled)
    for carried, becomes in graph.carries:
        if needed is None or (carried.node in needed and not _lasts(graph, carried)):
            _carry(state, carried, becomes)
    return emit.graph


def needed_for(graph: OperatorGraph, wanted: Sequence[Tensor]) -> set[int]:
    """Return the nodes that evaluation must run for these tensors, and to carry on the state that they read."""
    becomes = {c.node: b.node for c, b in graph.carries if not _lasts(graph, c)}
    needed: set[int] = set()
    left = [tensor.node for tensor in wanted]
    while left:
        number = left.pop()
        if number not in needed:
            needed.add(number)
            node = graph.nodes[number]
            unread = node.operator.unread(training=False)
            left.extend(t.node for i, t in enumerate(node.inputs) if i not in unread)
            if number in becomes:
                left.append(becomes[number])
    return needed


def _lasts(graph: OperatorGraph, tensor: Tensor) -> bool:
    operator = graph.nodes[tensor.node].operator
    return isinstance(operator, State) and operator.lasting


def cut(graph: OperatorGraph, strategy: Strategy, number: int, part: StepPart | None = None) -> list[Piece]:
    """Return the pieces of one node under a strategy; for a ``part`` of the step only its own pieces, renumbered."""
    node = graph.nodes[number]
    config = strategy[node.name]
    if part is not None:
        grid = config.partition(node)
        found = []
        for index, of_all in enumerate(part.pieces(node, config, strategy.pipeline)):
            rect = grid.rect(tuple(int(i) for i in np.unravel_index(of_all // config.copies, config.degrees)))
            found.append(_piece(node, config, index, rect, config.processors[of_all], of_all))
        return found
    return [_piece(node, config, index, rect, processor, None) for index, (rect, processor) in enumerate(config.pieces(node))]


def _piece(node: Node, config: OpConfig, index: int, rect: Rect, processor: int, of_all: int | None) -> Piece:
    local = config.is_local(node)
    copies = () if local else _copies(config, index if of_all is None else of_all)
    return Piece(node, index, rect, processor, node.reads(rect), node.writes(rect), of_all, copies, local)


def _copies(config: OpConfig, piece: int) -> tuple[int, ...]:
    """The processors that run the same as a piece, with its own; empty if it is the only one."""
    if config.copies == 1:
        return ()
    first = piece // config.copies * config.copies
    return config.processors[first : first + config.copies]


def _in_evaluation(pieces: Sequence[list[Piece]]) -> list[list[Piece]]:
    """The same pieces with what they read there."""

    def differs(node: Node) -> bool:
        return node.operator.unread(training=False) != node.operator.unread(training=True)

    return [
        [replace(piece, reads=piece.node.operator.reads_in(piece.node.specs, piece.rect, training=False)) for piece in of_node]
        if differs(of_node[0].node) else of_node
        for of_node in pieces
    ]


def parameter_uses(pieces: Sequence[Sequence[Piece]]) -> dict[Parameter, dict[int, list[Rect]]]:
    """Return the distinct Rects of each parameter that tasks read, by processor; none for a parameter that meets nothing but
    padding."""
    uses: dict[Parameter, dict[int, dict[Rect, None]]] = {}
    for of_node in pieces:
        for piece in of_node:
            for parameter, rect in zip(piece.node.parameters, piece.reads.weights):
                of_parameter = uses.setdefault(parameter, {})
                if not rect.empty:
                    of_parameter.setdefault(piece.processor, {})[rect] = None
    return {p: {k: list(v) for k, v in table.items()} for p, table in uses.items()}


def _carry(state: Lowering, carried: Tensor, becomes: Tensor) -> None:
    """Write next step's state. It is read by this step's tasks, so these copies wait for them."""
    for rect, processor, buffer in state.owners[carried.node, carried.index]:
        source = state.read(becomes, rect, processor)
        state.emit.topic = Topic(Purpose.CARRIED, state.graph.nodes[carried.node].name)
        state.emit.transfer(f"carry {carried.name}{rect}", state.emit.whole(source), state.emit.whole(buffer))
