"""The forward pass of lowering: one task a piece, the copies that bring its inputs, and the sums of partial outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from taskflow.graph import Node
from taskflow.mapper import SyncAlgorithm
from taskflow.operators.state import State
from taskflow.operators.tensor import Tensor
from taskflow.regions import Rect
from taskflow.tasks.lower.reduce import all_reduce_all, reduce_all
from taskflow.tasks.lower.state import Lowering, Owners, Piece
from taskflow.tasks.task import Compute, Kind
from taskflow.tasks.topic import Purpose, Topic

LASTING = "lasting:"  # the prefix of kept buffers that training and evaluation share


def forward(state: Lowering, node: Node) -> None:
    """Emit the forward tasks of a node."""
    kept = isinstance(node.operator, State)
    # What lasts is one buffer for training and evaluation, so its name does not say which.
    prefix, start = state.prefix, 0.0
    if isinstance(node.operator, State):
        prefix, start = LASTING if node.operator.lasting else prefix, node.operator.start
    written: list[dict[Rect, list[tuple[int, int]]]] = [{} for _ in node.outputs]  # Rect -> (processor, buffer)s
    inputs = [() if kept else _inputs(state, piece) for piece in state.pieces[node.number]]
    state.bring()
    state.emit.topic = Topic(Purpose.FORWARD, node.name)
    for piece, instances in zip(state.pieces[node.number], inputs):
        outputs = tuple(
            state.emit.buffer(
                f"{prefix}{t.name}" if kept else t.name, rect, piece.processor, t.dtype, kept=kept, start=start
            )
            for t, rect in zip(node.outputs, piece.writes)
        )
        if not kept:
            _task(state, piece, instances, outputs)
        for table, rect, buffer in zip(written, piece.writes, outputs):
            table.setdefault(rect, []).append((piece.processor, buffer))
    state.emit.topic = Topic(Purpose.PARTIAL, node.name)
    for tensor, table in zip(node.outputs, written):
        owners = Owners(tensor.spec, [(rect, *parts[0]) for rect, parts in table.items()])
        owners.summed.update(_summed_everywhere(state, tensor, table, owners))
        state.owners[tensor.node, tensor.index] = owners
        partial = {
            rect: (f"sum {tensor.name}{rect}", [(p, state.emit.whole(b)) for p, b in parts])
            for rect, parts in table.items() if len(parts) > 1
        }
        all_reduce_all(state.emit, [group for rect, group in partial.items() if rect in owners.summed])
        rest = [group for rect, group in partial.items() if rect not in owners.summed]
        reduce_all(state.emit, rest)  # in the first part's buffer


def _summed_everywhere(
    state: Lowering, tensor: Tensor, table: Mapping[Rect, Sequence[tuple[int, int]]], owners: Owners
) -> dict[Rect, dict[int, int]]:
    """The Rects of a tensor whose partial values an all-reduce sums, each with the buffers of the sum by processor. Those are
    they of which every processor that has computed a part also reads some: were only one of them to need the sum, as of a
    loss, sending it to the others would be for nothing."""
    if state.strategy.sums is not SyncAlgorithm.COLLECTIVE:
        return {}
    found: dict[Rect, dict[int, int]] = {}
    for rect, parts in table.items():
        held: dict[int, int] = {}
        for processor, buffer in parts:
            held.setdefault(processor, buffer)
        if len(held) > 1 and not rect.empty:
            found[rect] = held
    if not found:
        return found
    reading: dict[Rect, set[int]] = {}
    for read, processor in state.users(tensor):
        for rect, *_ in owners.overlapping(read) if not read.empty else ():
            reading.setdefault(rect, set()).add(processor)
    return {rect: held for rect, held in found.items() if reading.get(rect, set()).issuperset(held)}


def _inputs(state: Lowering, piece: Piece) -> tuple[int, ...]:
    """The instances that a piece reads; `Lowering.bring` fills them."""
    return tuple(state.want(t, r, piece.processor) for t, r in zip(piece.node.inputs, piece.reads.inputs))


def _task(state: Lowering, piece: Piece, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> None:
    emit, node = state.emit, piece.node
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
        [emit.whole(b) for b in (*inputs, *weights)],
        [emit.whole(b) for b in (*outputs, *saved)],
        flops=node.operator.flops(node.specs, piece.rect),
    )

