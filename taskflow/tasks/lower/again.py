"""What the backward pass has again (`Strategy.again`), computed or brought, because it was not kept.

Recomputation: values are computed again when a backward task first needs them. What `HadAgain.rerun` names runs again whether or
not a backward task needs it, before the operator's own backward tasks. Those of a layer's last operator are the layer's first. So a
layer all of which is named runs again as a whole before its backward pass, once the gradient of its result is there.

Chen et al., "Training deep nets with sublinear memory cost", arXiv 1604.06174.

Regathering: inputs that come from other processors are fetched a second time. Megatron-LM does so with what a tensor-parallel group
gathers along the sequence (Korthikanti et al., arXiv 2205.05198, section 4.2.2), overlapped with earlier backward tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set

from taskflow.graph import Node, OperatorGraph
from taskflow.mapper import HadAgain
from taskflow.operators.tensor import Tensor
from taskflow.regions import Rect
from taskflow.tasks.lower.forward import add_partial_values, output_buffers, partial_values, place_shares, run_pieces
from taskflow.tasks.lower.state import Lowering, Piece
from taskflow.tasks.topic import Purpose, Topic

AHEAD = 3
"""So many backward tasks of a processor before the one that reads it, what is brought again may begin to arrive: beside one long
task, a product, and what follows that."""


def have_again(state: Lowering, node: Node, pieces: Sequence[Piece], bring_gradients: Callable[[], None]) -> None:
    """Have what the backward tasks of pieces need again. ``bring_gradients``: brings the gradients of their outputs, after which a
    checkpoint runs again."""
    if node.name in state.strategy.again.rerun:
        first = len(state.emit.graph)
        bring_gradients()
        state.arrived = state.written_since(first)
    _compute_again(state, node, pieces)
    state.arrived = {}
    _bring_again(state, node, pieces)


def _compute_again(state: Lowering, node: Node, pieces: Sequence[Piece]) -> None:
    """Compute again the values that the backward tasks of pieces read and that were not kept, and the pieces themselves if
    `HadAgain.rerun` names their operator; in the order of the graph, each piece once."""
    names, keeps = state.strategy.again.recompute, node.operator.keeps(node.specs)
    own = node.name in state.strategy.again.rerun
    if not names and not own:
        return
    own = own or (node.name in names and (keeps.outputs or any(node.operator.saves(node.specs, p.rect) for p in pieces)))
    if not own and not keeps.inputs:
        return
    wanted: dict[int, set[int]] = {}  # by node, pieces
    left = [(node, piece) for piece in pieces]
    while left:
        reader, piece = left.pop()
        if reader is not node or own:
            if piece.index in state.again.get(reader.number, ()) or piece.index in wanted.get(reader.number, ()):
                continue
            wanted.setdefault(reader.number, set()).add(piece.index)
        for tensor, read in zip(reader.inputs, piece.reads.inputs):
            source = state.graph.nodes[tensor.node]
            if source.name in names and not read.empty:
                writers, owners = state.writers[tensor.node, tensor.index], state.owners[tensor.node, tensor.index]
                left.extend((source, p) for rect, *_ in owners.overlapping(read) for p in writers[owners.written(rect)])
    for number in sorted(wanted):
        _recompute(state, state.graph.nodes[number], [state.pieces[number][i] for i in sorted(wanted[number])])
        state.again.setdefault(number, set()).update(wanted[number])
    if not own:
        _read_again(state, node, pieces)


def _read_again(state: Lowering, node: Node, pieces: Sequence[Piece]) -> None:
    """Let the backward tasks of pieces read the recomputed inputs."""
    again = [state.graph.nodes[t.node].name in state.strategy.again.recompute for t in node.inputs]
    if not any(again):
        return
    for piece in pieces:
        inputs, weights, outputs, saved = state.forward_buffers[node.number, piece.index]
        new = tuple(
            state.want(t, rect, piece.processor) if changed else b
            for t, rect, b, changed in zip(node.inputs, piece.reads.inputs, inputs, again)
        )
        state.forward_buffers[node.number, piece.index] = (new, weights, outputs, saved)
    state.bring()


def _recompute(state: Lowering, node: Node, pieces: Sequence[Piece]) -> None:
    """Emit the forward tasks of pieces again, into new buffers, which take the place of the first ones for whoever reads from now
    on."""
    first = {piece.index: state.outputs[node.number, piece.index] for piece in pieces}
    for piece in pieces:
        state.outputs[node.number, piece.index] = output_buffers(state, piece)
    run_pieces(state, node, pieces, Topic(Purpose.RECOMPUTED, node.name))
    # What pieces of several micro-batches add up to, such as a loss, stays where it is.
    whole = [
        {
            rect for rect in {piece.writes[t.index] for piece in pieces}
            if first.keys() >= {p.index for p in state.writers[node.number, t.index][rect]}
        }
        for t in node.outputs
    ]
    for piece in pieces:
        place = node.number, piece.index
        state.outputs[place] = tuple(
            new if rect in again else old
            for new, old, rect, again in zip(state.outputs[place], first[piece.index], piece.writes, whole)
        )
    for tensor, again in zip(node.outputs, whole):
        state.owners[node.number, tensor.index].replace(partial_values(state, tensor, again))
        place_shares(state, tensor, again)
        state.forget(tensor, again)
    add_partial_values(state, node, pieces, set(first))


def _bring_again(state: Lowering, node: Node, pieces: Sequence[Piece]) -> None:
    """Let the backward tasks of pieces read newly fetched instances of inputs that live elsewhere, if `HadAgain.regather` names
    the node."""
    if node.name not in state.strategy.again.regather or not node.operator.keeps(node.specs).inputs:
        return
    elsewhere = [
        (piece, [_elsewhere(state, t, rect, piece.processor) for t, rect in zip(node.inputs, piece.reads.inputs)])
        for piece in pieces
    ]
    for number, tensor in enumerate(node.inputs):
        owners, done = state.owners[tensor.node, tensor.index], state.brought.setdefault((tensor.node, tensor.index), set())
        owned = {
            rect: None for piece, far in elsewhere if far[number]
            for rect, *_ in owners.overlapping(piece.reads.inputs[number]) if rect not in done
        }
        state.forget(tensor, list(dict.fromkeys(map(owners.written, owned))))
        done.update(owned)
    for piece, far in elsewhere:
        inputs, weights, outputs, saved = state.forward_buffers[node.number, piece.index]
        new = tuple(
            state.want(t, rect, piece.processor) if again else before
            for t, rect, before, again in zip(node.inputs, piece.reads.inputs, inputs, far)
        )
        state.forward_buffers[node.number, piece.index] = (new, weights, outputs, saved)
    # Nothing else would hold it back until it is needed.
    state.emit.waiting = [state.recent[p][0] for p in sorted({piece.processor for piece in pieces}) if state.recent.get(p)]
    state.bring()
    state.emit.waiting = ()


def _elsewhere(state: Lowering, tensor: Tensor, rect: Rect, processor: int) -> bool:
    """True if some of what a task reads is on another processor, and is not computed again anyway."""
    if rect.empty or state.graph.nodes[tensor.node].name in state.strategy.again.recompute:
        return False
    owners = state.owners[tensor.node, tensor.index]
    if (processor, rect) in owners.recut:
        return True
    return any(owners.nearest(*piece, processor)[0] != processor for piece in owners.overlapping(rect))


def runs_again(graph: OperatorGraph, active: Set[int], again: HadAgain) -> list[bool]:
    """Return for each node whether it is computed again. Of the operators whose results are not kept, those are of which a backward
    task, or another that is computed again, reads some. So are those that run again in any case, if they have backward tasks.
    ``active``: the nodes that have (`gradient_flow`)."""
    found, read = [False] * len(graph), [False] * len(graph)
    for node in reversed(graph.nodes):
        keeps, backward = node.operator.keeps(node.specs), node.number in active
        saves = keeps.outputs or bool(node.operator.saves(node.specs, node.space))
        needed = node.name in again.recompute and (read[node.number] or (backward and saves))
        found[node.number] = needed or (backward and node.name in again.rerun)
        if found[node.number] or (backward and keeps.inputs):
            for tensor in node.inputs:
                read[tensor.node] = True
    return found
