"""The forward pass of lowering: one task a piece, the copies that bring its inputs, and the sums of partial outputs."""

from __future__ import annotations

from taskflow.graph import Node
from taskflow.mapper.config import Travel
from taskflow.operators.state import State
from taskflow.regions import Rect
from taskflow.tasks.emit import Emitter
from taskflow.tasks.lowering import Lowering, Owners, Piece
from taskflow.tasks.reduce import reduce_to
from taskflow.tasks.task import Compute, Kind

LASTING = "lasting:"  # the prefix of kept buffers that training and evaluation share


def forward(state: Lowering, node: Node) -> None:
    """Emit the forward tasks of a node."""
    kept = isinstance(node.operator, State)
    # What lasts is one buffer for training and evaluation, so its name does not say which.
    prefix, start = state.prefix, 0.0
    if isinstance(node.operator, State):
        prefix, start = LASTING if node.operator.lasting else prefix, node.operator.start
    written: list[dict[Rect, list[tuple[int, int]]]] = [{} for _ in node.outputs]  # Rect -> (processor, buffer)s
    for piece in state.pieces[node.number]:
        outputs = tuple(
            state.emit.buffer(
                f"{prefix}{t.name}" if kept else t.name, rect, piece.processor, t.dtype, kept=kept, start=start
            )
            for t, rect in zip(node.outputs, piece.writes)
        )
        if not kept:
            _task(state, piece, outputs)
        for table, rect, buffer in zip(written, piece.writes, outputs):
            table.setdefault(rect, []).append((piece.processor, buffer))
    for tensor, table in zip(node.outputs, written):
        owners = []
        for rect, parts in table.items():
            owner, buffer = parts[0]
            if len(parts) > 1:
                _sum(state.emit, f"{tensor.name}{rect}", parts)
            owners.append((rect, owner, buffer))
        state.owners[tensor.node, tensor.index] = Owners(tensor.spec, owners)


def _task(state: Lowering, piece: Piece, outputs: tuple[int, ...]) -> None:
    emit, node = state.emit, piece.node
    unread = () if state.needed is None else node.operator.unread_in_evaluation
    inputs = tuple(
        emit.buffer(t.name, r, piece.processor, t.dtype) if i in unread else state.read(t, r, piece.processor)
        for i, (t, r) in enumerate(zip(node.inputs, piece.reads.inputs))
    )
    weights = tuple(state.weight(p, r, piece.processor) for p, r in zip(node.parameters, piece.reads.weights))
    saved = tuple(
        emit.buffer(f"{node.name}.saved{i}", Rect.of(spec.shape), piece.processor, spec.dtype)
        for i, spec in enumerate(node.operator.saves(node.specs, piece.rect))
    )
    state.forward_buffers[node.number, piece.index] = (inputs, weights, outputs, saved)
    emit.emit(
        Kind.FORWARD,
        f"{piece.name} forward",
        piece.processor,
        Compute(node, piece.rect, False, inputs, weights, outputs, saved),
        [emit.whole(b) for b in (*(b for i, b in enumerate(inputs) if i not in unread), *weights)],
        [emit.whole(b) for b in (*outputs, *saved)],
        flops=node.operator.flops(node.specs, piece.rect),
    )


def _sum(emit: Emitter, name: str, parts: list[tuple[int, int]]) -> None:
    """Add the partial values in the first part's buffer."""
    reduce_to(emit, f"sum {name}", [(p, emit.whole(b)) for p, b in parts], Travel.OWNER)
