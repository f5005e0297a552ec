"""Regathering: inputs that come from other processors are not kept for the backward pass, but fetched a second time.

Megatron-LM does so with what a tensor-parallel group gathers along the sequence (Korthikanti et al., arXiv 2205.05198, section
4.2.2), overlapped with earlier backward tasks.
"""

from __future__ import annotations

from collections.abc import Sequence

from taskflow.graph import Node
from taskflow.operators.tensor import Tensor
from taskflow.regions import Rect
from taskflow.tasks.lower.state import Lowering, Piece

AHEAD = 3
"""So many backward tasks of a processor before the one that reads it, what is brought again may begin to arrive: beside one long
task, a product, and what follows that."""


def bring_again(state: Lowering, node: Node, pieces: Sequence[Piece]) -> None:
    """Let the backward tasks of pieces read newly fetched instances of inputs that live elsewhere, if `Strategy.regather` names
    the node."""
    if node.name not in state.strategy.regather or not node.operator.keeps(node.specs).inputs:
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
    if rect.empty or state.graph.nodes[tensor.node].name in state.strategy.recompute:
        return False
    owners = state.owners[tensor.node, tensor.index]
    if (processor, rect) in owners.recut:
        return True
    return any(owners.nearest(*piece, processor)[0] != processor for piece in owners.overlapping(rect))
